"""What a run's results may depend on beside its configuration: versions and the machine."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import platform
from pathlib import Path
from typing import Any

from envfleet.core.cores import whole_cores

_PACKAGES = (
    "envfleet",
    "box2d",
    "gymnasium",
    "matplotlib",
    "numba",
    "numpy",
    "openskill",
    "polars",
    "pydantic",
    "tensorboard",
    "torch",
)


def describe_surroundings() -> dict[str, Any]:
    """Versions of Python and packages, and facts about the machine, as plain values."""
    return {
        "began": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": _cpu_model(),
            "cores": whole_cores(),
            **_torch_facts(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _torch_facts() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"gpus": gpus, "torch_threads": torch.get_num_threads(), "cuda": torch.version.cuda}
