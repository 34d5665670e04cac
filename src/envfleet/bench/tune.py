"""`envfleet tune`: find the fastest fleet for an environment within a given time, by successive halving.

Every candidate is stepped for a moment; the better half goes on and is stepped for longer; and so on until two are
left, which are compared with the best fleet of one process. Fleets stay open meanwhile (an idle fleet uses no CPU), and
within a stage they are stepped in turns, so that what else the machine does meets all of them.

A fleet is recommended in place of a simpler one only if it is faster beyond what repeated measurements differ by.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from envfleet.bench import measure
from envfleet.bench.candidates import Candidate
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.machine import Machine, describe_machine
from envfleet.bench.workloads import Workload
from envfleet.errors import EnvfleetError

_MIN_SLICE_S = 0.05  # shorter says nothing: one scheduling delay would decide
_TURNS = 3
_LAST_TURNS = 9  # of which the lowest and the highest do not count, so that one disturbance decides nothing
_TOLERANCE = 0.05  # a gain below is worth no workers, even where it is certain


class Evaluator(Protocol):
    """Steps candidates. A failed one raises `ChildFailed`."""

    def measure(self, candidate: Candidate, seconds: float) -> float:
        """Step it for a time, building it first if need be; return environment steps a second."""

    def close(self, candidate: Candidate) -> None:
        """Release it; never raises."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a candidate gave.

    Attributes:
        candidate: Which.
        rates: Environment steps a second, a measurement per turn of the last stage that it took part in.
        stage: That stage, from 0; later ones measured for longer.
    """

    candidate: Candidate
    rates: tuple[float, ...]
    stage: int

    @property
    def rate(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest measurement, of five or more without the most extreme one on each side."""
        ordered = sorted(self.rates)
        return (ordered[1], ordered[-2]) if len(ordered) >= 5 else (ordered[0], ordered[-1])

    def is_clearly_faster(self, other: Trial) -> bool:
        """Whether the spreads do not overlap; a single measurement has none, and shows nothing."""
        if min(len(self.rates), len(other.rates)) < 2:
            return False
        return self.spread[0] > other.spread[1] and self.rate > (1 + _TOLERANCE) * other.rate

    @property
    def burden(self) -> tuple[bool, int, int, int]:
        """Sort key, the simplest fleet first: asynchronous code, backend, workers, sub-environments."""
        candidate = self.candidate
        place = ("serial", "thread", "process").index(candidate.backend)
        return candidate.is_batched, place, candidate.workers, candidate.num_envs


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What a search found.

    Attributes:
        env: The environment's id.
        best_lines: The source lines that make the best fleet.
        trials: All that were measured, best first.
        failures: What failed, and why.
        num_untried: Candidates there was no time for.
        seconds: How long the search took.
        machine: What it ran on.
    """

    env: str
    best_lines: tuple[str, ...]
    trials: tuple[Trial, ...]
    failures: tuple[tuple[Candidate, str], ...]
    num_untried: int
    seconds: float
    machine: Machine

    @property
    def best(self) -> Trial:
        """The one to use."""
        return self.trials[0]

    @property
    def runner_up(self) -> Trial | None:
        """The second best."""
        return self.trials[1] if len(self.trials) > 1 else None

    def to_json(self) -> str:
        """Write it as JSON: `{"kind": "envfleet.tune", "schema_version": 1, …fields of this class…}`."""
        return json.dumps({"kind": "envfleet.tune", "schema_version": 1, **dataclasses.asdict(self)}, indent=1) + "\n"


class NothingWorked(EnvfleetError):
    """No candidate could be built and stepped; the message carries the first failure."""

    code = "nothing_worked"


def search(
    candidates: Sequence[Candidate],
    evaluator: Evaluator,
    seconds: float,
    progress: Callable[[str, float], None],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[tuple[Trial, ...], tuple[tuple[Candidate, str], ...], int]:
    """Search by successive halving.

    Args:
        candidates: What to try, the most promising first.
        evaluator: Builds and steps them.
        seconds: Time limit; a slice that has begun is finished.
        progress: Told what goes on and which fraction of the time is used.
        clock: Seconds, for tests.

    Returns:
        Trials, best first; failures with their reason; how many candidates there was no time for.
    """
    halving = _Halving(candidates, evaluator, seconds, progress, clock)
    stages = max(1, math.ceil(math.log2(max(2, len(candidates)))))
    for stage in range(stages):
        if not halving.run_stage(stage, stages):
            break
    halving.close()
    progress("done", 1.0)
    num_untried = len(candidates) - len(halving.trials) - len(halving.failures)
    return _rank(halving.trials.values()), tuple(halving.failures.items()), num_untried


class _Halving:
    """The search's state: who is still in it, and what each gave."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        evaluator: Evaluator,
        seconds: float,
        progress: Callable[[str, float], None],
        clock: Callable[[], float],
    ) -> None:
        self.trials: dict[Candidate, Trial] = {}
        self.failures: dict[Candidate, str] = {}
        self._alive = list(candidates)
        self._evaluator, self._progress, self._clock = evaluator, progress, clock
        self._seconds, self._start = seconds, clock()
        self._end = self._start + seconds

    def run_stage(self, stage: int, stages: int) -> bool:
        """Step everyone still in, drop the slower half; return whether another stage makes sense."""
        left = self._end - self._clock()
        # The first stage also builds the fleets, which takes longer than to step them: it gets half of the time.
        share = max(0.0, left / 2 if stage == 0 and stages > 1 else left / (stages - stage))
        turns = _TURNS if stage < stages - 1 else _LAST_TURNS
        slice_s = share / (turns * len(self._alive)) * (0.25 if stage == 0 else 1.0)
        rates = self._take_turns(turns, max(_MIN_SLICE_S, slice_s), self._clock() + share)
        for candidate, values in rates.items():
            self.trials[candidate] = Trial(candidate, tuple(values), stage)
        ranked = sorted(rates, key=lambda candidate: -self.trials[candidate].rate)
        keep = ranked[: max(2, math.ceil(len(ranked) / 2))]
        # The best single process stays to the end: it is what all others must be compared with.
        keep += [candidate for candidate in ranked if candidate.backend == "serial"][:1]
        keep = list(dict.fromkeys(keep))
        for candidate in self._alive:
            if candidate not in keep:
                self._evaluator.close(candidate)
        self._alive = keep
        return bool(keep) and self._clock() < self._end

    def _take_turns(self, turns: int, slice_s: float, stage_end: float) -> dict[Candidate, list[float]]:
        rates: dict[Candidate, list[float]] = {}
        for _ in range(turns):
            for candidate in self._alive:
                now = self._clock()
                if candidate in self.failures or now >= stage_end:
                    continue
                self._progress(candidate.describe(), min(1.0, (now - self._start) / self._seconds))
                try:
                    rates.setdefault(candidate, []).append(self._evaluator.measure(candidate, slice_s))
                except ChildFailed as error:
                    self.failures[candidate] = str(error)
                    self.trials.pop(candidate, None)
                    rates.pop(candidate)
        return rates

    def close(self) -> None:
        """Release whoever is left."""
        for candidate in self._alive:
            self._evaluator.close(candidate)


def _rank(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Sort by how far each came, then by speed; first comes the simplest of the last stage or what clearly beats it."""
    ordered = sorted(trials, key=lambda trial: (-trial.stage, -trial.rate))
    if not ordered:
        return ()
    first, *others = sorted((trial for trial in ordered if trial.stage == ordered[0].stage), key=lambda one: one.burden)
    for trial in others:
        first = trial if trial.is_clearly_faster(first) else first
    return (first, *(trial for trial in ordered if trial is not first))


class ChildEvaluator:
    """Steps candidates in a child process, which is replaced when one of them takes it down.

    Args:
        workload: The environment.
        start_timeout_s: How long a fleet may take to start.
    """

    def __init__(self, workload: Workload, start_timeout_s: float = 30.0) -> None:
        self._workload = workload
        self._start_timeout_s = start_timeout_s
        self._child = Child("the fleet")
        self._open: set[str] = set()

    def measure(self, candidate: Candidate, seconds: float) -> float:
        """Step it for a time, building it first if need be."""
        if not self._child.is_alive:
            self._child.kill()
            self._child, self._open = Child("the fleet"), set()
        if candidate.key not in self._open:
            self._child.call(
                measure.open_runner,
                self._start_timeout_s,
                candidate.key,
                candidate.contender(),
                self._workload,
                candidate.num_envs,
                candidate.workers,
            )
            self._open.add(candidate.key)
        sample = self._child.call(measure.step_runner, seconds + 30.0, candidate.key, seconds, min(0.2, seconds / 4))
        return sample.rate

    def close(self, candidate: Candidate) -> None:
        """Release it; a fleet that cannot be closed goes with the child."""
        if candidate.key in self._open and self._child.is_alive:
            self._open.discard(candidate.key)
            try:
                self._child.call(measure.close_runner, 10.0, candidate.key)
            except ChildFailed:
                self._child.kill()

    def kill(self) -> None:
        """End the child process."""
        self._child.kill()


def tune(
    workload: Workload,
    candidates: Sequence[Candidate],
    seconds: float,
    progress: Callable[[str, float], None],
) -> Tuning:
    """Find the fastest fleet for an environment.

    Args:
        workload: The environment.
        candidates: What to try, see `candidates.search_space`.
        seconds: Time limit.
        progress: Told what goes on and which fraction of the time is used.

    Raises:
        NothingWorked: Not one candidate could be stepped.
    """
    start = time.monotonic()
    evaluator = ChildEvaluator(workload.staggered())
    try:
        trials, failures, num_untried = search(candidates, evaluator, seconds, progress)
    finally:
        evaluator.kill()
    if not trials:
        reason = failures[0][1] if failures else f"not one could be built within {seconds:g} s"
        raise NothingWorked(
            f"no fleet of {workload.spec.id} could be stepped: {reason}. "
            "See that one environment works by itself (envfleet doctor), or give the search more --seconds."
        )
    elapsed = time.monotonic() - start
    machine = describe_machine()
    lines = tuple(workload.make_lines(trials[0].candidate.arguments()))
    return Tuning(workload.spec.id, lines, trials, failures, num_untried, elapsed, machine)
