"""Training by a configuration file, for any number of games side by side."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envfleet.training import train_single_run as train_present
from envfleet.training.config import RunConfig, parse_config
from rl_hockey.common.training.older_files import read_older

__all__ = ["train_run"]


def train_run(config_path: RunConfig | Mapping[str, Any] | str | Path, *args: Any, **options: Any) -> dict[str, Any]:
    """Train by a file of the older pipeline or of envfleet.

    Args:
        config_path: The file, as for `read_older`, its content, or a `RunConfig`.
        *args: Further arguments of `envfleet.training.train_single_run`, in its order.
        **options: The same by name, `num_envs` among them.

    Returns:
        The result of `envfleet.training.train_single_run`.

    Raises:
        InvalidArgument: The configuration or an option is invalid.
        TypeError: An option is unknown.
    """
    call = inspect.signature(train_present).bind(config_path, *args, **options)
    if not isinstance(config_path, RunConfig):
        content = read_older(config_path, call.arguments.get("num_envs", 1))
        name = "the configuration" if isinstance(config_path, Mapping) else str(config_path)
        call.arguments["config_path"] = parse_config(content, name)
    return train_present(*call.args, **call.kwargs)
