"""Results of a benchmark as plain values, and the JSON they are kept in.

The file is one object: `{"kind": "envfleet.bench", "schema_version": 1, "envfleet": …, "started_at": …, "machine": …,
"settings": …, "runs": […]}`. Its parts have exactly the fields of the dataclasses here, in this module's order:
`Report`, `Machine`, `Settings`, `Run`, `Entry`, `Sample` (see `measure`). Figures are raw, one `Sample`
per round; medians and ratios are computed when a report is shown, never stored.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envfleet.bench.measure import Sample, require_psutil
from envfleet.files import write_whole
from envfleet.machine import cpu_model, usable_cores, version_of


@dataclasses.dataclass(frozen=True)
class Machine:
    """The facts that a benchmark's figures depend on.

    Attributes:
        cpu: The processor's model name.
        cores: Logical cores of the machine.
        usable_cores: Cores this process may use at once: affinity and cgroup quota considered.
        memory_bytes: Physical memory.
        load: How many processes were running or waiting on average in the last minute; `None` where unknown.
        system: Operating system and release.
        python: Python's version.
        versions: Version of every package that took part.
    """

    cpu: str
    cores: int
    usable_cores: float
    memory_bytes: int
    load: float | None
    system: str
    python: str
    versions: dict[str, str]


def describe_machine(packages: Iterable[str] = ()) -> Machine:
    """Collect the facts, with the versions of the given distributions where installed."""
    wanted = dict.fromkeys(["envfleet", "gymnasium", "numpy", *packages])
    versions = {name: version for name in wanted if (version := version_of(name)) is not None}
    return Machine(
        cpu=cpu_model(),
        cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        memory_bytes=int(require_psutil().virtual_memory().total),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        versions=versions,
    )


def figures_json(kind: str, figures: Mapping[str, Any]) -> str:
    """Write figures as JSON: `{"kind": "envfleet.…", "schema_version": 1, …figures…}`."""
    return json.dumps({"kind": f"envfleet.{kind}", "schema_version": 1, **figures}, indent=1) + "\n"


@dataclasses.dataclass(frozen=True)
class Settings:
    """Lengths and numbers of measurements.

    Attributes:
        seconds: Wall time of one measurement.
        rounds: Measurements per contender; in each round all contenders are measured in a new random order.
        warm_up_s: Time stepped before each measurement.
        start_timeout_s: How long a contender may take to start.
        idle_s: How long the idle contender was watched; 0 if it was not.
        seed: Seed of the order of contenders.
    """

    seconds: float = 1.0
    rounds: int = 3
    warm_up_s: float = 0.2
    start_timeout_s: float = 120.0
    idle_s: float = 1.0
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """Results of one contender on one workload.

    Attributes:
        contender: Its name, such as `"gymnasium-async"`.
        label: Its name in tables and plots.
        status: `"ok"`, `"absent"` (not installed, or cannot run this workload) or `"failed"`.
        reason: Why it is absent or failed; empty if it is ok.
        start_s: Time to build all sub-environments and reset them once; `None` unless measured.
        close_s: Time to close; `None` unless measured.
        memory_bytes: What all sub-environments together added to the process tree; `None` unless measured.
        idle_cpu: CPU seconds used per second while nobody steps; `None` unless measured.
        samples: One measurement per round.
    """

    contender: str
    label: str
    status: str
    reason: str = ""
    start_s: float | None = None
    close_s: float | None = None
    memory_bytes: int | None = None
    idle_cpu: float | None = None
    samples: tuple[Sample, ...] = ()

    @property
    def rate(self) -> float:
        """Median environment steps a second over the rounds."""
        return statistics.median(sample.rate for sample in self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest environment steps a second over the rounds."""
        rates = [sample.rate for sample in self.samples]
        return min(rates), max(rates)


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
    entries: tuple[Entry, ...]

    @property
    def measured(self) -> list[Entry]:
        """Return the contenders that gave figures."""
        return [entry for entry in self.entries if entry.status == "ok" and entry.samples]

    def find(self, contender: str) -> Entry | None:
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
        return statistics.median(a.rate / b.rate for a, b in zip(ours.samples, theirs.samples, strict=False))


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything one call of the benchmark found.

    Attributes:
        started_at: When it began: ISO 8601, UTC.
        machine: What it ran on.
        settings: How it measured.
        runs: What it measured.
    """

    started_at: str
    machine: Machine
    settings: Settings
    runs: tuple[Run, ...]

    def to_json(self) -> str:
        """Write the file described at the top of this module."""
        return figures_json("bench", dataclasses.asdict(self))

    def save(self, path: Path) -> None:
        """Write the JSON file, with the folders above it."""
        write_whole(path, self.to_json())
