"""Run contenders against each other: each in its own process, all in every round, in a new order each time."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from envfleet.bench import measure
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.contenders import Contender
from envfleet.bench.results import ContenderResult, Report, Run, describe_machine
from envfleet.bench.workloads import Workload
from envfleet.machine import whole_cores

T = TypeVar("T")
Progress = Callable[[str, float], None]
"""Called with what goes on and the fraction (0 to 1) of the run that is done."""

_PACKAGES = ("stable-baselines3", "torch", "envpool")
_START_TIMEOUT_S = 120.0
_GRACE_S = 60.0  # a measurement may outlast its time by this much: one step can be slow, and so can a busy machine
_CLOSE_TIMEOUT_S = 30.0


def in_rounds(contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Yield every contender once per round, in a new random order in each round.

    Measuring in this order exposes all contenders to the same load of the machine, so ratios within a round hold better
    than the figures themselves.

    Args:
        contenders: Items to yield.
        rounds: Number of rounds.

    Yields:
        Number of the round, from 0, and a contender.
    """
    order = random.Random(0)
    for index in range(rounds):
        for contender in order.sample(contenders, len(contenders)):
            yield index, contender


def require_buildable(workload: Workload) -> None:
    """Check that one environment can be built, by doing it in a child process.

    Raises:
        ChildFailed: It cannot; the message says what was raised, such as which package is missing.
    """
    with Child(f"{workload.spec.id} cannot be built here") as child:
        try:
            child.call(measure.build_one, _START_TIMEOUT_S, workload)
        except ChildFailed as error:
            raise ChildFailed(
                f"{str(error).rstrip('.')}. Install what it needs, or see that gymnasium.make builds one."
            ) from error


@dataclasses.dataclass(frozen=True)
class Contest:
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


def run_contests(
    contests: Sequence[Contest],
    seconds: float,
    rounds: int,
    progress: Progress,
    on_run: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Make several runs one after the other.

    Args:
        contests: The runs to make.
        seconds: Length of one measurement.
        rounds: Measurements per contender; in each round all contenders are measured in a new random order.
        progress: Told what goes on and which fraction is done.
        on_run: Given the report so far after every run.
    """
    started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    report = Report(started_at, describe_machine(_PACKAGES), seconds, ())
    for index, contest in enumerate(contests):

        def tell(text: str, fraction: float, done: int = index) -> None:
            progress(text, (done + fraction) / len(contests))

        report = dataclasses.replace(report, runs=(*report.runs, run_contest(contest, seconds, rounds, tell)))
        on_run(report)
    return report


def run_contest(contest: Contest, seconds: float, rounds: int, progress: Progress) -> Run:
    """Make one run. A contender that fails is reported as such and does not end it."""
    seats = [_Seat(contender, contest) for contender in contest.contenders]
    where = f"{contest.workload.name} × {contest.num_envs}"
    total, done = len(seats) * (rounds + 1), 0
    try:
        progress(f"{where}: importing", 0.0)
        with concurrent.futures.ThreadPoolExecutor(whole_cores()) as pool:  # nothing is measured yet
            list(pool.map(_Seat.prepare, seats))
        for seat in seats:
            progress(f"{where}: starting {seat.contender.label}", done / total)
            seat.start()
            done += 1
        for index, seat in in_rounds(seats, rounds):
            progress(f"{where}, round {index + 1} of {rounds}: {seat.contender.label}", done / total)
            seat.measure(seconds)
            done += 1
        for seat in seats:
            seat.close()
    finally:
        for seat in seats:
            seat.kill()
    progress(f"{where}: done", 1.0)
    entries = tuple(seat.entry for seat in seats)
    return Run(contest.workload.name, contest.workload.spec.id, contest.num_envs, contest.workers, entries)


class _Seat:
    """One contender's place in a run: its child process, and its results so far.

    Attributes:
        contender: Who it is.
        entry: The results.
    """

    def __init__(self, contender: Contender, contest: Contest) -> None:
        self.contender, self._contest = contender, contest
        self.entry = ContenderResult((), contender.name, contender.label)
        self._child: Child | None = None

    def prepare(self) -> None:
        absence = self.contender.absence(self._contest.workload)
        if absence is not None:
            self.entry = dataclasses.replace(self.entry, problem=absence)
            return
        self._child = Child(self.contender.label)
        self._call(measure.import_module, _START_TIMEOUT_S, self.contender)

    def start(self) -> None:
        contest = self._contest
        arguments = self.contender, contest.workload, contest.num_envs, contest.workers
        opening = self._call(measure.open_runner, _START_TIMEOUT_S, "run", *arguments)
        if opening is not None:
            self.entry = dataclasses.replace(self.entry, start_s=opening[0], memory_bytes=opening[1])

    def measure(self, seconds: float) -> None:
        rate = self._call(measure.step_runner, seconds + _GRACE_S, "run", seconds)
        if rate is not None:
            self.entry = dataclasses.replace(self.entry, rates=(*self.entry.rates, rate))

    def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ChildFailed):  # its figures stand
                self._child.call(measure.close_others, _CLOSE_TIMEOUT_S, ())

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _call(self, function: Callable[..., T], timeout_s: float, *args: object) -> T | None:
        """Call a function in the child; `None` if there is no child any more, or the call fails."""
        if self._child is None:
            return None
        try:
            return self._child.call(function, timeout_s, *args)
        except ChildFailed as error:
            problem = str(error).removeprefix(f"{self.contender.label}: ")
            self.entry = dataclasses.replace(self.entry, problem=problem, rates=())
            self.kill()
            return None
