"""How much faster training goes with more sub-environments of hockey, and where the time goes.

    python benchmarks/training.py OUT                      # the configurations sac and dddqn: about four minutes
    python benchmarks/training.py OUT --updates 0.0625 --hidden 256 256 --batch-size 256
    python benchmarks/training.py OUT --configs sac curriculum_simple --updates-per-round 1
    git worktree add ../first 4775889
    python benchmarks/training.py OUT --first ../first   # beside the first edition, in alternating turns

Writes OUT/training.json and OUT/training.png. Every cell is the trainer that `envfleet train` runs, with the agent of a
configuration, for a fixed time after its warm-up, with the gradient updates per transition or per round that the
configuration or the options say; "acting" makes none. All cells are measured in each of three turns; medians count.
Torch has one thread.

`bound` is the ratio if everything but gradient updates cost nothing: they are the update time of a cell less that of
its acting one; per transition, more sub-environments do not change them. `alone` is the ratio if stepping cost
nothing, for it goes on elsewhere while this thread acts, remembers and learns.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from elsewhere import Elsewhere

from envfleet.training import RunOptions, Trainer
from envfleet.training.config import parse_config

try:
    from envfleet.training.config import find_config
except ImportError:  # the first edition, which is given files
    find_config = Path

NUM_ENVS = (1, 2, 4, 8, 16)
PROMISE = {1: 1.0, 4: 1.4, 8: 2.4}
WARM_UP = 500  # transitions
TURNS = 3
PARTS = ("env", "act", "update", "wait")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        agent: Kind.
        updates: Gradient updates per `unit`; 0 for acting only.
        unit: `"transition"` or `"round"`, a step of all sub-environments.
        num_envs: Sub-environments.
        steps_per_s: Transitions per second.
        micros: Microseconds per transition, by what they were spent on.
    """

    agent: str
    updates: float
    unit: str
    num_envs: int
    steps_per_s: float
    micros: dict[str, float]


Rate = dict[str, float]
"""`updates_per_step` or `updates_per_round`; empty for what the configuration says."""


def make_trainer(source: str, rate: Rate, num_envs: int, args: argparse.Namespace) -> Trainer:
    """A trainer whose run will not end by itself."""
    config = json.loads(find_config(source).read_text(encoding="utf-8"))
    phase = {"name": "all", "transitions": 10**9, "opponent": {"type": "basic_strong"}}
    config["curriculum"]["phases"] = [phase]
    config["training"].update(warmup_steps=WARM_UP // 2, eval_frequency=None, checkpoint_frequency=None)
    if rate:
        for name in ("updates_per_step", "updates_per_round"):
            config["training"].pop(name, None)
        config["training"].update(rate)
    if args.batch_size is not None:
        config["hyperparameters"]["batch_size"] = args.batch_size
    if args.hidden is not None:
        config["agent"]["hyperparameters"]["hidden"] = args.hidden
    workers = None if num_envs == 1 else args.workers
    options = RunOptions(
        num_envs=num_envs, engine=args.engine, backend=None if workers is None else "process", workers=workers
    )
    return Trainer(parse_config(config), options)


def measure(source: str, rate: Rate, num_envs: int, args: argparse.Namespace) -> Cell:
    """Run one cell."""
    with contextlib.closing(make_trainer(source, rate, num_envs, args)) as trainer:
        trainer.begin()
        while trainer.transitions < WARM_UP:
            trainer.round()
        first, before, began_s = trainer.transitions, dataclasses.asdict(trainer.times), time.perf_counter()
        while time.perf_counter() - began_s < args.seconds:
            trainer.round()
        seconds = time.perf_counter() - began_s
        after, made = dataclasses.asdict(trainer.times), trainer.transitions - first
    micros = {part: 1e6 * (after[part] - before[part]) / made for part in PARTS}
    training = trainer.config.training
    updates, unit = training.updates_per_step or 0.0, "transition"
    if training.updates_per_round is not None:
        updates, unit = training.updates_per_round, "round"
    return Cell(trainer.agent.name, updates, unit, num_envs, made / seconds, micros)


def bounds(cells: list[Cell], cell: Cell) -> tuple[float, float]:
    """What the ratio of a cell could be at most, see above; infinite without updates."""
    find = {(one.agent, one.updates, one.num_envs): one for one in cells}
    base_s = 1e6 / find[cell.agent, cell.updates, 1].steps_per_s
    acting = find[cell.agent, 0.0, cell.num_envs]
    gradients = cell.micros["update"] - acting.micros["update"]
    alone = cell.micros["act"] + cell.micros["env"] + cell.micros["update"]
    return base_s / gradients if gradients > 0 else math.inf, base_s / alone if cell.num_envs > 1 else 1.0


def show(cells: list[Cell]) -> None:
    """Print steps per second, ratios, and where the time goes."""
    base = {(cell.agent, cell.updates): cell.steps_per_s for cell in cells if cell.num_envs == 1}
    print(
        f"{'agent':6} {'updates':>8} {'per':>10} {'envs':>5} {'steps/s':>9} {'ratio':>6} {'promise':>8} {'bound':>6} "
        f"{'alone':>6}   µs per transition"
    )
    for cell in cells:
        ratio, (bound, alone) = cell.steps_per_s / base[cell.agent, cell.updates], bounds(cells, cell)
        promise = f"{PROMISE[cell.num_envs]:.1f}" if cell.num_envs in PROMISE else "–"
        parts = ", ".join(f"{part} {value:.0f}" for part, value in cell.micros.items())
        print(
            f"{cell.agent:6} {cell.updates:>8g} {cell.unit:>10} {cell.num_envs:>5} {cell.steps_per_s:>9,.0f} "
            f"{ratio:>6.2f} {promise:>8} {bound:>6.1f} {alone:>6.1f}   {parts}"
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
        what = "acting only" if group[1] == 0 else f"{group[1]:g} updates per {mine[0].unit}"
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
    parser.add_argument("--seconds", type=float, default=3.0, help="per turn of a cell")
    rates = parser.add_mutually_exclusive_group()
    rates.add_argument("--updates", type=float, help="gradient updates per transition, not the configuration's")
    rates.add_argument("--updates-per-round", type=float, help="gradient updates per step of all, likewise")
    parser.add_argument("--hidden", type=int, nargs="+", help="likewise")
    parser.add_argument("--batch-size", type=int, help="likewise")
    parser.add_argument("--configs", nargs="+", default=["sac", "dddqn"])
    parser.add_argument("--engine", default="box2d", help="or compiled")
    parser.add_argument("--num-envs", type=int, nargs="+", default=list(NUM_ENVS), help="besides 1")
    parser.add_argument("--workers", type=int, help="processes of several sub-environments; measured if not given")
    parser.add_argument("--first", type=Path, help="folder of a checkout of the first edition, commit 4775889")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.configs = [str(find_config(source).resolve()) for source in args.configs]
    args.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    if args.serve:
        for line in sys.stdin:
            source, rate, num_envs = json.loads(line)
            print(json.dumps(dataclasses.asdict(measure(source, rate, num_envs, args))), flush=True)
        return
    asked = {"updates_per_step": args.updates, "updates_per_round": args.updates_per_round}
    rate = {name: value for name, value in asked.items() if value is not None}
    wanted = [
        (source, updates, num_envs)
        for source in args.configs
        for updates in (rate, {"updates_per_step": 0.0})
        for num_envs in sorted({1, *args.num_envs})  # ratios are to one
    ]
    with contextlib.nullcontext(None) if args.first is None else start_first(args) as first:
        turns = take_turns(wanted, first, args)
    cells = [ours for ours, _ in turns]
    show(cells)
    content: dict[str, Any] = {
        "configs": [json.loads(find_config(source).read_text(encoding="utf-8")) for source in args.configs],
        "hidden": args.hidden,
        "batch_size": args.batch_size,
        "seconds": args.seconds,
        "workers": args.workers,
        "engine": args.engine,
        "cells": [dataclasses.asdict(cell) for cell in cells],
    }
    (args.out / "training.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    draw(cells, args.out / "training.png")
    for ours, theirs in turns:
        if theirs is not None:
            ratio = ours.steps_per_s / theirs.steps_per_s
            print(f"{ours.agent:6} {ours.updates:>8g} {ours.num_envs:>5} {ratio:.2f} times the first edition")


def start_first(args: argparse.Namespace) -> Elsewhere:
    """Start this file with the first edition: it measures a cell for each line that it is given."""
    given = {name: value for name, value in vars(args).items() if name not in ("out", "first", "serve")}
    options = [
        part
        for name, value in given.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value]))
    ]
    return Elsewhere(args.first, __file__, str(args.out), "--serve", *options)


def take_turns(
    wanted: list[tuple[str, Rate, int]], first: Elsewhere | None, args: argparse.Namespace
) -> list[tuple[Cell, Cell | None]]:
    """Measure each cell, and the same with the first edition, once per turn; return the medians of each."""
    ours: list[list[Cell]] = [[] for _ in wanted]
    theirs: list[list[Cell]] = [[] for _ in wanted]
    for _ in range(TURNS):
        for place, cell in enumerate(wanted):
            ours[place].append(measure(*cell, args))
            if first is not None:
                theirs[place].append(Cell(**first.ask(cell)))
    return [(middle(mine), middle(other) if other else None) for mine, other in zip(ours, theirs, strict=True)]


def middle(cells: list[Cell]) -> Cell:
    """Return the cell with the median speed."""
    return sorted(cells, key=lambda cell: cell.steps_per_s)[len(cells) // 2]


if __name__ == "__main__":
    main()
