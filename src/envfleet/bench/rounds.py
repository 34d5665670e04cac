"""Run contenders against each other: each in its own process, all in every round, in a new order each time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import random
from collections.abc import Callable, Iterator, Sequence

from envfleet.bench import measure
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.machine import describe_machine, require_psutil
from envfleet.bench.measure import Opening, Sample
from envfleet.bench.peers import Contender
from envfleet.bench.results import Entry, Report, Run, Settings
from envfleet.bench.workloads import Workload
from envfleet.core.cores import whole_cores

Progress = Callable[[str, float], None]
"""Told what goes on and which fraction (0 to 1) of the run is done."""

_GRACE_S = 60.0  # a measurement may outlast its time by this much: one step can be slow, and so can a busy machine
_CLOSE_TIMEOUT_S = 30.0
_TELLING_SIZE = 8
_MEMORY_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Case:
    """One run to make.

    Attributes:
        workload: What is stepped.
        num_envs: How many sub-environments.
        workers: Wanted number of workers, or `None`.
        contenders: Who takes part.
        reasons: Contenders to leave out, by name, and why.
    """

    workload: Workload
    num_envs: int
    workers: int | None
    contenders: Sequence[Contender]
    reasons: dict[str, str] = dataclasses.field(default_factory=dict)


def run_cases(
    cases: Sequence[Case], settings: Settings, progress: Progress, on_run: Callable[[Report], None] | None = None
) -> Report:
    """Make several runs one after the other; a later one leaves out who proved hopeless in an earlier one.

    Args:
        cases: The runs to make. Rising numbers of sub-environments let hopeless contenders be recognised.
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

        reasons = {**_hopeless(case, report, settings.start_timeout_s), **case.reasons}
        run = run_case(dataclasses.replace(case, reasons=reasons), settings, tell)
        report = dataclasses.replace(report, runs=(*report.runs, run))
        if on_run is not None:
            on_run(report)
    return report


def _hopeless(case: Case, report: Report, limit_s: float) -> dict[str, str]:
    """Tell who would not start in time or would fill the memory, going by smaller fleets in earlier runs."""
    free_bytes = require_psutil().virtual_memory().available
    reasons = {}
    for contender in case.contenders:
        found = [(run.num_envs, entry) for run in report.runs if (entry := run.find(contender.name))]
        # A few sub-environments say little: imports and a first process are most of what they cost.
        known = [(count, entry) for count, entry in found if _TELLING_SIZE <= count < case.num_envs]
        pace_s = min((entry.start_s / count for count, entry in known if entry.start_s), default=0.0)
        each_bytes = min((entry.memory_bytes / count for count, entry in known if entry.memory_bytes), default=0.0)
        if pace_s * case.num_envs > limit_s:
            reasons[contender.name] = (
                f"would take about {pace_s * case.num_envs:.0f} s to start {case.num_envs} sub-environments, going by "
                f"{pace_s:.1f} s each with fewer"
            )
        elif each_bytes * case.num_envs > _MEMORY_SHARE * free_bytes:
            reasons[contender.name] = (
                f"would take about {each_bytes * case.num_envs / 1e9:.0f} GB for {case.num_envs} sub-environments, "
                f"going by {each_bytes / 1e6:.0f} MB each with fewer; {free_bytes / 1e9:.0f} GB are free"
            )
    return reasons


def run_case(case: Case, settings: Settings, progress: Progress) -> Run:
    """Make one run. A contender that fails is reported as such and does not end it."""
    seats = [_Seat(contender, case) for contender in case.contenders]
    order = random.Random(settings.seed)
    total = len(seats) * (settings.rounds + 1) + 1
    done = 0
    try:
        progress(f"{case.workload.name} × {case.num_envs}: importing", 0.0)
        with concurrent.futures.ThreadPoolExecutor(whole_cores()) as pool:  # nothing is measured yet
            list(pool.map(lambda seat: seat.prepare(settings), seats))
        for seat in seats:
            progress(f"{case.workload.name} × {case.num_envs}: starting {seat.contender.label}", done / total)
            seat.start(settings)
            done += 1
        for round_index in range(settings.rounds):
            for seat in order.sample(seats, len(seats)):
                where = f"{case.workload.name} × {case.num_envs}, round {round_index + 1} of {settings.rounds}"
                progress(f"{where}: {seat.contender.label}", done / total)
                seat.measure(settings)
                done += 1
        progress(f"{case.workload.name} × {case.num_envs}: watching them idle, closing", done / total)
        with concurrent.futures.ThreadPoolExecutor(max(1, len(seats))) as pool:  # idle ones do not disturb each other
            list(pool.map(lambda seat: seat.watch(settings), seats))
        for seat in seats:
            seat.close()
    finally:
        for seat in seats:
            seat.kill()
    progress(f"{case.workload.name} × {case.num_envs}: done", 1.0)
    entries = tuple(seat.entry() for seat in seats)
    return Run(case.workload.name, case.workload.spec.id, case.num_envs, case.workers, entries)


class _Seat:
    """One contender's place in a run: its child process and what it gave so far."""

    def __init__(self, contender: Contender, case: Case) -> None:
        self.contender = contender
        self._case = case
        self._child: Child | None = None
        self._status = "ok"
        self._reason = ""
        self._opening: Opening | None = None
        self._idle_cpu: float | None = None
        self._close_s: float | None = None
        self._samples: list[Sample] = []

    def prepare(self, settings: Settings) -> None:
        absence = self._case.reasons.get(self.contender.name) or self.contender.absence(self._case.workload)
        if absence is not None:
            self._status, self._reason = "absent", absence
            return
        with self._catching():
            self._child = Child(self.contender.label)
            self._child.call(measure.import_modules, settings.start_timeout_s, self.contender)

    def start(self, settings: Settings) -> None:
        if self._child is None:
            return
        with self._catching():
            case = self._case
            self._opening = self._child.call(
                measure.open_runner,
                settings.start_timeout_s,
                "run",
                self.contender,
                case.workload,
                case.num_envs,
                case.workers,
            )

    def measure(self, settings: Settings) -> None:
        if self._child is None:
            return
        timeout_s = settings.seconds + settings.warm_up_s + _GRACE_S
        with self._catching():
            sample = self._child.call(measure.step_runner, timeout_s, "run", settings.seconds, settings.warm_up_s)
            self._samples.append(sample)

    def watch(self, settings: Settings) -> None:
        if self._child is None or settings.idle_s <= 0:
            return
        with self._catching():
            self._idle_cpu = self._child.call(measure.idle_runner, settings.idle_s + _GRACE_S, settings.idle_s)

    def close(self) -> None:
        if self._child is None:
            return
        with contextlib.suppress(ChildFailed):  # its figures stand; that close() hung or raised shows as no close time
            self._close_s = self._child.call(measure.close_runner, _CLOSE_TIMEOUT_S, "run")
        self.kill()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def entry(self) -> Entry:
        opening = self._opening
        return Entry(
            self.contender.name,
            self.contender.label,
            self._status,
            self._reason,
            opening.start_s if opening else None,
            self._close_s,
            opening.memory_bytes if opening else None,
            self._idle_cpu,
            tuple(self._samples) if self._status == "ok" else (),
        )

    @contextlib.contextmanager
    def _catching(self) -> Iterator[None]:
        try:
            yield
        except ChildFailed as error:
            self._status, self._reason = "failed", str(error).removeprefix(f"{self.contender.label}: ")
            self.kill()
