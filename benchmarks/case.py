"""Cases, and the session that measures one: contenders take turns in rounds, and every figure is kept.

A case is a function `(session, *, option=default, ...)` that calls `session.compare` or `session.train` once per
setting. All contenders of a setting are measured in every round, in a new random order (`envfleet.bench.rounds`), and
ratios are taken within a round: load on the machine then hits both sides.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from envfleet.bench.results import Machine, describe_machine
from envfleet.bench.rounds import in_rounds

PACKAGES = ("stable-baselines3", "torch", "envpool", "numba", "ray")
Curve = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Case:
    """A row of the table of cases.

    Attributes:
        name: Name on the command line.
        entry: `module:function` of this package, imported when the case runs.
        unit: Unit of the figures.
        is_cost: True if smaller figures are better; ratios are then inverted, so larger ratios are always better.
        rounds: Default number of rounds, or of seeds.
        seconds: Default duration of one measurement.
        page: Page of the documentation with a marked block for the table.
        pairs: By contender of ours, the contenders that it is compared with. Without pairs, the table has a row per
            contender.
        floors: By pair of contenders and setting, the smallest acceptable ratio.
    """

    name: str
    entry: str
    unit: str = "steps/s"
    is_cost: bool = False
    rounds: int = 5
    seconds: float = 0.3
    page: str = ""
    pairs: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    floors: Mapping[tuple[str, str], Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def load(self) -> Callable[..., None]:
        """Import the function."""
        module, name = self.entry.split(":")
        function: Callable[..., None] = getattr(importlib.import_module(f"benchmarks.{module}"), name)
        return function

    def describe(self) -> str:
        """Return the first line of the function's docstring, without importing it."""
        module, name = self.entry.split(":")
        tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
        functions = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
        return (ast.get_docstring(next(functions)) or "").splitlines()[0]

    def options(self) -> dict[str, Any]:
        """Return the options with their defaults."""
        parameters = inspect.signature(self.load()).parameters.values()
        return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


@dataclasses.dataclass(frozen=True)
class Record:
    """Figures of one contender in one setting.

    Attributes:
        setting: Row of the table, such as `"8 × CartPole-v1"`.
        contender: Its name.
        values: One figure per round, or per seed.
        notes: More columns.
        curves: Points of a plot, one curve per seed.
    """

    setting: str
    contender: str
    values: Sequence[float]
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    curves: Sequence[Curve] = ()


@dataclasses.dataclass
class Result:
    """Everything that a case measured.

    Attributes:
        case: Name of the case.
        options: Options of the run, without those that have their default.
        started_at: Start, ISO 8601 in UTC.
        machine: Machine that it ran on.
        records: Figures, in the order of measurement.
    """

    case: str
    options: dict[str, Any]
    started_at: str
    machine: Machine
    records: list[Record] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Trained:
    """Outcome of a training.

    Attributes:
        value: The figure, such as the final return.
        curve: Points of its learning curve.
        notes: More figures; `CPU s` is measured if it is not given.
    """

    value: float
    curve: Curve = ()
    notes: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Session:
    """One run of a case.

    Args:
        result: Result to fill; `train` continues one that has records already.
        rounds: Number of rounds, or of seeds.
        seconds: Duration of one measurement.
        save: Function to call after each record.
    """

    def __init__(self, result: Result, rounds: int, seconds: float, save: Callable[[], None] = lambda: None) -> None:
        self.result, self.rounds, self.seconds, self._save = result, rounds, seconds, save

    def compare(
        self, setting: str, contenders: Mapping[str, Callable[[], float]], notes: Mapping[str, Any] | None = None
    ) -> None:
        """Measure all contenders once per round.

        Args:
            setting: Row of the table.
            contenders: Functions that measure once and return the figure.
            notes: More columns by contender: a mapping, or a function that returns one after the last round.
        """
        values: dict[str, list[float]] = {name: [] for name in contenders}
        for index, name in in_rounds(list(contenders), self.rounds):
            self.progress(f"{setting}, round {index + 1} of {self.rounds}: {name}")
            values[name].append(contenders[name]())
        for name, measured in values.items():
            more = (notes or {}).get(name, {})
            self.add(Record(setting, name, measured, more() if callable(more) else more))

    def train(self, setting: str, contenders: Mapping[str, Callable[[int], Trained]]) -> None:
        """Call every contender with every seed from 0, except those that the result has already."""
        for seed in range(self.rounds):
            for name, train in contenders.items():
                before = self.find(setting, name) or Record(setting, name, ())
                if len(before.values) > seed:
                    continue
                self.progress(f"{setting}, seed {seed}: {name}")
                start_s = time.process_time()
                trained = train(seed)
                figures = {"CPU s": time.process_time() - start_s, **trained.notes}
                notes = {key: ", ".join([*_split(before.notes, key), f"{one:,.4g}"]) for key, one in figures.items()}
                values, curves = (*before.values, trained.value), (*before.curves, trained.curve)
                self.add(Record(setting, name, values, notes, curves))

    def add(self, record: Record) -> None:
        """Add a record, or replace that of the same setting and contender."""
        records = self.result.records
        before = self.find(record.setting, record.contender)
        if before is None:
            records.append(record)
        else:
            records[records.index(before)] = record
        self._save()

    def find(self, setting: str, contender: str) -> Record | None:
        """Return the record of a contender in a setting."""
        matching = (one for one in self.result.records if (one.setting, one.contender) == (setting, contender))
        return next(matching, None)

    def progress(self, text: str) -> None:
        """Show what is being measured."""
        sys.stderr.write(f"\r\033[K{text}" if sys.stderr.isatty() else f"{text}\n")
        sys.stderr.flush()


def _split(notes: Mapping[str, str], key: str) -> list[str]:
    return [notes[key]] if key in notes else []


def start(case: Case, options: Mapping[str, Any], started_at: str) -> Result:
    """Return an empty result of a case."""
    return Result(case.name, dict(options), started_at, describe_machine(PACKAGES))


def parse_options(defaults: Mapping[str, Any], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Convert `name=value` arguments to the types of their defaults; tuples are separated by commas.

    Raises:
        ValueError: A value does not have the type of its default.
    """
    return {name: _convert(defaults[name], text) for name, text in pairs if name in defaults}


def _convert(default: Any, text: str) -> Any:
    if isinstance(default, tuple):
        kind = type(default[0]) if default else str
        return tuple(kind(part) for part in text.split(",") if part)
    if isinstance(default, bool):
        return text.lower() in ("1", "true", "yes")
    return type(default)(text)


def rate_of(step: Callable[[], object], transitions: float, seconds: float, chunk: int = 1) -> Callable[[], float]:
    """Return a function that calls `step` for a while and returns transitions per second.

    Args:
        step: Function to measure.
        transitions: Transitions per call.
        seconds: Duration of a measurement.
        chunk: Calls between two looks at the clock.
    """

    def measure() -> float:
        clock = time.perf_counter
        step()
        calls, start_s = 0, clock()
        while True:
            for _ in range(chunk):
                step()
            calls += chunk
            if (elapsed_s := clock() - start_s) >= seconds:
                return calls * transitions / elapsed_s

    return measure
