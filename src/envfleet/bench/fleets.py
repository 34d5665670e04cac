"""Fleets of this package as contenders."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from numpy.typing import NDArray

from envfleet.bench.peers import Runner, VectorRunner
from envfleet.bench.workloads import Workload, is_installed
from envfleet.kernels.registration import find_twin, is_kernel


class _BatchRunner:
    """A fleet stepped asynchronously: act on whoever is ready, `batch_size` at a time."""

    def __init__(self, fleet: Any) -> None:
        self._fleet = fleet
        self._ready: NDArray[np.int64] | None = None
        self._has_ended = np.zeros(fleet.num_envs, np.bool_)

    def reset(self, seed: int) -> None:
        self._fleet.reset(seed=seed)
        self._has_ended[:] = False
        self._ready = None

    def step(self, actions: Any) -> int:
        if self._ready is None:
            self._fleet.send(actions)
        else:
            self._fleet.send(actions[self._ready], env_indices=self._ready)
        batch = self._fleet.recv()
        ready = np.asarray(batch.env_indices)
        transitions = len(ready) - int(np.count_nonzero(self._has_ended[ready]))
        self._has_ended[ready] = batch.terminated | batch.truncated
        self._ready = ready
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


@dataclasses.dataclass(frozen=True)
class EnvFleet:
    """A fleet of this package.

    Args:
        backend: `"serial"`, `"thread"`, `"process"`, `"ray"`, `"auto"` or `"kernel"`.
        options: More arguments of `envfleet.make`, such as `batch_size`.
        tag: Tells apart two fleets of one backend; part of the name.
    """

    backend: str
    options: tuple[tuple[str, Any], ...] = ()
    tag: str = ""
    packages: tuple[str, ...] = ("envfleet",)
    modules: tuple[str, ...] = ("envfleet",)

    @property
    def name(self) -> str:
        """`envfleet-<backend>`, and the tag if there is one."""
        return "-".join(part for part in ("envfleet", self.backend, self.tag) if part)

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"envfleet {self.backend}" + (f" ({self.tag.replace('-', ' ')})" if self.tag else "")

    def absence(self, workload: Workload) -> str | None:
        """Say why it cannot run: compiled code needs a kernel, and numba; Ray needs to be installed."""
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
        make: Callable[..., Any] = importlib.import_module("envfleet").make
        options = dict(self.options)
        if workers is not None and self.backend != "serial" and "envs_per_worker" not in options:
            options.setdefault("workers", min(workers, num_envs))
        source = kernel_of(workload) if self.backend == "kernel" else workload.spec
        fleet = make(source, num_envs, backend=self.backend, **options)
        is_batched = options.get("batch_size") not in (None, num_envs)
        return _BatchRunner(fleet) if is_batched else VectorRunner(fleet, num_envs)
