"""`train_single_run`; as a script, it trains `configs/curriculum_simple.json` on 4 games at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envfleet.training import train_single_run as train_present
from rl_hockey.common.training.older_files import read_older

__all__ = ["train_single_run"]


def train_single_run(config_path: str | Path, *args: Any, **options: Any) -> dict[str, Any]:
    """Train by a file of the older pipeline or of envfleet; arguments and result are those of envfleet's."""
    return train_present(read_older(config_path), *args, **options)


if __name__ == "__main__":
    train_single_run("configs/curriculum_simple.json", num_envs=4)
