"""From a configuration file to a trained agent: curriculum, opponents, one training loop, evaluation, records."""

from typing import TYPE_CHECKING, Any

from envfleet.extras import missing

try:
    import pydantic as _pydantic  # noqa: F401  # one clear error if it is missing
except ImportError as error:
    raise missing("envfleet.training", error) from error

if TYPE_CHECKING:
    from envfleet.training.config import RunOptions
    from envfleet.training.loop.trainer import Trainer
    from envfleet.training.single_run import RunResult, resume, train, train_single_run

__all__ = ["RunOptions", "RunResult", "Trainer", "resume", "train", "train_single_run"]

_MODULES = {"RunOptions": "config", "Trainer": "loop.trainer"}


def __getattr__(name: str) -> Any:
    """Import lazily, so that configurations are parsed without importing torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'single_run')}"), name)
