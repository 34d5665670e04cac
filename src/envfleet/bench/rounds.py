"""Runs of contenders in rounds: each in its own process, all in every round, in a new random order."""

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
from envfleet.fleet.evaluating import Progress
from envfleet.machine import whole_cores

T = TypeVar("T")

_PACKAGES = ("stable-baselines3", "torch", "envpool")
_START_TIMEOUT_S = 120.0
_GRACE_S = 60.0  # a measurement may exceed its time by this much, since a step or the machine can be slow
_CLOSE_TIMEOUT_S = 30.0
_ALL_S = 24.0  # of measurements, each of which warms up for a quarter of its time


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
    """Check in a child process that one environment can be built.

    Raises:
        ChildFailed: It cannot be built; the message says why, such as a missing package.
    """
    with Child(f"{workload.spec.id} cannot be built here") as child:
        try:
            child.call(measure.build_one, _START_TIMEOUT_S, workload)
        except ChildFailed as error:
            raise ChildFailed(
                f"{str(error).rstrip('.')}. Install its packages, or check that gymnasium.make builds one."
            ) from error


@dataclasses.dataclass(frozen=True)
class Contest:
    """Plan of a run.

    Attributes:
        workload: Environment to step.
        num_envs: Number of sub-environments.
        workers: Number of workers, or `None` to leave it to each contender.
        contenders: Contenders to measure.
    """

    workload: Workload
    num_envs: int
    workers: int | None
    contenders: Sequence[Contender]


def share_of_time(contests: Sequence[Contest], rounds: int) -> float:
    """Return the duration of one measurement with which all of them take at most half a minute: 0.05 to 0.5 s."""
    measurements = rounds * sum(len(contest.contenders) for contest in contests)
    return min(0.5, max(0.05, _ALL_S / measurements))


def run_contests(
    contests: Sequence[Contest],
    seconds: float,
    rounds: int,
    progress: Progress,
) -> Report:
    """Execute several runs one after the other.

    Args:
        contests: Plans of the runs.
        seconds: Duration of one measurement.
        rounds: Measurements per contender.
        progress: Called with the current work and the finished fraction.
    """
    started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    report = Report(started_at, describe_machine(_PACKAGES), seconds, ())
    for index, contest in enumerate(contests):

        def show(text: str, fraction: float, done: int = index) -> None:
            progress(text, (done + fraction) / len(contests))

        report = dataclasses.replace(report, runs=(*report.runs, run_contest(contest, seconds, rounds, show)))
    return report


def run_contest(contest: Contest, seconds: float, rounds: int, progress: Progress) -> Run:
    """Execute one run. A contender that fails is reported and does not end the run."""
    entrants = [_Entrant(contender, contest) for contender in contest.contenders]
    where = f"{contest.workload.name} × {contest.num_envs}"
    total, done = len(entrants) * (rounds + 1), 0
    try:
        progress(f"{where}: importing", 0.0)
        with concurrent.futures.ThreadPoolExecutor(whole_cores()) as pool:  # before any measurement
            list(pool.map(_Entrant.prepare, entrants))
        for entrant in entrants:
            progress(f"{where}: starting {entrant.contender.label}", done / total)
            entrant.start()
            done += 1
        for index, entrant in in_rounds(entrants, rounds):
            progress(f"{where}, round {index + 1} of {rounds}: {entrant.contender.label}", done / total)
            entrant.measure(seconds)
            done += 1
        for entrant in entrants:
            entrant.close()
    finally:
        for entrant in entrants:
            entrant.kill()
    progress(f"{where}: done", 1.0)
    entries = tuple(entrant.entry for entrant in entrants)
    return Run(contest.workload.name, contest.workload.spec.id, contest.num_envs, contest.workers, entries)


class _Entrant:
    """Contender in a run, with its child process.

    Attributes:
        contender: The contender.
        entry: Results so far.
    """

    def __init__(self, contender: Contender, contest: Contest) -> None:
        self.contender, self._contest = contender, contest
        line = contender.line(contest.workload, contest.num_envs, contest.workers)
        self.entry = ContenderResult((), contender.name, contender.label, line=line)
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
        measured = self._call(measure.step_runner, seconds + _GRACE_S, "run", seconds)
        if measured is not None:
            rates, cpu_s = (*self.entry.rates, measured[0]), (*self.entry.cpu_s, measured[1])
            self.entry = dataclasses.replace(self.entry, rates=rates, cpu_s=cpu_s)

    def close(self) -> None:
        if self._child is not None:
            with contextlib.suppress(ChildFailed):  # its figures remain valid
                self._child.call(measure.close_others, _CLOSE_TIMEOUT_S, ())

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _call(self, function: Callable[..., T], timeout_s: float, *args: object) -> T | None:
        """Call a function in the child; return `None` if the child has been killed or the call fails."""
        if self._child is None:
            return None
        try:
            return self._child.call(function, timeout_s, *args)
        except ChildFailed as error:
            problem = str(error).removeprefix(f"{self.contender.label}: ")
            self.entry = dataclasses.replace(self.entry, problem=problem, rates=(), cpu_s=())
            self.kill()
            return None
