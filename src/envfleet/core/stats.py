"""What a fleet tells about itself: its plan, and where its time goes."""

from __future__ import annotations

import dataclasses
import time
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a fleet's sub-environments are spread, and why.

    Attributes:
        backend: `"serial"`, `"thread"`, `"process"` or `"ray"`.
        num_workers: Workers; 1 for `"serial"`.
        envs_per_worker: Sub-environments of each worker, in order.
        reason: Why this plan, in one sentence.
        start_method: How worker processes start, or `None`.
        trials: What `backend="auto"` measured: (description, sub-environment steps per second).
    """

    backend: str
    num_workers: int
    envs_per_worker: tuple[int, ...]
    reason: str
    start_method: Literal["forkserver", "spawn", "fork"] | None = None
    trials: tuple[tuple[str, float], ...] = ()

    def describe(self) -> str:
        """Say the plan in a few words: `process, 2 workers × 4`."""
        if self.num_workers == 1:
            return self.backend if self.backend == "serial" else f"{self.backend}, 1 worker × {self.envs_per_worker[0]}"
        few, many = min(self.envs_per_worker), max(self.envs_per_worker)
        each = str(few) if few == many else f"{few}–{many}"
        return f"{self.backend}, {self.num_workers} workers × {each}"


@dataclasses.dataclass
class Clock:
    """Where a fleet's own time went so far; `with clock:` counts what is done meanwhile as its own.

    Attributes:
        steps: Sub-environment steps.
        wait_s: Seconds waiting for workers, in any call.
        own_s: Seconds inside the calls that step, less the waiting.
    """

    steps: int = 0
    wait_s: float = 0.0
    own_s: float = 0.0

    def __enter__(self) -> None:
        """Begin a call, or a part of one, that steps."""
        self._start_s = time.perf_counter() - self.wait_s

    def __exit__(self, *error: object) -> None:
        """Count the time since then."""
        self.own_s += time.perf_counter() - self.wait_s - self._start_s


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """What one worker did.

    Attributes:
        index: Its index.
        env_indices: Its sub-environments.
        pid: Its process.
        steps: Sub-environment steps it took.
        busy_s: Seconds it spent stepping.
        restarts: How often it was replaced, because it was lost or to recycle it.
        place: Where it runs, and which way data takes to it.
    """

    index: int
    env_indices: range
    pid: int
    steps: int
    busy_s: float
    restarts: int
    place: str


@dataclasses.dataclass(frozen=True)
class FleetStats:
    """What a fleet did since it was made, and where the time went.

    Of a part of a fleet: what it did, and what its workers did, which may be those of its neighbours, too.

    Attributes:
        steps: Sub-environment steps taken.
        steps_per_s: Those per second of `step_s + wait_s + copy_s`, the time spent inside the fleet's calls.
        step_s: Seconds spent stepping in the caller's own thread (`serial`).
        wait_s: Seconds spent waiting for workers.
        copy_s: Seconds of the fleet's own work in steps: checking, handing on and copying actions and results.
        busy_s: Seconds spent stepping, summed over workers.
        restarts: Sub-environments and workers that failed and were rebuilt.
        workers: One entry per worker.
    """

    steps: int
    steps_per_s: float
    step_s: float
    wait_s: float
    copy_s: float
    busy_s: float
    restarts: int
    workers: tuple[WorkerStats, ...]
