"""What a run's results may depend on beside its configuration: versions and the machine."""

from __future__ import annotations

import datetime as dt
import platform
from typing import Any

from envfleet.machine import cpu_model, version_of, whole_cores

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
    "scipy",
    "tensorboard",
    "torch",
)


def describe_surroundings() -> dict[str, Any]:
    """Versions of Python and packages, and facts about the machine, as plain values."""
    return {
        "began": dt.datetime.now().astimezone().isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name)) is not None},
        "machine": {
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cpu": cpu_model(),
            "cores": whole_cores(),
            **_torch_facts(),
        },
    }


def _torch_facts() -> dict[str, Any]:
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"gpus": gpus, "torch_threads": torch.get_num_threads(), "cuda": torch.version.cuda}
