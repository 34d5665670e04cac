"""The contenders: one small class per way of stepping N environments.

A contender is plain values and pickles; it goes to a child process, which builds and measures it there. Peers are used
as their own documentation tells users to.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

import envfleet
from envfleet.bench.workloads import Workload, is_installed
from envfleet.errors import InvalidArgument
from envfleet.kernels.registration import find_original, find_twin, is_kernel
from envfleet.registry import BACKENDS

BASELINE = "loop"


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


class Contender:
    """One way of running N sub-environments.

    Args:
        name: On the command line and in JSON.
        label: In tables and plots.

    Attributes:
        packages: Distributions whose versions belong into a report.
        modules: Modules to import before the clock runs.
    """

    packages: tuple[str, ...] = ("gymnasium",)
    modules: tuple[str, ...] = ("gymnasium",)

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label

    def absence(self, workload: Workload) -> str | None:
        """Return why it cannot run this workload here, or `None`. Imports nothing."""
        for name in (module.partition(".")[0] for module in self.modules):
            if not is_installed(name):
                return f"not installed: pip install {name.replace('_', '-')}, or the extra envfleet[bench]"
        return None

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build the sub-environments. `workers` is the wanted number of workers; `None` leaves it to the contender."""
        raise NotImplementedError


# ---------------------------------------------------------------------------------------------------- the bare loop


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


class BareLoop(Contender):
    """A Python loop over N environments that throws everything away: the limit of one core."""

    def __init__(self) -> None:
        super().__init__(BASELINE, "bare Python loop")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments in this process."""
        return _LoopRunner([workload.build(disable_env_checker=True) for _ in range(num_envs)])


# ---------------------------------------------------------------------- whatever follows gymnasium.vector.VectorEnv


class VectorRunner:
    """Any `gymnasium.vector.VectorEnv` in its own autoreset mode.

    Args:
        envs: The vector environment.
        num_envs: How many sub-environments.
        is_seeded: Whether `reset` takes a seed.
    """

    def __init__(self, envs: Any, num_envs: int, *, is_seeded: bool = True) -> None:
        self._envs, self._num_envs, self._is_seeded = envs, num_envs, is_seeded
        # EnvPool says nothing of its mode; it is next-step.
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._has_reset_rows = mode == AutoresetMode.NEXT_STEP
        self._ended = 0

    def reset(self, seed: int) -> None:
        """Reset all."""
        self._envs.reset(**({"seed": seed} if self._is_seeded else {}))
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
    """Count episodes that ended. Bytes are counted in a fraction of the time, which is charged to what is measured."""
    if truncated.tobytes().count(1):
        return int(np.count_nonzero(terminated | truncated))
    return terminated.tobytes().count(1)


class GymnasiumVector(Contender):
    """Gymnasium's own vector environments through `gymnasium.make_vec`, with its defaults.

    Args:
        mode: `"sync"` or `"async"` (a process per environment, observations in shared memory).
    """

    def __init__(self, mode: str) -> None:
        super().__init__(f"gymnasium-{mode}", f"Gymnasium {mode.capitalize()}VectorEnv")
        self._mode = mode

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `gymnasium.make_vec`; it has no number of workers."""
        envs = gymnasium.make_vec(workload.spec, num_envs=num_envs, vectorization_mode=self._mode)
        return VectorRunner(envs, num_envs)


class EnvPool(Contender):
    """EnvPool's C++ environments, for the ids that it has rewritten."""

    packages = modules = ("envpool",)
    # Not asked of EnvPool itself: that imports it, which takes a second and starts threads.
    _CLASSIC = "CartPole-v1 LunarLander-v3 Acrobot-v1 Pendulum-v1 MountainCar-v0 BipedalWalker-v3"
    _MUJOCO = (
        "Ant-v5 HalfCheetah-v5 Hopper-v5 Humanoid-v5 HumanoidStandup-v5 InvertedDoublePendulum-v5 InvertedPendulum-v5 "
        "Pusher-v5 Reacher-v5 Swimmer-v5 Walker2d-v5"
    )
    _REWRITTEN: Mapping[str, str] = {
        **{env_id: env_id for env_id in f"{_CLASSIC} {_MUJOCO}".split()},
        "envfleet-bench/Breakout-v5": "Breakout-v5",
        "envfleet-bench/DoorKey-6x6-v0": "MiniGrid-DoorKey-6x6-v0",  # its observations have the mission, too
    }

    def __init__(self) -> None:
        super().__init__("envpool", "EnvPool")

    def absence(self, workload: Workload) -> str | None:
        """Return why it cannot run: it is not installed, or has no such environment."""
        if self._find(workload) is None or workload.env_kwargs:
            return f"has no {workload.spec.id} (only environments that were rewritten in C++)"
        return super().absence(workload)

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `envpool.make_gymnasium`, which takes the seed; `workers` becomes `num_threads`."""
        make = importlib.import_module("envpool").make_gymnasium
        threads = {} if workers is None else {"num_threads": min(workers, num_envs)}
        envs = make(self._find(workload), num_envs=num_envs, seed=0, **threads)
        return VectorRunner(envs, num_envs, is_seeded=False)

    def _find(self, workload: Workload) -> str | None:
        """Return EnvPool's id, of a kernel that of the environment that it equals; `None` where it has none."""
        return self._REWRITTEN.get(find_original(workload.spec.id) or workload.spec.id)


# ------------------------------------------------------------------------------------------------ Stable-Baselines3


class _Sb3Runner:
    def __init__(self, envs: Any) -> None:
        self._envs = envs
        self.close = envs.close

    def reset(self, seed: int) -> None:
        self._envs.seed(seed)
        self._envs.reset()

    def step(self, actions: Any) -> int:
        return len(self._envs.step(actions)[1])  # same-step autoreset: every row is a transition


class StableBaselines3(Contender):
    """Stable-Baselines3's vector environments, without its `Monitor`, which would cost them more.

    Args:
        mode: `"dummy"` (in this process) or `"subproc"` (a process per environment).
    """

    packages = ("stable-baselines3", "torch")
    modules = ("stable_baselines3.common.vec_env",)

    def __init__(self, mode: str) -> None:
        self._class = f"{mode.capitalize()}VecEnv"
        super().__init__(f"sb3-{mode}", f"SB3 {self._class}")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments; it has no number of workers."""
        # Imports are no part of the start, as for all others: each worker would take a second to import torch.
        multiprocessing.set_forkserver_preload([f"{self.modules[0]}.subproc_vec_env", Workload.__module__])
        make_all = getattr(importlib.import_module(self.modules[0]), self._class)
        return _Sb3Runner(make_all([workload.build] * num_envs))


# ---------------------------------------------------------------------------------------------------------- our own


class _BatchRunner:
    """A fleet stepped asynchronously: act on whoever is ready, `batch_size` at a time."""

    def __init__(self, fleet: envfleet.Fleet) -> None:
        self._fleet = fleet
        self._ready: NDArray[np.int64] | None = None
        self._has_ended = np.zeros(fleet.num_envs, np.bool_)

    def reset(self, seed: int) -> None:
        self._fleet.reset(seed=seed)
        self._has_ended[:] = False
        self._ready = None

    def step(self, actions: Any) -> int:
        self._fleet.send(actions if self._ready is None else actions[self._ready], self._ready)
        batch = self._fleet.recv()
        self._ready = ready = batch.env_indices
        transitions = len(ready) - int(np.count_nonzero(self._has_ended[ready]))
        self._has_ended[ready] = batch.terminated | batch.truncated
        return transitions

    def close(self) -> None:
        self._fleet.close(terminate=True)


def kernel_of(workload: Workload) -> EnvSpec | None:
    """Return the kernel that `backend="kernel"` runs for an environment, or `None`.

    It is the environment itself, or its compiled twin, unless the environment gets arguments of its own.
    """
    if is_kernel(workload.spec):
        return workload.spec
    twin = find_twin(workload.spec.id)
    return None if twin is None or workload.spec.kwargs else gymnasium.spec(twin)


class EnvFleet(Contender):
    """A fleet of this package.

    Args:
        backend: Of `envfleet.make`.
        options: More arguments of `envfleet.make`, such as `batch_size`.
        tag: Tells apart two fleets of one backend; part of the name.
    """

    packages = modules = ("envfleet",)

    def __init__(self, backend: str, options: Mapping[str, Any] | None = None, tag: str = "") -> None:
        name = f"envfleet-{backend}-{tag}" if tag else f"envfleet-{backend}"
        super().__init__(name, f"envfleet {backend}" + (f" ({tag.replace('-', ' ')})" if tag else ""))
        self.backend, self.options = backend, options or {}

    def absence(self, workload: Workload) -> str | None:
        """Return why it cannot run: compiled code needs a kernel, and numba; Ray needs to be installed."""
        if self.backend == "ray" and not is_installed("ray"):
            return "not installed: pip install 'envfleet[ray]'"
        if self.backend != "kernel":
            return None
        if kernel_of(workload) is None:
            given = " that takes arguments" if workload.spec.kwargs else ""
            return f"{workload.spec.id} is no kernel and has no compiled twin{given} (envfleet envs lists kernels)"
        return None if is_installed("numba") else "not installed: pip install numba, or the extra envfleet[kernels]"

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `envfleet.make`."""
        options: dict[str, Any] = {**self.options, "backend": self.backend}
        if workers is not None and self.backend != "serial":
            options.setdefault("workers", min(workers, num_envs))
        source = (kernel_of(workload) if self.backend == "kernel" else None) or workload.spec
        fleet = envfleet.make(source, num_envs, **options)
        return VectorRunner(fleet, num_envs) if fleet.batch_size == num_envs else _BatchRunner(fleet)


# --------------------------------------------------------------------------------------------------------- by name


_PEERS = (
    BareLoop(),
    GymnasiumVector("sync"),
    GymnasiumVector("async"),
    StableBaselines3("dummy"),
    StableBaselines3("subproc"),
    EnvPool(),
)
BACKEND_NAMES: tuple[str, ...] = ("auto", *BACKENDS)
DEFAULT_BACKENDS: tuple[str, ...] = ("auto", "serial", "process", "kernel")
PEER_NAMES: tuple[str, ...] = tuple(peer.name for peer in _PEERS)
CONTENDERS: Mapping[str, Contender] = {one.name: one for one in (*_PEERS, *map(EnvFleet, BACKEND_NAMES))}


def is_ours(name: str) -> bool:
    """Return whether a contender is a fleet of this package."""
    return name.startswith("envfleet-")


def find_contenders(names: Sequence[str]) -> list[Contender]:
    """Look up contenders by name.

    Raises:
        InvalidArgument: There is no contender of that name, or no name.
    """
    if not names:
        raise InvalidArgument("no contender is left to measure: name some with --backends or --peers.")
    for name in names:
        if name not in CONTENDERS:
            raise InvalidArgument(
                f"{name!r} is an unknown contender: expected some of {', '.join(CONTENDERS)} "
                "(backends of envfleet are named with --backends, peers with --peers)."
            )
    return [CONTENDERS[name] for name in names]
