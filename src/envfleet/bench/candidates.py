"""The fleets that `envfleet tune` chooses between."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from envfleet.bench.fleets import EnvFleet
from envfleet.bench.report import count
from envfleet.errors import InvalidArgument

_ENVS_PER_WORKER = (1, 4, 16, 64)
_MOST_ENVS = 256  # more is seldom wanted for training, and 256 environments take long to start


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way of building a fleet.

    Attributes:
        backend: `"serial"`, `"thread"` or `"process"`.
        num_envs: Number of sub-environments.
        workers: Number of workers, 1 for `"serial"`.
        batch_size: Rows that one `recv` waits for; `num_envs` is the ordinary synchronous step.
    """

    backend: str
    num_envs: int
    workers: int
    batch_size: int

    @property
    def envs_per_worker(self) -> int:
        """Sub-environments of the fullest worker."""
        return math.ceil(self.num_envs / self.workers)

    @property
    def is_batched(self) -> bool:
        """Whether it acts on whoever is ready and does not wait for all."""
        return self.batch_size < self.num_envs

    @property
    def key(self) -> str:
        """A short unique name."""
        return f"{self.backend}-{self.num_envs}-{self.workers}-{self.batch_size}"

    def contender(self) -> EnvFleet:
        """Make what `measure.open_runner` builds."""
        options: list[tuple[str, object]] = []
        if self.backend != "serial":
            options.append(("workers", self.workers))
        if self.is_batched:
            options.append(("batch_size", self.batch_size))
        return EnvFleet(self.backend, tuple(options), tag=self.key)

    def describe(self) -> str:
        """Say in words what it is."""
        if self.backend == "serial":
            return f"serial: {count(self.num_envs, 'sub-environment')} in this process"
        text = f"{self.backend}: {count(self.num_envs, 'sub-environment')} on {count(self.workers, 'worker')}"
        return text + (f", {self.batch_size} at a time" if self.is_batched else "")

    def arguments(self) -> str:
        """Write what follows the environment in the call of `envfleet.make` that builds it."""
        parts = [f"num_envs={self.num_envs}", f'backend="{self.backend}"']
        if self.backend != "serial":
            parts.append(f"workers={self.workers}")
        if self.is_batched:
            parts.append(f"batch_size={self.batch_size}")
        return ", ".join(parts)


def search_space(
    cores: int, num_envs: int | None = None, backends: Sequence[str] = ("serial", "thread", "process")
) -> list[Candidate]:
    """List the fleets worth trying, the most promising first.

    Args:
        cores: Cores that may be used at once.
        num_envs: Number of sub-environments, or `None` to search over it too.
        backends: Which backends to try.

    Raises:
        InvalidArgument: `num_envs` is not positive or a backend is unknown.
    """
    if num_envs is not None and num_envs < 1:
        raise InvalidArgument(
            f"num_envs is {num_envs}, expected at least 1: pass how many you train with, or leave it out."
        )
    unknown = [name for name in backends if name not in {"serial", "thread", "process"}]
    if unknown:
        raise InvalidArgument(f"backends has {unknown}, expected some of serial, thread, process: remove the others.")
    found: dict[Candidate, None] = {}
    for backend in backends:
        for workers in _worker_counts(backend, cores):
            for total in [num_envs] if num_envs is not None else _totals(backend, workers, cores):
                for candidate in _batchings(backend, total, min(workers, total)):
                    found[candidate] = None
    return sorted(found, key=lambda candidate: _prior(candidate, cores))


def _worker_counts(backend: str, cores: int) -> list[int]:
    if backend == "serial":
        return [1]
    if backend == "thread":
        return [max(2, cores)]
    # One worker alone is a loop with a detour, unless there is one core: then all of them are.
    return sorted({count for count in (cores // 2, cores - 1, cores, 2 * cores) if count > 1} or {1})


def _totals(backend: str, workers: int, cores: int) -> list[int]:
    per_worker = [envs * cores for envs in _ENVS_PER_WORKER] if backend == "serial" else _ENVS_PER_WORKER
    return sorted({min(_MOST_ENVS, envs * workers) for envs in per_worker})


def _batchings(backend: str, num_envs: int, workers: int) -> list[Candidate]:
    """Wait for all; and, where there are several workers, for about half of them."""
    sizes = [num_envs]
    if backend == "process" and workers > 1:
        sizes.append(max(1, math.ceil(num_envs / workers) * (workers // 2)))
    return [Candidate(backend, num_envs, workers, size) for size in dict.fromkeys(sizes)]


def _prior(candidate: Candidate, cores: int) -> tuple[float, ...]:
    """Sort key: what is usually good comes first, since the time may not suffice for all."""
    is_usual = candidate.backend == "serial" or candidate.workers == cores
    distance = abs(math.log2(candidate.num_envs / (8 * cores)))
    return (candidate.is_batched, not is_usual, candidate.backend == "thread", distance)
