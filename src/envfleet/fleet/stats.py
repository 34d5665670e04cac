"""Plans and statistics: how sub-environments are spread over workers, and where the time went."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plan:
    """Distribution of a fleet's sub-environments over workers, with the reason.

    Attributes:
        backend: `"serial"`, `"process"`, `"kernel"` and so on.
        num_workers: Threads, processes, actors or services.
        envs_per_worker: Sub-environments of each worker.
        reason: Why this plan was chosen.
        trials: With `"auto"`, what was measured: name and sub-environment steps per second.
    """

    backend: str
    num_workers: int
    envs_per_worker: tuple[int, ...]
    reason: str
    trials: tuple[tuple[str, float], ...] = ()

    def describe(self) -> str:
        """Return the plan in a few words, such as `process, 2 workers × 4`."""
        few, many = min(self.envs_per_worker), max(self.envs_per_worker)
        each = str(few) if few == many else f"{few}–{many}"
        if self.num_workers == 1:
            return self.backend if self.backend in ("serial", "kernel") else f"{self.backend}, 1 worker × {each}"
        return f"{self.backend}, {self.num_workers} workers × {each}"


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """Statistics of one worker.

    Attributes:
        index: Number of the worker.
        env_indices: Its sub-environments.
        pid: Process in which it runs.
        steps: Steps of its sub-environments, all together.
        busy_s: Seconds spent stepping.
        restarts: How often it, or a sub-environment of it, was replaced.
        place: Where it runs and how data reaches it, in a few words.
        stack: Its Python stack, if asked for.
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
        steps: Steps of all sub-environments.
        steps_per_s: The same per second spent in the fleet's calls that step.
        step_s: Seconds in which sub-environments stepped in this thread.
        wait_s: Seconds of waiting for workers.
        copy_s: Seconds of checking actions, copying results and building infos.
        busy_s: Seconds in which sub-environments stepped, summed over workers.
        restarts: Workers and sub-environments that were replaced.
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
