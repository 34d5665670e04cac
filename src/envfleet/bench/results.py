"""What a benchmark found, as plain values, and the JSON they are kept in.

The file is one object: `{"kind": "envfleet.bench", "schema_version": 1, "envfleet": …, "started_at": …, "machine": …,
"settings": …, "runs": […]}`. Its parts have exactly the fields of the dataclasses here, in this module's order:
`Report`, `Machine` (see `machine`), `Settings`, `Run`, `Entry`, `Sample` (see `measure`). Figures are raw, one `Sample`
per round; medians and ratios are computed when a report is shown, never stored.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path

from envfleet.bench.machine import Machine
from envfleet.bench.measure import Sample
from envfleet.core.files import write_whole


@dataclasses.dataclass(frozen=True)
class Settings:
    """How long and how often was measured.

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
    """What one contender did on one workload.

    Attributes:
        contender: Its name, such as `"gymnasium-async"`.
        label: Its name for people.
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
        """The contenders that gave figures."""
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
        head = {"kind": "envfleet.bench", "schema_version": 1}
        return json.dumps({**head, **dataclasses.asdict(self)}, indent=1) + "\n"

    def save(self, path: Path) -> None:
        """Write the JSON file, with the folders above it."""
        write_whole(path, self.to_json())
