"""Contenders: one class per way to step N environments.

A contender holds plain values, so that it can be sent to a child process, which builds and measures it. Other libraries
are used as their documentation recommends.
"""

from __future__ import annotations

import abc
import importlib
import json
import multiprocessing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

import envfleet
from envfleet.bench.workloads import Workload, is_installed
from envfleet.kernels.registration import find_original, find_twin, is_kernel
from envfleet.natives import Native, find_native
from envfleet.options import Options
from envfleet.registry import BACKENDS
from envfleet.sources import Blueprint

BASELINE = "loop"


class Runner(Protocol):
    """N sub-environments that are built and reset."""

    def step(self, actions: Any) -> int:
        """Step once with a batch of actions; return the number of transitions.

        Rows in which a sub-environment was only reset (next-step autoreset) are not transitions and are not counted.
        """

    def close(self) -> None:
        """Close all sub-environments."""


class Contender(abc.ABC):
    """Way to step N sub-environments.

    Args:
        name: Name on the command line and in JSON.
        label: Name in tables and plots.

    Attributes:
        module: Module to import before the measurement.
    """

    module = "gymnasium"

    def __init__(self, name: str, label: str) -> None:
        self.name, self.label = name, label

    def absence(self, workload: Workload) -> str | None:
        """Return the reason why it cannot run this workload here, or `None`. Imports nothing."""
        package = self.module.partition(".")[0]
        return None if is_installed(package) else f"not installed: pip install {package.replace('_', '-')}"

    def line(self, workload: Workload, num_envs: int, workers: int | None) -> str:
        """Return the line of code that makes the fleet; empty for other libraries."""
        return ""

    @abc.abstractmethod
    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build the sub-environments and reset them once, where possible with seeds from 0.

        Args:
            workload: The environment.
            num_envs: Number of sub-environments.
            workers: Number of workers; `None` leaves it to the contender.
        """


class _LoopRunner:
    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self._envs = envs
        self._action_space = batch_space(envs[0].action_space, len(envs))

    def step(self, actions: Any) -> int:
        rows: Iterable[Any] = actions if isinstance(actions, np.ndarray) else iterate(self._action_space, actions)
        for env, action in zip(self._envs, rows, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(self._envs)

    def close(self) -> None:
        for env in self._envs:
            env.close()


class BareLoop(Contender):
    """Python loop over N environments that discards all results: the limit of one core."""

    def __init__(self) -> None:
        super().__init__(BASELINE, "bare Python loop")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments in this process."""
        envs = [workload.build(disable_env_checker=True) for _ in range(num_envs)]
        for index, env in enumerate(envs):
            env.reset(seed=index)
        return _LoopRunner(envs)


class VectorRunner:
    """Runner of any `gymnasium.vector.VectorEnv`, in the mode that it has.

    Args:
        envs: The vector environment.
        num_envs: Number of sub-environments.
        **reset: Arguments of `reset`, such as a seed.
    """

    def __init__(self, envs: Any, num_envs: int, **reset: Any) -> None:
        self._envs, self._num_envs = envs, num_envs
        # EnvPool does not report its mode, which is next-step.
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._has_reset_rows = mode == AutoresetMode.NEXT_STEP
        self._ended = 0
        envs.reset(**reset)

    def step(self, actions: Any) -> int:
        """Step once and return the number of transitions; resets of ended rows are not counted."""
        _, _, terminated, truncated, _ = self._envs.step(actions)
        transitions = self._num_envs - self._ended
        if self._has_reset_rows:
            self._ended = _count_ended(terminated, truncated)
        return transitions

    def close(self) -> None:
        """Close all."""
        self._envs.close()


def _count_ended(terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> int:
    """Count ended episodes. Counting bytes is faster, and this time is charged to the contender."""
    if truncated.tobytes().count(1):
        return int(np.count_nonzero(terminated | truncated))
    return terminated.tobytes().count(1)


class GymnasiumVector(Contender):
    """Gymnasium's vector environments through `gymnasium.make_vec`, with its defaults.

    Args:
        mode: `"sync"` or `"async"` (a process per environment, observations in shared memory).
    """

    def __init__(self, mode: str) -> None:
        super().__init__(f"gymnasium-{mode}", f"Gymnasium {mode.capitalize()}VectorEnv")
        self._mode = mode

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `gymnasium.make_vec`; `workers` is ignored."""
        envs = gymnasium.make_vec(workload.spec, num_envs=num_envs, vectorization_mode=self._mode)
        return VectorRunner(envs, num_envs, seed=0)


class EnvPool(Contender):
    """EnvPool's environments, which are rewritten in C++."""

    module = "envpool"
    # A list, because importing EnvPool takes a second and starts threads.
    _CLASSIC = "CartPole-v1 LunarLander-v3 Acrobot-v1 Pendulum-v1 MountainCar-v0 BipedalWalker-v3"
    _MUJOCO = (
        "Ant-v5 HalfCheetah-v5 Hopper-v5 Humanoid-v5 HumanoidStandup-v5 InvertedDoublePendulum-v5 InvertedPendulum-v5 "
        "Pusher-v5 Reacher-v5 Swimmer-v5 Walker2d-v5"
    )
    _REWRITTEN: Mapping[str, str] = {
        **{env_id: env_id for env_id in f"{_CLASSIC} {_MUJOCO}".split()},
        "envfleet-bench/Breakout-v5": "Breakout-v5",
        "envfleet-bench/DoorKey-6x6-v0": "MiniGrid-DoorKey-6x6-v0",  # its observations also contain the mission
    }

    def __init__(self) -> None:
        super().__init__("envpool", "EnvPool")

    def absence(self, workload: Workload) -> str | None:
        """Return the reason: EnvPool is not installed, or does not have the environment."""
        if self._find(workload) is None or workload.env_kwargs:
            return f"{workload.spec.id} is not among the environments that EnvPool has rewritten in C++"
        return super().absence(workload)

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `envpool.make_gymnasium` with a seed; `workers` becomes `num_threads`."""
        make = importlib.import_module(self.module).make_gymnasium
        threads = {} if workers is None else {"num_threads": min(workers, num_envs)}
        return VectorRunner(make(self._find(workload), num_envs=num_envs, seed=0, **threads), num_envs)

    def _find(self, workload: Workload) -> str | None:
        """Return EnvPool's id of the environment, or of the original of a kernel; `None` if it does not have it."""
        return self._REWRITTEN.get(find_original(workload.spec.id) or workload.spec.id)


class _Sb3Runner:
    def __init__(self, envs: Any) -> None:
        self._envs, self.close = envs, envs.close
        envs.seed(0)
        envs.reset()

    def step(self, actions: Any) -> int:
        return len(self._envs.step(actions)[1])  # same-step autoreset: every row is a transition


class StableBaselines3(Contender):
    """Stable-Baselines3's vector environments, without `Monitor`, which would make them slower.

    Args:
        mode: `"dummy"` (in this process) or `"subproc"` (a process per environment).
    """

    module = "stable_baselines3.common.vec_env"

    def __init__(self, mode: str) -> None:
        self._class = f"{mode.capitalize()}VecEnv"
        super().__init__(f"sb3-{mode}", f"SB3 {self._class}")

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Build N environments; `workers` is ignored."""
        # As for all contenders, the start is measured without imports: each worker would import torch for a second.
        multiprocessing.set_forkserver_preload([f"{self.module}.subproc_vec_env", Workload.__module__])
        make_all = getattr(importlib.import_module(self.module), self._class)
        return _Sb3Runner(make_all([workload.build] * num_envs))


def kernel_of(workload: Workload) -> EnvSpec | None:
    """Return the kernel that `backend="kernel"` runs for an environment, or `None`.

    This is the environment itself, or its compiled twin if the environment is built without arguments.
    """
    if is_kernel(workload.spec):
        return workload.spec
    twin = find_twin(workload.spec.id)
    return None if twin is None or workload.spec.kwargs else gymnasium.spec(twin)


class EnvFleet(Contender):
    """Fleet of this package.

    Args:
        backend: Backend of `envfleet.make`.
        options: More arguments of `envfleet.make`, such as `workers`.
        tag: Part of the name that distinguishes two fleets of one backend.
    """

    def __init__(self, backend: str, options: Mapping[str, Any] | None = None, tag: str = "") -> None:
        name = f"envfleet-{backend}-{tag}" if tag else f"envfleet-{backend}"
        super().__init__(name, f"envfleet {backend}" + (f" ({tag.replace('-', ' ')})" if tag else ""))
        self.backend, self.options = backend, options or {}
        self.module = {"kernel": "numba", "ray": "ray"}.get(backend, "envfleet")

    def absence(self, workload: Workload) -> str | None:
        """Return the reason: no kernel, or numba or Ray is not installed."""
        if self.backend == "kernel" and kernel_of(workload) is None:
            suffix = " that takes arguments" if workload.spec.kwargs else ""
            return f"{workload.spec.id} is not a kernel and lacks a compiled twin{suffix} (see `envfleet envs`)"
        return super().absence(workload)

    def line(self, workload: Workload, num_envs: int, workers: int | None) -> str:
        """Return the call of `envfleet.make`; of a compiled twin by the id of the twin."""
        options = self._options(workload, num_envs, workers)
        if self.backend == "auto":  # the default
            del options["backend"]
        arguments = ", ".join(
            f"{name}={json.dumps(value)}" for name, value in {"num_envs": num_envs, **options}.items()
        )
        kernel = kernel_of(workload) if self.backend == "kernel" else None
        if kernel is None or kernel.id == workload.spec.id:
            return workload.make_line(arguments)
        return f"envfleet.make({json.dumps(kernel.id)}, {arguments})"

    def _options(self, workload: Workload, num_envs: int, workers: int | None) -> dict[str, Any]:
        options: dict[str, Any] = {"backend": self.backend, **self.options}
        if self.backend == "native":
            native = find_native(Blueprint(workload.spec, num_envs, Options(), {}))
            if isinstance(native, Native) and native.kind == "vector":  # which starts threads
                workers = None
        if workers is not None and self.backend != "serial":
            options.setdefault("workers", min(workers, num_envs))
        return options

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> Runner:
        """Call `envfleet.make`."""
        options = self._options(workload, num_envs, workers)
        source = (kernel_of(workload) if self.backend == "kernel" else None) or workload.spec
        return VectorRunner(envfleet.make(source, num_envs, **options), num_envs, seed=0)


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
    """Return whether the contender of this name is a fleet of this package."""
    return name.startswith("envfleet-")
