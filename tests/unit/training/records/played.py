"""A run that never was: its events, for tests of what is recorded and shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from envfleet.training.config import RunConfig, parse_config
from envfleet.training.events import Began, Ended, Episodes, Evaluated, Event, Learned, PhaseBegan, Progress, Times
from envfleet.training.folder import RunFolder

PHASES = ("shooting", "games")
ROUNDS = 100
OPTIONS = {"num_envs": 2, "engine": "compiled"}
TIMES = Times(act=2.0, env=3.0, wait=0.5, update=4.0, evaluation=0.5)


def config(**rest: Any) -> RunConfig:
    phases = [{"name": name, "episodes": ROUNDS, "opponent": {"type": "basic_weak"}} for name in PHASES]
    return parse_config({"curriculum": {"phases": phases}, "agent": {"type": "SAC"}, **rest})


def begin(folder: Path | None = None, transitions: int = 0) -> Began:
    return Began(
        run_name="a run", agent="SAC", num_envs=2, plan="2 sub-environments", phases=PHASES, folder=folder,
        transitions=transitions, episodes=0, updates=0, phase=0, phase_name=PHASES[0],
    )  # fmt: skip


def rounds(first: int = 0, last: int = ROUNDS, seed: int = 0) -> Iterator[Event]:
    """Return the events of these rounds, of two episodes each; the second half is another phase."""
    for number in range(first, last):
        rng = np.random.default_rng([seed, number])
        progress, phase = number / ROUNDS, number * 2 // ROUNDS
        counts: dict[str, Any] = {
            "transitions": 160 * (number + 1), "episodes": 2 * number + 2, "updates": 80 * number, "phase": phase,
            "phase_name": PHASES[phase],
        }  # fmt: skip
        if number == ROUNDS // 2:
            yield PhaseBegan(**counts)
        winners = rng.choice([1, 0, -1], size=2, p=[0.1 + 0.8 * progress, 0.1, 0.8 - 0.8 * progress])
        yield Episodes(
            env_indices=np.arange(2),
            returns=10.0 * winners - rng.random(2),
            shaped_returns=10.0 * winners + 5 * rng.random(2),
            lengths=rng.integers(20, 80, 2),
            winners=winners,
            truncated=winners == 0,
            modes=("NORMAL", "NORMAL"),
            opponents=("weak", 'a "file", with commas'),
            **counts,
        )
        if number % 5 == 4:
            figures = {"critic_loss": 1 / (1 + number), "entropy": float(rng.random())}
            yield Learned(figures=figures, **counts)
        if number % 20 == 19:
            results = {
                name: {
                    "win_rate": rate,
                    "win_rate_low": rate - 0.1,
                    "win_rate_high": min(rate + 0.07, 1.0),
                    "games": 100.0,
                }
                for name, rate in (("weak", 0.2 + 0.7 * progress), ("strong", 0.1 + 0.6 * progress))
            }
            ratings = {"learner": {"rating": 20 + 10 * progress, "rating_sd": 1.0}}
            yield Evaluated(results=results, score=progress, is_best=True, ratings=ratings, **counts)
        yield Progress(
            run_share=progress, steps_per_s=1000.0 + 500 * float(rng.random()), elapsed_s=10.0 * progress, times=TIMES,
            latest={"return": -1.0, "win_rate": 0.4}, **counts,
        )  # fmt: skip


def end() -> Ended:
    return Ended(
        reason="completed", elapsed_s=10.0, times=TIMES, transitions=160 * ROUNDS, episodes=2 * ROUNDS,
        updates=80 * ROUNDS, phase=1, phase_name=PHASES[1],
    )  # fmt: skip


def make_folder(base: Path, **rest: Any) -> RunFolder:
    return RunFolder.create(base, config(**rest), options=OPTIONS)


def notify(observers: list[Any], *events: Event) -> None:
    for event in events:
        for observer in observers:
            observer.on_event(event)


def close(observers: list[Any]) -> None:
    for observer in observers:
        observer.close()
