"""Search of `envfleet tune` for the fastest fleet within a given time, by successive halving.

All candidates are measured a few times in turn, then the slower half is dropped, and so on. The last candidates take
turns until the time is up. Their fleets stay open (an idle fleet uses no CPU).

A fleet is preferred to a simpler one only if the difference exceeds the spread of repeated measurements.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Collection, Sequence

import gymnasium
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from envfleet.bench import measure
from envfleet.bench.child import Child, ChildFailed
from envfleet.bench.contenders import EnvFleet
from envfleet.bench.report import count, make_table
from envfleet.bench.results import Machine, Rated, describe_machine
from envfleet.bench.workloads import Workload
from envfleet.errors import EnvfleetError
from envfleet.fleet.checks import check_choice, check_whole
from envfleet.fleet.evaluating import Progress
from envfleet.kernels.registration import find_twin, is_kernel

BACKENDS = ("serial", "thread", "process")
"""Backends to search, the simplest first."""

_ENVS_PER_WORKER = (1, 4, 16, 64)
_MOST_ENVS = 256  # training rarely needs more, and starting more takes long
_TIMEOUT_S = 30.0  # to build a fleet, or to finish a step after its time
_SLICE_S = 0.1  # duration of one measurement
_TURNS = 3  # measurements between two halvings
_SHOWN = 10  # fleets in the table
_TOLERANCE = 0.05  # smaller gains do not justify workers


@dataclasses.dataclass(frozen=True, order=True)
class Candidate:
    """Options of a fleet to try.

    Attributes:
        backend: `"serial"`, `"thread"` or `"process"`.
        num_envs: Number of sub-environments.
        workers: Number of workers, 1 for `"serial"`.
    """

    backend: str
    num_envs: int
    workers: int

    def arguments(self) -> str:
        """Return the arguments of `envfleet.make` after the environment."""
        workers = "" if self.backend == "serial" else f", workers={self.workers}"
        return f'num_envs={self.num_envs}, backend="{self.backend}"{workers}'


def search_space(cores: int, num_envs: int | None = None, backends: Sequence[str] = BACKENDS) -> list[Candidate]:
    """Return the fleets to try, the most promising first.

    Args:
        cores: Number of usable cores.
        num_envs: Number of sub-environments; `None` searches over it.
        backends: Backends to try.

    Raises:
        InvalidArgument: `num_envs` is not positive or a backend is unknown.
    """
    if num_envs is not None:
        check_whole("num_envs", num_envs, 1)
    for backend in backends:
        check_choice("backends", backend, BACKENDS)
    # A single worker cannot be faster than a loop, so at least two are tried, except on a single core.
    counts = {"serial": [1], "thread": [max(2, cores)]}
    process_counts = sorted({number for number in (cores // 2, cores - 1, cores, 2 * cores) if number > 1} or {1})
    candidates = {
        Candidate(backend, total, min(workers, total))
        for backend in backends
        for workers in counts.get(backend, process_counts)
        for per_worker in _ENVS_PER_WORKER
        for total in [num_envs or min(_MOST_ENVS, per_worker * (cores if backend == "serial" else workers))]
    }

    def by_prospect(candidate: Candidate) -> tuple[bool, bool, float, Candidate]:
        """Return a sort key that puts candidates first that are usually fast."""
        is_unusual = candidate.backend != "serial" and candidate.workers != cores
        distance = abs(math.log2(candidate.num_envs / (8 * cores)))
        return is_unusual, candidate.backend == "thread", distance, candidate

    return sorted(candidates, key=by_prospect)


@dataclasses.dataclass(frozen=True)
class Trial(Rated):
    """Measurements of one candidate.

    Attributes:
        candidate: The candidate.
    """

    candidate: Candidate

    def is_clearly_faster(self, other: Trial) -> bool:
        """Return whether the spreads do not overlap; needs two measurements of each."""
        if min(len(self.rates), len(other.rates)) < 2:
            return False
        return self.spread[0] > other.spread[1] and self.rate > (1 + _TOLERANCE) * other.rate

    @property
    def burden(self) -> tuple[int, int, int]:
        """Sort key, the simplest fleet first: backend, workers, sub-environments."""
        return BACKENDS.index(self.candidate.backend), self.candidate.workers, self.candidate.num_envs


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Result of a search; its JSON is `{"kind": "envfleet.tune", "schema_version": 1, …the fields of this class…}`.

    Attributes:
        env: Id of the environment.
        best_line: Line of code that makes the best fleet.
        trials: Measured candidates, best first.
        failures: Failed candidates with their errors.
        num_untried: Number of candidates that were not measured in time.
        seconds: Duration of the search.
        machine: Machine that it ran on.
    """

    env: str
    best_line: str
    trials: tuple[Trial, ...]
    failures: tuple[tuple[Candidate, str], ...]
    num_untried: int
    seconds: float
    machine: Machine


class NothingWorked(EnvfleetError):
    """No candidate could be built and stepped; the message contains the first failure."""

    code = "nothing_worked"


def search(
    candidates: Sequence[Candidate],
    evaluator: Evaluator,
    seconds: float,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Trial], dict[Candidate, str]]:
    """Search by successive halving.

    Args:
        candidates: Candidates, the most promising first.
        evaluator: Builds and steps candidates.
        seconds: Time limit; the last measurement may exceed it.
        progress: Called with the current work and the used fraction of the time.
        clock: Clock in seconds, for tests.

    Returns:
        Trials, best first, and failures with their reasons. All other candidates were not measured.
    """
    start, alive, dropped = clock(), list(candidates), list[Candidate]()
    rates: dict[Candidate, list[float]] = {}
    failures: dict[Candidate, str] = {}
    while alive and clock() < start + seconds:
        for candidate in alive * _TURNS:
            elapsed = clock() - start
            # No new candidates after half of the time: a few good measurements are better than one of each candidate.
            if elapsed < (seconds if candidate in rates else seconds / 2) and candidate not in failures:
                progress(candidate.arguments(), elapsed / seconds)
                try:
                    rates.setdefault(candidate, []).append(evaluator.measure(candidate, _SLICE_S))
                except ChildFailed as error:
                    failures[candidate] = str(error)
                    del rates[candidate]
        ranked = sorted((one for one in alive if one in rates), key=lambda one: -statistics.median(rates[one]))
        # The best serial fleet stays to the end, since all others are compared with it.
        best_serial = [candidate for candidate in ranked if candidate.backend == "serial"][:1]
        alive = list(dict.fromkeys(ranked[: max(2, math.ceil(len(ranked) / 2))] + best_serial))
        dropped = [candidate for candidate in ranked if candidate not in alive] + dropped
        evaluator.keep(alive)
    progress("done", 1.0)
    finalists, others = ([Trial(tuple(rates[one]), one) for one in group] for group in (alive, dropped))
    return _best_first(finalists) + others, failures


def _best_first(finalists: list[Trial]) -> list[Trial]:
    """Return the simplest, or the one that is clearly faster, first; then the others, fastest first."""
    best: list[Trial] = []
    for trial in sorted(finalists, key=lambda one: one.burden):
        best = best if best and not trial.is_clearly_faster(best[0]) else [trial]
    return best + sorted((trial for trial in finalists if trial not in best), key=lambda one: -one.rate)


class Evaluator:
    """Steps candidates in a child process, which is replaced when one of them takes it down.

    Args:
        workload: The environment.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload, self._child = workload, Child("the fleet")

    def measure(self, candidate: Candidate, seconds: float) -> float:
        """Step a candidate, which is built first if necessary; return transitions per second."""
        if not self._child.is_alive:
            self._child.kill()
            self._child = Child("the fleet")
        workers = None if candidate.backend == "serial" else candidate.workers
        arguments = EnvFleet(candidate.backend), self._workload, candidate.num_envs, workers
        self._child.call(measure.open_runner, _TIMEOUT_S, candidate, *arguments)
        return self._child.call(measure.step_runner, seconds + _TIMEOUT_S, candidate, seconds)[0]

    def keep(self, candidates: Collection[Candidate]) -> None:
        """Close all others; if that fails, kill the child, and build candidates again when they are needed."""
        try:
            self._child.call(measure.close_others, _TIMEOUT_S, candidates)
        except ChildFailed:
            self._child.kill()

    def kill(self) -> None:
        """End the child process."""
        self._child.kill()


def tune(workload: Workload, candidates: Sequence[Candidate], seconds: float, progress: Progress) -> Tuning:
    """Find the fastest fleet for an environment.

    Args:
        workload: The environment.
        candidates: Candidates, see `search_space`.
        seconds: Time limit.
        progress: Called with the current work and the used fraction of the time.

    Raises:
        NothingWorked: All candidates failed.
    """
    start = time.monotonic()
    evaluator = Evaluator(workload)
    try:
        trials, failures = search(candidates, evaluator, seconds, progress)
    finally:
        evaluator.kill()
    if not trials:
        reason = next(iter(failures.values()), f"none could be built within {seconds:g} s")
        raise NothingWorked(
            f"no fleet of {workload.spec.id} could be stepped: {reason}. "
            "Check that a single environment works (`envfleet doctor`), or increase --seconds."
        )
    line = workload.make_line(trials[0].candidate.arguments())
    num_untried, elapsed_s = len(candidates) - len(trials) - len(failures), time.monotonic() - start
    return Tuning(
        workload.spec.id, line, tuple(trials), tuple(failures.items()), num_untried, elapsed_s, describe_machine()
    )


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print the ranking, the line to paste and the reasons."""
    console.print(_table(tuning))
    untried = f", {tuning.num_untried} not tried in time (increase --seconds)" if tuning.num_untried else ""
    shown = f", the best {_SHOWN} shown" if len(tuning.trials) > _SHOWN else ""
    tried = f"{count(len(tuning.trials), 'fleet')} tried in {tuning.seconds:.0f} s{shown}{untried}."
    console.print(f"[dim]{tried}[/dim]", soft_wrap=True)
    for candidate, reason in tuning.failures:
        console.print(f"[yellow]Failed: {escape(candidate.arguments())}: {escape(reason)}[/yellow]", soft_wrap=True)
    console.print()
    console.print(f"[bold]Best:[/bold] [green]{escape(tuning.best_line)}[/green]", soft_wrap=True)
    for line in explain(tuning.trials):
        console.print(f"· {escape(line)}", soft_wrap=True)
    spec = gymnasium.registry.get(tuning.env)
    compiled = tuning.env if spec is not None and is_kernel(spec) else find_twin(tuning.env)
    if compiled is not None:
        command = f'envfleet.make("{compiled}", num_envs=…, backend="kernel")'
        line = f"{compiled} is compiled: {command} needs no search; `envfleet bench` measures it."
        console.print(f"[bold]{escape(line)}[/bold]", soft_wrap=True)


def _table(tuning: Tuning) -> Table:
    table = make_table(f"Fleets of {tuning.env}", "backend", "envs", "workers", "steps/s", "spread")
    for place, trial in enumerate(tuning.trials[:_SHOWN]):
        one = trial.candidate
        workers = "–" if one.backend == "serial" else str(one.workers)
        spread = "–".join(f"{rate:,.0f}" for rate in trial.spread)
        style = "" if place else "bold green"
        table.add_row(one.backend, str(one.num_envs), workers, f"{trial.rate:,.0f}", spread, style=style)
    return table


def explain(trials: Sequence[Trial]) -> list[str]:
    """Compare the first with the runner-up, and with the best fleet with (or without) workers."""
    best = trials[0]
    is_serial = best.candidate.backend == "serial"
    elsewhere = [one for one in trials if (one.candidate.backend == "serial") != is_serial]
    rivals = dict.fromkeys(trials[1:2], "the runner-up")
    rivals |= dict.fromkeys(elsewhere[:1], "the best with workers" if is_serial else "the best single process")
    lines = []
    for rival, name in rivals.items():
        line = f"{best.rate / rival.rate:.2f}× {name}, {rival.candidate.arguments()}"
        simpler = ", and this one is simpler" if best.burden < rival.burden else ""
        lines.append(line + ("" if best.is_clearly_faster(rival) else f": within the spread{simpler}"))
    return lines or ["No other fleet could be measured."]
