"""How much faster training goes with more sub-environments of Box2D hockey, and where the time goes.

    python benchmarks/training.py OUT                      # all: about four minutes
    python benchmarks/training.py OUT --updates 1 --seconds 20

Writes OUT/training.json and OUT/training.png. Every cell is the trainer that `envfleet train` runs, for a fixed time
after its warm-up, with the same gradient updates per transition whatever `num_envs` is; "acting" makes none. Torch
has one thread. The default rate, one update for 16 transitions, is what the public pipeline makes with its 16
sub-environments.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from envfleet.training import RunOptions, Trainer
from envfleet.training.config import parse_config

NUM_ENVS = (1, 2, 4, 8, 16)
PROMISE = {1: 1.0, 4: 1.4, 8: 2.4}
WARM_UP = 500  # transitions
PARTS = ("env", "act", "update", "wait")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        agent: Kind.
        updates: Gradient updates per transition.
        num_envs: Sub-environments.
        steps_per_s: Transitions per second.
        micros: Microseconds per transition, by what they were spent on.
    """

    agent: str
    updates: float
    num_envs: int
    steps_per_s: float
    micros: dict[str, float]


def make_trainer(agent: str, updates: float, num_envs: int, args: argparse.Namespace) -> Trainer:
    """A trainer whose run will not end by itself."""
    phase = {"name": "all", "transitions": 10**9, "opponent": {"type": "basic_strong"}}
    config = {
        "curriculum": {"phases": [phase]},
        "hyperparameters": {"batch_size": args.batch_size},
        "training": {
            "warmup_steps": WARM_UP // 2,
            "updates_per_step": updates,
            "eval_frequency": None,
            "checkpoint_frequency": None,
        },
        "agent": {"type": agent, "hyperparameters": {"hidden": args.hidden}},
    }
    return Trainer(parse_config(config), RunOptions(num_envs=num_envs, engine="box2d"))


def measure(agent: str, updates: float, num_envs: int, args: argparse.Namespace) -> Cell:
    """Run one cell."""
    with contextlib.closing(make_trainer(agent, updates, num_envs, args)) as trainer:
        trainer.begin()
        while trainer.transitions < WARM_UP:
            trainer.round()
        first, before, began_s = trainer.transitions, dataclasses.asdict(trainer.times), time.perf_counter()
        while time.perf_counter() - began_s < args.seconds:
            trainer.round()
        seconds = time.perf_counter() - began_s
        after, made = dataclasses.asdict(trainer.times), trainer.transitions - first
    micros = {part: 1e6 * (after[part] - before[part]) / made for part in PARTS}
    return Cell(agent, updates, num_envs, made / seconds, micros)


def show(cells: list[Cell]) -> None:
    """Print steps per second, ratios, and where the time goes."""
    base = {(cell.agent, cell.updates): cell.steps_per_s for cell in cells if cell.num_envs == 1}
    print(f"{'agent':6} {'updates':>8} {'envs':>5} {'steps/s':>9} {'ratio':>6} {'promise':>8}   µs per transition")
    for cell in cells:
        ratio = cell.steps_per_s / base[cell.agent, cell.updates]
        promise = f"{PROMISE[cell.num_envs]:.1f}" if cell.num_envs in PROMISE else "–"
        parts = ", ".join(f"{part} {value:.0f}" for part, value in cell.micros.items())
        print(
            f"{cell.agent:6} {cell.updates:>8g} {cell.num_envs:>5} {cell.steps_per_s:>9,.0f} {ratio:>6.2f} "
            f"{promise:>8}   {parts}"
        )


def draw(cells: list[Cell], path: Path) -> None:
    """A stacked bar per cell, a panel per agent and rate of updates."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = sorted({(cell.agent, cell.updates) for cell in cells}, key=lambda group: (group[0], -group[1]))
    figure, axes = plt.subplots(1, len(groups), figsize=(3.4 * len(groups), 3.6), layout="constrained", squeeze=False)
    for axis, group in zip(axes[0], groups, strict=True):
        mine = [cell for cell in cells if (cell.agent, cell.updates) == group]
        labels, bottoms = [str(cell.num_envs) for cell in mine], [0.0] * len(mine)
        for part in PARTS:
            heights = [cell.micros[part] for cell in mine]
            axis.bar(labels, heights, bottom=bottoms, label=part)
            bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
        for place, (cell, top) in enumerate(zip(mine, bottoms, strict=True)):
            axis.annotate(f"{cell.steps_per_s / mine[0].steps_per_s:.1f}×", (place, top), ha="center", va="bottom")
        what = "acting only" if group[1] == 0 else f"{group[1]:g} updates per transition"
        axis.set(title=f"{group[0]}, {what}", xlabel="sub-environments", ylabel="µs per transition")
        axis.set_ylim(0, 1.1 * max(sum(cell.micros.values()) for cell in mine))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][-1].legend(frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=8.0, help="per cell")
    parser.add_argument("--updates", type=float, default=0.0625, help="gradient updates per transition")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--agents", nargs="+", default=["SAC", "DDDQN"])
    parser.add_argument("--num-envs", type=int, nargs="+", default=list(NUM_ENVS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = [
        measure(agent, updates, num_envs, args)
        for agent in args.agents
        for updates in (args.updates, 0.0)
        for num_envs in args.num_envs
    ]
    show(cells)
    args.out.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "hidden": args.hidden,
        "batch_size": args.batch_size,
        "seconds": args.seconds,
        "cells": [dataclasses.asdict(cell) for cell in cells],
    }
    (args.out / "training.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draw(cells, args.out / "training.png")


if __name__ == "__main__":
    main()
