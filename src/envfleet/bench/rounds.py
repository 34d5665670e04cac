"""Run contenders against each other: each in its own process, all in every round, in a new order each time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from envfleet.bench import measure
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.contenders import Contender
from envfleet.bench.measure import Sample
from envfleet.bench.results import Entry, Report, Run, Settings, describe_machine
from envfleet.bench.workloads import Workload
from envfleet.machine import whole_cores

T = TypeVar("T")
Progress = Callable[[str, float], None]
"""Called with what goes on and the fraction (0 to 1) of the run that is done."""

_GRACE_S = 60.0  # a measurement may outlast its time by this much: one step can be slow, and so can a busy machine
_CLOSE_TIMEOUT_S = 30.0


@dataclasses.dataclass(frozen=True)
class Case:
    """One run to make.

    Attributes:
        workload: What is stepped.
        num_envs: How many sub-environments.
        workers: Wanted number of workers, or `None`.
        contenders: Who takes part.
    """

    workload: Workload
    num_envs: int
    workers: int | None
    contenders: Sequence[Contender]


def run_cases(
    cases: Sequence[Case], settings: Settings, progress: Progress, on_run: Callable[[Report], None] | None = None
) -> Report:
    """Make several runs one after the other.

    Args:
        cases: The runs to make.
        settings: How long and how often.
        progress: Told what goes on and which fraction is done.
        on_run: Given the report so far after every run.
    """
    started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    packages = [name for case in cases for contender in case.contenders for name in contender.packages]
    report = Report(started_at, describe_machine(packages), settings, ())
    for index, case in enumerate(cases):

        def tell(text: str, fraction: float, done: int = index) -> None:
            progress(text, (done + fraction) / len(cases))

        report = dataclasses.replace(report, runs=(*report.runs, run_case(case, settings, tell)))
        if on_run is not None:
            on_run(report)
    return report


def run_case(case: Case, settings: Settings, progress: Progress) -> Run:
    """Make one run. A contender that fails is reported as such and does not end it."""
    seats, where = [_Seat(contender, case) for contender in case.contenders], f"{case.workload.name} × {case.num_envs}"
    order, total, done = random.Random(settings.seed), len(case.contenders) * (settings.rounds + 1) + 1, 0
    try:
        progress(f"{where}: importing", 0.0)
        with concurrent.futures.ThreadPoolExecutor(whole_cores()) as pool:  # nothing is measured yet
            list(pool.map(lambda seat: seat.prepare(settings), seats))
        for seat in seats:
            progress(f"{where}: starting {seat.contender.label}", done / total)
            seat.start(settings)
            done += 1
        for index in range(settings.rounds):
            for seat in order.sample(seats, len(seats)):
                progress(f"{where}, round {index + 1} of {settings.rounds}: {seat.contender.label}", done / total)
                seat.measure(settings)
                done += 1
        progress(f"{where}: watching them idle, closing", done / total)
        with concurrent.futures.ThreadPoolExecutor(max(1, len(seats))) as pool:  # idle ones do not disturb each other
            list(pool.map(lambda seat: seat.watch(settings), seats))
        for seat in seats:
            seat.close()
    finally:
        for seat in seats:
            seat.kill()
    progress(f"{where}: done", 1.0)
    entries = tuple(seat.entry() for seat in seats)
    return Run(case.workload.name, case.workload.spec.id, case.num_envs, case.workers, entries)


class _Seat:
    """One contender's place in a run: its child process and what it gave so far."""

    def __init__(self, contender: Contender, case: Case) -> None:
        self.contender, self._case = contender, case
        self._child: Child | None = None
        self._found: dict[str, Any] = {"status": "ok"}
        self._samples: list[Sample] = []

    def prepare(self, settings: Settings) -> None:
        absence = self.contender.absence(self._case.workload)
        if absence is not None:
            self._found = {"status": "absent", "reason": absence}
            return
        self._child = Child(self.contender.label)
        self._call(measure.import_modules, settings.start_timeout_s, self.contender)

    def start(self, settings: Settings) -> None:
        case, timeout_s = self._case, settings.start_timeout_s
        opening = self._call(
            measure.open_runner, timeout_s, "run", self.contender, case.workload, case.num_envs, case.workers
        )
        if opening is not None:
            self._found["start_s"], self._found["memory_bytes"] = opening

    def measure(self, settings: Settings) -> None:
        timeout_s = settings.seconds + settings.warm_up_s + _GRACE_S
        sample = self._call(measure.step_runner, timeout_s, "run", settings.seconds, settings.warm_up_s)
        if sample is not None:
            self._samples.append(sample)

    def watch(self, settings: Settings) -> None:
        if settings.idle_s > 0:
            self._found["idle_cpu"] = self._call(measure.idle_runner, settings.idle_s + _GRACE_S, settings.idle_s)

    def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ChildFailed):  # its figures stand; no close time says that close() hung or raised
                self._found["close_s"] = self._child.call(measure.close_runner, _CLOSE_TIMEOUT_S, "run")
            self.kill()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def entry(self) -> Entry:
        samples = tuple(self._samples) if self._found["status"] == "ok" else ()
        return Entry(self.contender.name, self.contender.label, **self._found, samples=samples)

    def _call(self, function: Callable[..., T], timeout_s: float, *args: Any) -> T | None:
        """Call a function in the child; `None` if there is none any more, or it fails."""
        if self._child is None:
            return None
        try:
            return self._child.call(function, timeout_s, *args)
        except ChildFailed as error:
            reason = str(error).removeprefix(f"{self.contender.label}: ")
            self._found |= {"status": "failed", "reason": reason}
            self.kill()
            return None
