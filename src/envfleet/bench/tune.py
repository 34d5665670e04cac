"""`envfleet tune`: find the fastest fleet for an environment within a given time, by successive halving.

Every candidate is stepped for a moment; the better half goes on and is stepped for longer; and so on until two are
left, which are compared with the best fleet of one process. Fleets stay open meanwhile (an idle fleet uses no CPU), and
within a stage they are stepped in turns, so that what else the machine does meets all of them.

A fleet is recommended in place of a simpler one only if it is faster beyond what repeated measurements differ by.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from envfleet.bench import measure
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.contenders import EnvFleet
from envfleet.bench.report import count
from envfleet.bench.results import Machine, describe_machine, figures_json
from envfleet.bench.rounds import Progress
from envfleet.bench.workloads import Workload
from envfleet.errors import EnvfleetError
from envfleet.fleet.checks import check_choice, check_whole

BACKENDS = ("serial", "thread", "process")
"""Backends to search, the simplest first."""

_ENVS_PER_WORKER = (1, 4, 16, 64)
_MOST_ENVS = 256  # more is seldom wanted for training, and 256 environments take long to start
_START_TIMEOUT_S = 30.0
_MIN_SLICE_S = 0.05  # shorter says nothing: one scheduling delay would decide
_TURNS = 3
_LAST_TURNS = 9  # of which the lowest and the highest do not count, so that one disturbance decides nothing
_TOLERANCE = 0.05  # a gain below is worth no workers, even where it is certain


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
    def is_batched(self) -> bool:
        """Return whether it acts on whoever is ready and does not wait for all."""
        return self.batch_size < self.num_envs

    def options(self) -> dict[str, int]:
        """Return the options of `envfleet.make` beyond `num_envs` and `backend`."""
        workers = {} if self.backend == "serial" else {"workers": self.workers}
        return workers | ({"batch_size": self.batch_size} if self.is_batched else {})

    def describe(self) -> str:
        """Return in words what it is."""
        if self.backend == "serial":
            return f"serial: {count(self.num_envs, 'sub-environment')} in this process"
        text = f"{self.backend}: {count(self.num_envs, 'sub-environment')} on {count(self.workers, 'worker')}"
        return text + (f", {self.batch_size} at a time" if self.is_batched else "")

    def arguments(self) -> str:
        """Return what follows the environment in the call of `envfleet.make` that builds it."""
        given = {"num_envs": str(self.num_envs), "backend": f'"{self.backend}"', **self.options()}
        return ", ".join(f"{name}={value}" for name, value in given.items())


def search_space(cores: int, num_envs: int | None = None, backends: Sequence[str] = BACKENDS) -> list[Candidate]:
    """List the fleets worth trying, the most promising first.

    Args:
        cores: Cores that may be used at once.
        num_envs: Number of sub-environments, or `None` to search over it too.
        backends: Which backends to try.

    Raises:
        InvalidArgument: `num_envs` is not positive or a backend is unknown.
    """
    if num_envs is not None:
        check_whole("num_envs", num_envs, 1)
    for backend in backends:
        check_choice("backends", backend, BACKENDS)
    found = dict.fromkeys(
        candidate
        for backend in backends
        for workers in _worker_counts(backend, cores)
        for total in ([num_envs] if num_envs is not None else _totals(backend, workers, cores))
        for candidate in _batchings(backend, total, min(workers, total))
    )
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


@dataclasses.dataclass(frozen=True)
class Trial:
    """Measurements of one candidate.

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
        """Return whether the spreads do not overlap; a single measurement has none, and shows nothing."""
        if min(len(self.rates), len(other.rates)) < 2:
            return False
        return self.spread[0] > other.spread[1] and self.rate > (1 + _TOLERANCE) * other.rate

    @property
    def burden(self) -> tuple[bool, int, int, int]:
        """Sort key, the simplest fleet first: asynchronous code, backend, workers, sub-environments."""
        candidate = self.candidate
        return candidate.is_batched, BACKENDS.index(candidate.backend), candidate.workers, candidate.num_envs


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Result of a search.

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
        """Return the one to use."""
        return self.trials[0]

    @property
    def runner_up(self) -> Trial | None:
        """Return the second best."""
        return self.trials[1] if len(self.trials) > 1 else None

    def to_json(self) -> str:
        """Write it as JSON: `{"kind": "envfleet.tune", "schema_version": 1, …fields of this class…}`."""
        return figures_json("tune", dataclasses.asdict(self))


class NothingWorked(EnvfleetError):
    """No candidate could be built and stepped; the message carries the first failure."""

    code = "nothing_worked"


def search(
    candidates: Sequence[Candidate],
    evaluator: ChildEvaluator,
    seconds: float,
    progress: Progress,
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
    halving = _Halving(list(candidates), evaluator, seconds, progress, clock)
    halving.run(max(1, math.ceil(math.log2(max(2, len(candidates))))))
    progress("done", 1.0)
    num_untried = len(candidates) - len(halving.trials) - len(halving.failures)
    return _rank(halving.trials.values()), tuple(halving.failures.items()), num_untried


@dataclasses.dataclass
class _Halving:
    """The search's state: who is still in it, and what each gave."""

    _alive: list[Candidate]
    _evaluator: ChildEvaluator
    _seconds: float
    _progress: Progress
    _clock: Callable[[], float]
    trials: dict[Candidate, Trial] = dataclasses.field(default_factory=dict)
    failures: dict[Candidate, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._start = self._clock()

    def run(self, stages: int) -> None:
        """Step everyone still in, drop the slower half, and so on; release whoever is left."""
        end = self._start + self._seconds
        for stage in range(stages):
            left, is_last = end - self._clock(), stage == stages - 1
            # The first stage also builds the fleets, which takes longer than to step them: it gets half of the time.
            share = max(0.0, left / 2 if stage == 0 and not is_last else left / (stages - stage))
            turns = _LAST_TURNS if is_last else _TURNS
            slice_s = share / (turns * len(self._alive)) * (0.25 if stage == 0 else 1.0)
            rates = self._take_turns(turns, max(_MIN_SLICE_S, slice_s), self._clock() + share)
            self.trials |= {one: Trial(one, tuple(values), stage) for one, values in rates.items()}
            ranked = sorted(rates, key=lambda candidate: -self.trials[candidate].rate)
            # The best single process stays to the end: it is what all others must be compared with.
            best_serial = [candidate for candidate in ranked if candidate.backend == "serial"][:1]
            self._keep(ranked[: max(2, math.ceil(len(ranked) / 2))] + best_serial)
            if not self._alive or self._clock() >= end:
                break
        self._keep([])

    def _keep(self, chosen: Sequence[Candidate]) -> None:
        for candidate in self._alive:
            if candidate not in chosen:
                self._evaluator.close(candidate)
        self._alive = list(dict.fromkeys(chosen))

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
    """

    def __init__(self, workload: Workload) -> None:
        self._workload, self._child, self._open = workload, Child("the fleet"), set[Candidate]()

    def measure(self, candidate: Candidate, seconds: float) -> float:
        """Step it for a time, building it first if need be."""
        if not self._child.is_alive:
            self._child.kill()
            self._child, self._open = Child("the fleet"), set()
        if candidate not in self._open:
            fleet = EnvFleet(candidate.backend, candidate.options())
            arguments = candidate, fleet, self._workload, candidate.num_envs, candidate.workers
            self._child.call(measure.open_runner, _START_TIMEOUT_S, *arguments)
            self._open.add(candidate)
        return self._child.call(measure.step_runner, seconds + 30.0, candidate, seconds, min(0.2, seconds / 4)).rate

    def close(self, candidate: Candidate) -> None:
        """Release it; a fleet that cannot be closed goes with the child."""
        if candidate in self._open and self._child.is_alive:
            self._open.discard(candidate)
            try:
                self._child.call(measure.close_runner, 10.0, candidate)
            except ChildFailed:
                self._child.kill()

    def kill(self) -> None:
        """End the child process."""
        self._child.kill()


def tune(workload: Workload, candidates: Sequence[Candidate], seconds: float, progress: Progress) -> Tuning:
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
    lines, elapsed_s = workload.make_lines(trials[0].candidate.arguments()), time.monotonic() - start
    return Tuning(workload.spec.id, tuple(lines), trials, failures, num_untried, elapsed_s, describe_machine())
