"""Training of hockey: transitions per second with more sub-environments, and next to the first edition.

Every cell is the trainer that `envfleet train` runs, after its warm-up, with torch on one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from benchmarks.worker import Worker, serve

from envfleet.training import RunOptions, Trainer
from envfleet.training.config import parse_config

if TYPE_CHECKING:
    from benchmarks.case import Session

WARM_UP = 500  # transitions
PARTS = ("env", "act", "update", "wait")
Parts = dict[str, dict[str, float]]
"""Microseconds per transition by number of sub-environments and part."""


def compare_training(
    session: Session,
    *,
    configs: tuple[str, ...] = ("sac", "dddqn"),
    num_envs: tuple[int, ...] = (1, 2, 4, 8, 16),
    engine: str = "box2d",
    first: str = "",
) -> None:
    """Compare training of hockey with several sub-environments, with one, and with the first edition.

    The setting `acting` makes no gradient updates. Notes are microseconds per transition by what they were spent on,
    and the ratio to one sub-environment that would be reached if everything but gradient updates cost nothing.

    Args:
        session: Session of the case.
        configs: Configurations that come with envfleet, or files.
        num_envs: Numbers of sub-environments.
        engine: `"box2d"` or `"compiled"`.
        first: Checkout of the first edition, commit 4775889, which is measured next to this one.
    """
    torch.set_num_threads(1)
    for name in configs:
        source = _find(name)
        acting: Parts = {}
        for setting, rates in ((f"{name}, acting", {"updates_per_step": 0.0}), (name, {})):
            parts: Parts = {}
            with contextlib.ExitStack() as stack:
                contenders = {}
                for count in num_envs:
                    cell = source, rates, count, engine, session.seconds
                    contenders[str(count)] = functools.partial(_measure, parts, str(count), cell)
                    if first and count > 1:
                        worker = stack.enter_context(Worker("training", checkout=first))
                        contenders[f"first edition, {count}"] = functools.partial(_ask, worker, cell)
                notes = {str(count): functools.partial(_notes, parts, acting, str(count)) for count in num_envs}
                session.compare(setting, contenders, notes)
            acting = parts


def _find(name: str) -> str:
    from envfleet.training.config import find_config

    return str(find_config(name).resolve())


def _measure(parts: Parts, name: str, cell: Any) -> float:
    rate, parts[name] = measure(cell)
    return rate


def _notes(parts: Parts, acting: Parts, name: str) -> dict[str, str]:
    notes = {"µs per transition": ", ".join(f"{part} {value:.0f}" for part, value in parts[name].items())}
    gradients = parts[name]["update"] - acting[name]["update"] if acting else 0.0
    if gradients > 0 and "1" in parts:
        notes["bound"] = f"{sum(parts['1'].values()) / gradients:.1f}"
    return notes


def _ask(worker: Worker, cell: Any) -> float:
    rate: float = worker.ask(cell)[0]
    return rate


def measure(cell: Any) -> tuple[float, dict[str, float]]:
    """Return transitions per second, and microseconds per transition by part; also runs in the first edition."""
    *plan, seconds = cell
    with contextlib.closing(make_trainer(*plan)) as trainer:
        trainer.begin()
        while trainer.transitions < WARM_UP:
            trainer.round()
        first, before, start_s = trainer.transitions, dataclasses.asdict(trainer.times), time.perf_counter()
        while (taken_s := time.perf_counter() - start_s) < seconds:
            trainer.round()
        after, transitions = dataclasses.asdict(trainer.times), trainer.transitions - first
    return transitions / taken_s, {part: 1e6 * (after[part] - before[part]) / transitions for part in PARTS}


def make_trainer(source: str, rates: dict[str, float], num_envs: int, engine: str) -> Trainer:
    """Return a trainer that does not end its run."""
    config = json.loads(Path(source).read_text(encoding="utf-8"))
    config["curriculum"]["phases"] = [
        {"name": "all", "transitions": 10**9, "opponent": {"type": "basic_strong"}},
    ]
    training = config["training"]
    training.update(warmup_steps=WARM_UP // 2, eval_frequency=None, checkpoint_frequency=None)
    if rates:
        for name in ("updates_per_step", "updates_per_round"):
            training.pop(name, None)
        training.update(rates)
    options = RunOptions(num_envs=num_envs, engine=engine)
    try:
        from envfleet.training.plan import resolve
    except ImportError:  # the first edition
        first: Any = Trainer
        return first(parse_config(config), options)  # type: ignore[no-any-return]
    return Trainer(resolve(parse_config(config), options))


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(measure)
