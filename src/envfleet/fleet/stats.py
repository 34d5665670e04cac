"""Plans (distribution of sub-environments over workers) and statistics of the time spent in each part."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plan:
    """Distribution of a fleet's sub-environments over workers, with the reason.

    Attributes:
        backend: `"serial"`, `"process"`, `"kernel"` and so on.
        num_workers: Threads, processes, actors or services.
        envs_per_worker: Sub-environments of each worker.
        reason: Reason for the choice.
        trials: Measurements of `"auto"`: name and sub-environment steps per second.
    """

    backend: str
    num_workers: int
    envs_per_worker: tuple[int, ...]
    reason: str
    trials: tuple[tuple[str, float], ...] = ()

    def describe(self) -> str:
        """Return a short description such as `process, 2 workers × 4`."""
        few, many = min(self.envs_per_worker), max(self.envs_per_worker)
        each = str(few) if few == many else f"{few}–{many}"
        if self.num_workers == 1:
            return self.backend if self.backend in ("serial", "kernel") else f"{self.backend}, 1 worker × {each}"
        return f"{self.backend}, {self.num_workers} workers × {each}"


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """Statistics of one worker.

    Attributes:
        index: Index of the worker.
        env_indices: Indices of its sub-environments.
        pid: Id of its process.
        steps: Total steps of its sub-environments.
        busy_s: Seconds spent stepping.
        restarts: Number of times that it or one of its sub-environments was replaced.
        place: Short description of its machine and of the transport.
        stack: Its Python stack, if requested.
    """

    index: int
    env_indices: range
    pid: int
    steps: int
    busy_s: float
    restarts: int
    place: str
    stack: str = ""


@dataclasses.dataclass(frozen=True)
class FleetStats:
    """Statistics of a fleet since it was made, with the time spent in each part.

    Attributes:
        steps: Total steps of all sub-environments.
        steps_per_s: Total steps per second spent in calls that step.
        step_s: Seconds spent stepping sub-environments in this thread.
        wait_s: Seconds spent waiting for workers.
        copy_s: Seconds spent checking actions, copying results and building infos.
        busy_s: Seconds spent stepping sub-environments, summed over workers.
        restarts: Number of replaced workers and sub-environments.
        workers: Statistics per worker.
    """

    steps: int
    steps_per_s: float
    step_s: float
    wait_s: float
    copy_s: float
    busy_s: float
    restarts: int
    workers: tuple[WorkerStats, ...]
