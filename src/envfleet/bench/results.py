"""Results of a benchmark as plain values, and their JSON.

The file is one object: `{"kind": "envfleet.bench", "schema_version": 1, "started_at": …, "machine": …, "seconds": …,
"runs": […]}`. Its parts have the fields of the dataclasses `Report`, `Machine`, `Run` and
`ContenderResult`. Figures are raw, one rate per round; medians and ratios are computed when a report is shown.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from envfleet.html import html_table
from envfleet.machine import cpu_model, usable_cores, version_of


@dataclasses.dataclass(frozen=True)
class Machine:
    """Properties of the machine that figures depend on.

    Attributes:
        cpu: Model name of the processor.
        cores: Logical cores of the machine.
        usable_cores: Cores that this process may use, according to affinity and cgroup quota.
        load: Mean number of running or waiting processes in the last minute.
        python: Version of Python.
        versions: Versions of packages.
    """

    cpu: str
    cores: int
    usable_cores: float
    load: float
    python: str
    versions: dict[str, str]


def describe_machine(packages: Iterable[str] = ()) -> Machine:
    """Return the properties of this machine, with the versions of installed distributions."""
    names = dict.fromkeys(["envfleet", "gymnasium", "numpy", *packages])
    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        load=round(os.getloadavg()[0], 2),
        python=platform.python_version(),
        versions={name: version for name in names if (version := version_of(name)) is not None},
    )


def figures_json(kind: str, figures: Any) -> str:
    """Return a dataclass as JSON: `{"kind": "envfleet.…", "schema_version": 1, …its fields…}`."""
    head = {"kind": f"envfleet.{kind}", "schema_version": 1}
    return json.dumps(head | dataclasses.asdict(figures), indent=1) + "\n"


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of one contender's figure divided by another's in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=False))


@dataclasses.dataclass(frozen=True)
class Rated:
    """Repeated measurements of a rate.

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
        """Lowest and highest measurement; with five or more, without the lowest and highest fifth."""
        ordered = sorted(self.rates)
        cut = len(ordered) // 5
        return ordered[cut], ordered[-1 - cut]


@dataclasses.dataclass(frozen=True)
class ContenderResult(Rated):
    """Results of a contender in a run, with one rate per round.

    Attributes:
        contender: Name, such as `"gymnasium-async"`.
        label: Name in tables and plots.
        problem: Reason why it was left out or failed; empty if measured.
        start_s: Seconds to build all sub-environments and reset them once; `None` unless measured.
        memory_bytes: Growth of the process tree by all sub-environments; `None` unless measured.
        line: Line of code that makes the fleet; empty for other libraries.
        cpu_s: CPU seconds per transition of the contender's processes, one figure per round.
    """

    contender: str
    label: str
    problem: str = ""
    start_s: float | None = None
    memory_bytes: int | None = None
    line: str = ""
    cpu_s: tuple[float, ...] = ()


@dataclasses.dataclass(frozen=True)
class Run:
    """Results of all contenders for one workload and number of sub-environments.

    Attributes:
        workload: Name of the workload.
        env: Id of the environment.
        num_envs: Number of sub-environments.
        workers: Requested number of workers; `None` left it to each contender.
        entries: Results per contender, in the requested order.
    """

    workload: str
    env: str
    num_envs: int
    workers: int | None
    entries: tuple[ContenderResult, ...]

    def _repr_html_(self) -> str:
        rows = [
            (entry.label, f"{entry.rate:,.0f}", f"{entry.spread[0]:,.0f} to {entry.spread[1]:,.0f}")
            for entry in self.measured
        ]
        rows += [(entry.label, "not measured", entry.problem) for entry in self.entries if not entry.rates]
        return html_table(rows, ("contender", "steps/s", "range"), f"{self.num_envs} × {self.env}")

    @property
    def measured(self) -> list[ContenderResult]:
        """Measured contenders, fastest first."""
        return sorted((entry for entry in self.entries if entry.rates), key=lambda entry: -entry.rate)

    def find(self, contender: str) -> ContenderResult | None:
        """Return a measured contender by name."""
        return next((entry for entry in self.measured if entry.contender == contender), None)

    def ratio(self, contender: str, other: str) -> float | None:
        """Return the steps/s of one contender divided by another's; `None` if one of them was not measured.

        Ratios are taken within a round, so that load on the machine affects both; the median over rounds is returned.
        """
        ours, theirs = self.find(contender), self.find(other)
        if ours is None or theirs is None:
            return None
        return median_ratio(ours.rates, theirs.rates)


@dataclasses.dataclass(frozen=True)
class Report:
    """Results of one benchmark.

    Attributes:
        started_at: Start in ISO 8601, UTC.
        machine: Machine that it ran on.
        seconds: Duration of one measurement.
        runs: Runs, in the order of measurement.
    """

    started_at: str
    machine: Machine
    seconds: float
    runs: tuple[Run, ...]

    def _repr_html_(self) -> str:
        return "".join(run._repr_html_() for run in self.runs)  # as notebooks call it
