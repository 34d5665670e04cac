"""What results depend on beside the program: the processor, and the versions of packages."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, platform.processor() or platform.machine())


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; `None` if there is none of that name."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
