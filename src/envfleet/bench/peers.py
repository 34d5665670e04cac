"""The contenders: one small class per way of stepping N environments, behind one protocol.

A contender is plain values and pickles; it goes to a child process, which builds and measures it there. Peers are used
as their own documentation tells users to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from envfleet.bench.workloads import Workload
from envfleet.kernels.registration import find_original


class Runner(Protocol):
    """N sub-environments that are ready to be stepped."""

    def reset(self, seed: int) -> None:
        """Reset every sub-environment; the first is seeded with `seed`."""

    def step(self, actions: Any) -> int:
        """Step once with a batch of actions; return how many transitions that made.

        Rows in which a sub-environment was only reset (next-step autoreset) are not transitions and are not counted.
        """

    def close(self) -> None:
        """Release everything."""


class Contender(Protocol):
    """One way of running N sub-environments."""

    @property
    def name(self) -> str:
        """What it is called on the command line and in JSON."""

    @property
    def label(self) -> str:
        """What it is called in tables and plots."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Distributions whose versions belong into a report."""

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules to import before the clock runs."""

    def absence(self, workload: Workload) -> str | None:
        """Say why it cannot run this workload here, or `None`. Imports nothing."""

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build the sub-environments. `workers` is the wanted number of workers; `None` leaves it to the contender."""


# --- The bare loop ----------------------------------------------------------------------------------------------------


class _LoopRunner:
    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self._envs = envs
        self._action_space = envs[0].action_space

    def reset(self, seed: int) -> None:
        for index, env in enumerate(self._envs):
            env.reset(seed=seed + index)

    def step(self, actions: Any) -> int:
        rows: Iterable[Any] = actions if isinstance(actions, np.ndarray) else iterate(self._action_space, actions)
        for env, action in zip(self._envs, rows, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(self._envs)

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes the others if one raises
            for env in self._envs:
                stack.callback(env.close)


@dataclasses.dataclass(frozen=True)
class BareLoop:
    """A Python loop over N environments that throws everything away: the limit of one core.

    Args:
        is_checked: Keep Gymnasium's passive checker, as plain `gymnasium.make` does.
    """

    is_checked: bool = False
    packages: tuple[str, ...] = ("gymnasium",)
    modules: tuple[str, ...] = ("gymnasium",)

    @property
    def name(self) -> str:
        """`loop`, or `loop-default` with the passive checker."""
        return "loop-default" if self.is_checked else "loop"

    @property
    def label(self) -> str:
        """How tables call it."""
        return "bare Python loop, gym.make as is" if self.is_checked else "bare Python loop"

    def absence(self, workload: Workload) -> str | None:
        """Say why it cannot run: never."""
        del workload
        return None

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments in this process."""
        del workers
        kwargs = {} if self.is_checked else {"disable_env_checker": True}
        return _LoopRunner([workload.build(**kwargs) for _ in range(num_envs)])


# --- Whatever follows gymnasium.vector.VectorEnv ----------------------------------------------------------------------


class VectorRunner:
    """Any `gymnasium.vector.VectorEnv` in its own autoreset mode."""

    def __init__(self, envs: Any, num_envs: int) -> None:
        self._envs = envs
        self._num_envs = num_envs
        # EnvPool says nothing of its mode; it is next-step.
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._has_reset_rows = mode == AutoresetMode.NEXT_STEP
        self._ended = 0

    def reset(self, seed: int) -> None:
        """Reset all."""
        self._envs.reset(seed=seed)
        self._ended = 0

    def step(self, actions: Any) -> int:
        """Step once; rows of episodes that had ended are resets."""
        _, _, terminated, truncated, _ = self._envs.step(actions)
        transitions = self._num_envs - self._ended
        if self._has_reset_rows:
            self._ended = _count_ended(terminated, truncated)
        return transitions

    def close(self) -> None:
        """Close all."""
        self._envs.close()


def _count_ended(terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> int:
    """How many episodes ended. Bytes are counted in a fraction of the time, which is charged to what is measured."""
    if truncated.tobytes().count(1):
        return int(np.count_nonzero(terminated | truncated))
    return terminated.tobytes().count(1)


@dataclasses.dataclass(frozen=True)
class GymnasiumVector:
    """Gymnasium's own vector environments through `gymnasium.make_vec`, with its defaults.

    Args:
        mode: `"sync"` or `"async"` (a process per environment, observations in shared memory).
    """

    mode: str
    packages: tuple[str, ...] = ("gymnasium",)
    modules: tuple[str, ...] = ("gymnasium",)

    @property
    def name(self) -> str:
        """`gymnasium-sync` or `gymnasium-async`."""
        return f"gymnasium-{self.mode}"

    @property
    def label(self) -> str:
        """The class's name."""
        return f"Gymnasium {self.mode.capitalize()}VectorEnv"

    def absence(self, workload: Workload) -> str | None:
        """Say why it cannot run: never."""
        del workload
        return None

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `gymnasium.make_vec`; it has no number of workers."""
        del workers
        envs = gymnasium.make_vec(workload.spec, num_envs=num_envs, vectorization_mode=self.mode)
        return VectorRunner(envs, num_envs)


# --- Stable-Baselines3 ------------------------------------------------------------------------------------------------


class _Sb3Runner:
    def __init__(self, envs: Any) -> None:
        self._envs = envs

    def reset(self, seed: int) -> None:
        self._envs.seed(seed)
        self._envs.reset()

    def step(self, actions: Any) -> int:
        return len(self._envs.step(actions)[1])  # same-step autoreset: every row is a transition

    def close(self) -> None:
        self._envs.close()


@dataclasses.dataclass(frozen=True)
class StableBaselines3:
    """Stable-Baselines3's vector environments, without its `Monitor`, which would cost them more.

    Args:
        mode: `"dummy"` (in this process) or `"subproc"` (a process per environment).
    """

    mode: str
    packages: tuple[str, ...] = ("stable-baselines3", "torch")
    modules: tuple[str, ...] = ("stable_baselines3.common.vec_env",)

    @property
    def name(self) -> str:
        """`sb3-dummy` or `sb3-subproc`."""
        return f"sb3-{self.mode}"

    @property
    def label(self) -> str:
        """The class's name."""
        return f"SB3 {self.mode.capitalize()}VecEnv"

    def absence(self, workload: Workload) -> str | None:
        """Say whether it is not installed."""
        del workload
        return _not_installed("stable_baselines3", "stable-baselines3")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments; it has no number of workers."""
        del workers
        vec_env = importlib.import_module("stable_baselines3.common.vec_env")
        make_all = vec_env.DummyVecEnv if self.mode == "dummy" else vec_env.SubprocVecEnv
        return _Sb3Runner(make_all([workload.build] * num_envs))


# --- EnvPool ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class EnvPool:
    """EnvPool's C++ environments, for the ids that it has rewritten."""

    packages: tuple[str, ...] = ("envpool",)
    modules: tuple[str, ...] = ("envpool",)
    name: str = "envpool"
    label: str = "EnvPool"

    # Not asked of EnvPool itself: that imports it, which takes a second and starts threads.
    _REWRITTEN = ("CartPole-v1", "LunarLander-v3", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0", "BipedalWalker-v3")

    def absence(self, workload: Workload) -> str | None:
        """Say whether it is not installed or has no such environment."""
        if self._env_id(workload) not in self._REWRITTEN or workload.env_kwargs:
            return f"has no {workload.spec.id} (only environments that were rewritten in C++)"
        return _not_installed("envpool", "envpool")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `envpool.make_gymnasium`; `workers` becomes `num_threads`."""
        envpool = importlib.import_module("envpool")
        threads = {} if workers is None else {"num_threads": min(workers, num_envs)}
        return _EnvPoolRunner(
            envpool.make_gymnasium(self._env_id(workload), num_envs=num_envs, seed=0, **threads), num_envs
        )

    @staticmethod
    def _env_id(workload: Workload) -> str:
        """Gymnasium's id, of a kernel that of the environment that it equals."""
        return find_original(workload.spec.id) or workload.spec.id


class _EnvPoolRunner(VectorRunner):
    def reset(self, seed: int) -> None:
        del seed  # EnvPool takes its seed when it is made
        self._envs.reset()
        self._ended = 0


def _not_installed(module_name: str, distribution: str) -> str | None:
    if importlib.util.find_spec(module_name) is not None:
        return None
    return f"not installed: pip install {distribution}, or the extra envfleet[bench]"
