"""From a configuration file to a trained agent: curriculum, opponents, one training loop, evaluation, records."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from envfleet.training.loop.trainer import Trainer
    from envfleet.training.options import RunOptions
    from envfleet.training.single_run import RunResult, resume, train, train_single_run

__all__ = ["RunOptions", "RunResult", "Trainer", "resume", "train", "train_single_run"]

_MODULES = {"RunOptions": "options", "Trainer": "loop.trainer"}


def __getattr__(name: str) -> Any:
    """Import when it is used: a configuration is read, and its mistakes are told, without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'single_run')}"), name)
