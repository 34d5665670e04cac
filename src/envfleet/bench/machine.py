"""What the machine is and how much of it this process may use."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Iterable
from types import ModuleType

from envfleet.core.cores import usable_cores
from envfleet.core.machine import cpu_model, version_of
from envfleet.errors import InvalidArgument


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


def require_psutil() -> ModuleType:
    """Import psutil.

    Raises:
        InvalidArgument: It is not installed.
    """
    try:
        import psutil
    except ImportError as error:
        raise InvalidArgument(
            "measuring needs psutil, which is not installed: pip install 'envfleet[bench]' (or pip install psutil)."
        ) from error
    module: ModuleType = psutil
    return module
