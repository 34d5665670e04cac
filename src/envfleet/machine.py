"""Facts about the machine: the cores this process may use, the processor's name, versions of installed packages."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from pathlib import Path


def affinity_cores() -> int:
    """Return the number of cores on which the scheduler may run this process."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux and some BSDs
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


def cgroup_cores(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the limit of CPU time of the control group (version 1 or 2) in cores; `None` for no limit.

    Args:
        root: Mount point of the control group file system.
    """
    files = [[root / "cpu.max"]]
    files += [[root / folder / f"cpu.cfs_{part}_us" for part in ("quota", "period")] for folder in ("cpu", ".")]
    limits = [limit for limit in map(_read_limit, files) if limit is not None]
    return min(limits, default=None)


def _read_limit(files: list[Path]) -> float | None:
    try:
        quota, period = " ".join(file.read_text() for file in files).split()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # there is none, or the quota is "max"
        return None


def usable_cores() -> float:
    """Return the number of cores that this process may use at once; a control group can make it a fraction."""
    quota = cgroup_cores()
    return float(affinity_cores()) if quota is None else min(float(affinity_cores()), quota)


def whole_cores() -> int:
    """Return the number of whole cores that this process may use at once, at least one."""
    return max(1, math.floor(usable_cores() + 0.01))


def cpu_model() -> str:
    """Return the processor's name, as far as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.processor() or platform.machine())


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution; `None` if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
