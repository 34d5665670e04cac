"""Strength of players: hockey agents against the scripted players, PPO against the turbofan's threshold policy."""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.case import Record, Session, Trained

import envfleet
from envfleet.agents import load_agent
from envfleet.training import RunResult, resume, train
from envfleet.training.config import find_config
from envfleet.training.evaluation import evaluate
from envfleet.training.games import MatchConfig

OPPONENTS = ("strong", "weak")


def _figures(result: RunResult, games: int, engines: tuple[str, ...], cpu_s: float) -> dict[str, float]:
    """Play against both scripted players, half of the games on either side; return shares in percent."""
    if result.checkpoint is None:
        raise RuntimeError("the run left no checkpoint: train for longer")
    figures: dict[str, float] = {"CPU s": cpu_s, "transitions": result.total_steps, "updates": result.total_updates}
    for engine, opponent in itertools.product(engines, OPPONENTS):
        played = evaluate(result.checkpoint, opponent, games=games, seed=1, match=MatchConfig(engine=engine)).figures()
        for name in ("win", "draw", "loss"):
            figures[f"{name} % against {opponent}, {engine}"] = 100 * played[f"{name}_rate"]
    return figures


def _evaluations(run: Path, figure: str, opponent: str = "") -> list[tuple[float, float]]:
    """Return a figure of the evaluations that a run made while it trained."""
    with (run / "evaluations.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == figure]
    return [(float(row["transitions"]), float(row["value"])) for row in rows if opponent in row["opponent"]]


def measure_strength(
    session: Session,
    *,
    config: str = "ppo_kernel",
    minutes: tuple[float, ...] = (10.0,),
    num_envs: int = 1024,
    games: int = 2000,
    engines: tuple[str, ...] = ("compiled", "box2d"),
) -> None:
    """Measure how many games of hockey an agent wins after some minutes of training.

    Args:
        session: Session of the case.
        config: Configuration that comes with envfleet, or a file.
        minutes: Durations; longer ones continue the run of the shorter.
        num_envs: Number of sub-environments.
        games: Games per agent, opponent and engine.
        engines: Engines that the games are played on.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for before, after in itertools.pairwise((0.0, *sorted(minutes))):

            def learn(seed: int, before: float = before, after: float = after) -> Trained:
                name, start_s = f"seed_{seed}", time.process_time()
                if before and Path(folder, name).exists():
                    result = resume(Path(folder, name), max_minutes=after - before)
                else:
                    place: dict[str, Any] = {"base_output_dir": folder, "run_name": name}
                    result = train(config, num_envs=num_envs, workers=1, seed=seed, max_minutes=after, **place)
                figures = _figures(result, games, engines, time.process_time() - start_s)
                curve = _evaluations(Path(folder, name), "win_rate", "strong")
                return Trained(figures[f"win % against strong, {engines[0]}"], curve, figures)

            session.train(f"{config}, {after:g} minutes", {"envfleet": learn})


def compare_counts(
    session: Session,
    *,
    config: str = "sac",
    transitions: int = 300_000,
    num_envs: tuple[int, ...] = (1, 8),
    games: int = 1000,
) -> None:
    """Compare the strength after equally many transitions with one and with several sub-environments."""
    torch.set_num_threads(1)
    content: dict[str, Any] = json.loads(find_config(config).read_text(encoding="utf-8"))
    content["curriculum"]["phases"][0].update(transitions=transitions, episodes=None)
    content["training"].update(eval_frequency=None, checkpoint_frequency=None)

    def learn(count: int, seed: int) -> Trained:
        start_s = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {"base_output_dir": folder, "verbose": False}
            result = train(content, num_envs=count, workers=1, seed=seed, **options)
            figures = _figures(result, games, ("compiled",), time.process_time() - start_s)
        return Trained(figures["win % against strong, compiled"], notes=figures)

    session.train(config, {f"{count} sub-environments": functools.partial(learn, count) for count in num_envs})
    _compare_means(session, config, num_envs)


def _compare_means(session: Session, config: str, num_envs: tuple[int, ...]) -> None:
    """Add the difference of the means with its 95 % interval (Welch 1947)."""
    from scipy import stats

    few, many = (session.find(config, f"{count} sub-environments") for count in (num_envs[0], num_envs[-1]))
    if few is None or many is None or min(len(few.values), len(many.values)) < 2:
        return
    interval = stats.ttest_ind(many.values, few.values, equal_var=False).confidence_interval(0.95)
    notes = {"95 % interval": f"{interval.low:+.1f} to {interval.high:+.1f}"}
    difference = float(np.mean(many.values) - np.mean(few.values))
    session.add(Record(config, f"{num_envs[-1]} minus {num_envs[0]} sub-environments", [difference], notes))


def compare_turbofan(session: Session, *, run: str = "", engines: int = 4000) -> None:
    """Compare PPO with the turbofan's threshold policy, on engines that training never saw.

    Args:
        session: Session of the case.
        run: Folder of a run of `envfleet train turbofan_ppo --num-envs 1024`.
        engines: Number of engines.
    """
    from envfleet.envs.turbofan import ThresholdPolicy

    threshold = ThresholdPolicy(engines)
    session.add(_play_engines("ThresholdPolicy()", threshold.act_batch, engines))
    if not run:
        return
    place = json.loads(Path(run, "config.json").read_text())["curriculum"]["phases"][0]["environment"]
    options = {name: value for name, value in place["kwargs"].items() if name not in ("url", "env")}
    agent = load_agent(str(Path(run, "checkpoints", "best.pt")), num_envs=engines)
    best = functools.partial(agent.act_batch, deterministic=True)
    record = _play_engines("PPO, most likely action", best, engines, **options)
    session.add(dataclasses.replace(record, curves=[_evaluations(Path(run), "mean_return")]))
    session.add(_play_engines("PPO, drawing its actions", agent.act_batch, engines, **options))


def _play_engines(name: str, act: Callable[[Any], Any], count: int, **options: Any) -> Record:
    """Play each engine once; the values are returns."""
    from envfleet.envs.turbofan import FAILURE, REPAIR

    returns, failed = np.zeros(count), np.zeros(count, np.bool_)
    repairs, flights = np.zeros((2, count), np.int64)
    alive = np.ones(count, np.bool_)
    make = functools.partial(envfleet.make, "envfleet/Turbofan-v0", count, backend="kernel")
    with make(autoreset_mode="SAME_STEP", **options) as fleet:
        observations = fleet.reset(seed=10**9)[0]
        for _ in range(1000):
            actions = act(observations)
            observations, rewards, terminated, truncated, infos = fleet.step(actions)
            ended = alive & (terminated | truncated)
            final = infos.get("final_info", infos)
            returns[alive] += rewards[alive]
            repairs[alive] += actions[alive] == REPAIR
            flights[alive] += np.where(ended, final["num_rows"], infos["num_rows"])[alive]
            failed |= ended & (final["reason"] == FAILURE)
            alive &= ~ended
            if not alive.any():
                break
    low, high = np.percentile(returns, [5, 95])
    notes = {
        "standard error": f"{returns.std(ddof=1) / np.sqrt(count):.0f}",
        "5 %": f"{low:.0f}",
        "95 %": f"{high:.0f}",
    }
    notes |= {
        "failures": f"{failed.mean():.0%}",
        "repairs": f"{repairs.mean():.1f}",
        "flights": f"{flights.mean():.0f}",
    }
    return Record("turbofan", name, returns.tolist(), notes)
