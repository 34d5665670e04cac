"""Plans (distribution of sub-environments over workers) and statistics of the time spent in each part."""

from __future__ import annotations

import dataclasses

from envfleet.html import html_table


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

    def __str__(self) -> str:
        lines = [f"{self.describe()}: {self.reason}"]
        lines += [f"  {name:<10} {rate:>12,.0f} steps/s" for name, rate in self.trials]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [("distribution", self.describe()), ("reason", self.reason)]
        rows += [(f"measured: {name}", f"{rate:,.0f} steps/s") for name, rate in self.trials]
        return html_table(rows, title="Plan")


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

    def __str__(self) -> str:
        rows = [self._HEADINGS, *self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)).rstrip() for row in rows] if self.workers else []
        return "\n".join([f"{self._totals()}", *lines])

    def _repr_html_(self) -> str:
        return html_table(self._rows(), self._HEADINGS, self._totals())

    _HEADINGS = ("worker", "sub-envs", "steps", "busy s", "restarts", "pid", "place")

    def _totals(self) -> str:
        times = f"stepping {self.step_s:.2f} s, waiting {self.wait_s:.2f} s, copying {self.copy_s:.2f} s"
        return f"{self.steps:,} steps, {self.steps_per_s:,.0f} steps/s, {self.restarts} restarts: {times}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                str(one.index),
                _span(one.env_indices),
                f"{one.steps:,}",
                f"{one.busy_s:.2f}",
                str(one.restarts),
                str(one.pid),
                one.place,
            )
            for one in self.workers
        ]


def _span(indices: range) -> str:
    return f"{indices.start}–{indices.stop - 1}" if len(indices) > 1 else f"{indices.start}" if indices else "none"
