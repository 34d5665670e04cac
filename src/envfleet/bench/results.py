"""Results of a benchmark as plain values, and the JSON they are kept in.

The file is one object: `{"kind": "envfleet.bench", "schema_version": 1, "started_at": …, "machine": …, "seconds": …,
"runs": […]}`. Its parts have exactly the fields of the dataclasses here: `Report`, `Machine`, `Run`,
`ContenderResult`. Figures are raw, one rate per round; medians and ratios are computed when a report is shown, never
stored.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from envfleet.machine import cpu_model, usable_cores, version_of


@dataclasses.dataclass(frozen=True)
class Machine:
    """The facts that a benchmark's figures depend on.

    Attributes:
        cpu: The processor's model name.
        cores: Logical cores of the machine.
        usable_cores: Cores this process may use at once: affinity and cgroup quota considered.
        load: How many processes were running or waiting on average in the last minute.
        python: Python's version.
        versions: Version of every package that took part.
    """

    cpu: str
    cores: int
    usable_cores: float
    load: float
    python: str
    versions: dict[str, str]


def describe_machine(packages: Iterable[str] = ()) -> Machine:
    """Collect the facts, with the versions of the given distributions where installed."""
    wanted = dict.fromkeys(["envfleet", "gymnasium", "numpy", *packages])
    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        versions={name: version for name in wanted if (version := version_of(name)) is not None},
    )


def figures_json(kind: str, figures: Any) -> str:
    """Write a dataclass as JSON: `{"kind": "envfleet.…", "schema_version": 1, …its fields…}`."""
    head = {"kind": f"envfleet.{kind}", "schema_version": 1}
    return json.dumps(head | dataclasses.asdict(figures), indent=1) + "\n"


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of one contender's figure divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


@dataclasses.dataclass(frozen=True)
class Rated:
    """Repeated measurements of one thing.

    Attributes:
        rates: Environment steps per second, one figure per measurement.
    """

    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Median of the measurements."""
        return statistics.median(self.rates)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest measurement; of five or more, without the most extreme fifth on each side."""
        ordered = sorted(self.rates)
        cut = len(ordered) // 5
        return ordered[cut], ordered[-1 - cut]


@dataclasses.dataclass(frozen=True)
class ContenderResult(Rated):
    """Results of one contender in a run, with one rate per round.

    Attributes:
        contender: Its name, such as `"gymnasium-async"`.
        label: Its name in tables and plots.
        problem: Why it was left out (not installed, or cannot run this workload), or how it failed; empty if measured.
        start_s: Time to build all sub-environments and reset them once; `None` unless measured.
        memory_bytes: What all sub-environments together added to the process tree; `None` unless measured.
    """

    contender: str
    label: str
    problem: str = ""
    start_s: float | None = None
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class Run:
    """One workload with one number of sub-environments, all contenders.

    Attributes:
        workload: The workload's name.
        env: The environment's id.
        num_envs: Number of sub-environments.
        workers: Wanted number of workers; `None` left it to each contender.
        entries: One per contender, in the order asked for.
    """

    workload: str
    env: str
    num_envs: int
    workers: int | None
    entries: tuple[ContenderResult, ...]

    @property
    def measured(self) -> list[ContenderResult]:
        """Return the contenders that gave figures, the fastest first."""
        return sorted((entry for entry in self.entries if entry.rates), key=lambda entry: -entry.rate)

    def find(self, contender: str) -> ContenderResult | None:
        """Find a measured contender by name."""
        return next((entry for entry in self.measured if entry.contender == contender), None)

    def ratio(self, contender: str, other: str) -> float | None:
        """Divide the steps/s of one contender by another's, or `None` if one was not measured.

        Both are taken from the same round, so that what the machine did meanwhile touches both; the result is the
        median over the rounds.
        """
        ours, theirs = self.find(contender), self.find(other)
        if ours is None or theirs is None:
            return None
        return median_ratio(ours.rates, theirs.rates)


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything one call of the benchmark found.

    Attributes:
        started_at: When it began: ISO 8601, UTC.
        machine: What it ran on.
        seconds: Length of one measurement.
        runs: What it measured.
    """

    started_at: str
    machine: Machine
    seconds: float
    runs: tuple[Run, ...]
