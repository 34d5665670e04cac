"""RLlib with `vec` and with packed batches; learning curves of PPO three ways."""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.case import Record, Session, Trained
from benchmarks.worker import ROOT


def measure(contender: Any, num_envs: int, batch_size: int, iterations: int, threads: int) -> dict[str, list[float]]:
    """Train; return the medians of wall-clock and CPU seconds of every part of an iteration, without the first."""
    import torch

    from envfleet.rllib.experiments.training import TrainingPlan, build, quiet_ray, train

    torch.set_num_threads(threads)
    plan = TrainingPlan(way=contender, num_envs=num_envs, batch_size=batch_size)
    with quiet_ray(), build(plan) as algorithm:
        _, *measured = train(algorithm, plan, iterations + 1)
    laps = [[one.seconds, one.cpu_seconds] for one in measured]
    return {part: [statistics.median(lap[k][part] for lap in laps) for k in (0, 1)] for part in laps[0][0]}


def compare_rllib(
    session: Session,
    *,
    sizes: tuple[int, ...] = (1000, 5000, 100_000),
    contenders: tuple[str, ...] = ("packed_vec", "vec"),
    batch_size: int = 100_000,
    threads: int = os.cpu_count() or 1,
) -> None:
    """Compare packed batches in RLlib with its own `vec`, in CPU seconds per iteration.

    Each contender has a separate process. The notes are wall-clock seconds.
    """
    for num_envs in sizes:
        for name in contenders:
            if name == "vec" and num_envs > 10_000:
                continue  # takes minutes for episode objects, one per sub-environment
            session.progress(f"{num_envs:,}: {name}")
            arguments = [name, num_envs, max(batch_size, num_envs), session.rounds, threads]
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.rllib", *map(str, arguments)]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            parts = json.loads(done.stdout.splitlines()[-1])
            parts["sampling and connectors"] = [
                a + b for a, b in zip(parts["sampling"], parts["connectors"], strict=True)
            ]
            for part, (wall_s, cpu_s) in parts.items():
                session.add(Record(f"{num_envs:,}, {part}", name, [cpu_s], {"wall s": f"{wall_s:.2f}"}))


HIDDEN = (64, 64)
TASKS: dict[str, dict[str, Any]] = {
    "Pendulum-v1": {
        "num_envs": 32, "batch_size": 6400, "minibatch_size": 640, "num_epochs": 10, "learning_rate": 1e-3,
        "gamma": 0.95, "lambda_": 0.95, "iterations": 80,
    },
    "CartPole-v1": {
        "num_envs": 16, "batch_size": 2048, "minibatch_size": 256, "num_epochs": 10, "learning_rate": 1e-3,
        "gamma": 0.99, "lambda_": 0.95, "iterations": 40,
    },
}  # fmt: skip


def compare_learning(session: Session, *, tasks: tuple[str, ...] = tuple(TASKS)) -> None:
    """Compare returns of PPO by RLlib's `vec`, by `packed_vec`, and by our agent."""
    import torch

    from envfleet.rllib.experiments.training import quiet_ray

    torch.set_num_threads(1)
    with quiet_ray():
        for name in tasks:
            settings = dict(TASKS[name])
            iterations = settings.pop("iterations")
            contenders: dict[str, Callable[[int], Trained]] = {
                way: functools.partial(_learn_by_rllib, name, way, iterations, settings)
                for way in ("vec", "packed_vec")
            }
            contenders["envfleet PPO"] = functools.partial(_learn, name, iterations, settings)
            session.train(name, contenders)


def _trained(curve: list[tuple[float, float]]) -> Trained:
    """Return the mean of the last ten iterations."""
    return Trained(statistics.fmean(value for _, value in curve[-10:]), curve)


def _learn_by_rllib(env: str, way: Any, iterations: int, settings: dict[str, Any], seed: int) -> Trained:
    from envfleet.rllib.experiments.training import TrainingPlan, build, train

    plan = TrainingPlan(env=f"envfleet/{env}", way=way, hidden=HIDDEN, seed=seed, **settings)
    samples, curve = 0, []
    with build(plan) as algorithm:
        for iteration in train(algorithm, plan, iterations):
            samples += iteration.samples
            if iteration.episode_return is not None:
                curve.append((float(samples), iteration.episode_return))
    return _trained(curve)


def _learn(env: str, iterations: int, settings: dict[str, Any], seed: int) -> Trained:
    import envfleet
    from envfleet.agents import PPO, Collector, PPOConfig

    num_envs = settings["num_envs"]
    config = PPOConfig(
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        gae_lambda=settings["lambda_"],
        num_epochs=settings["num_epochs"],
        num_minibatches=settings["batch_size"] // settings["minibatch_size"],
        hidden=HIDDEN,
    )
    curve = []
    with envfleet.make(f"envfleet/{env}", num_envs, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        agent = PPO(fleet.single_observation_space, fleet.single_action_space, config, num_envs=num_envs, seed=seed)
        collector = Collector(fleet, settings["batch_size"] // num_envs, seed=seed)
        for _ in range(iterations):
            agent.update(collector.collect(agent))
            if len(collector.episodes):
                curve.append((float(agent.num_transitions), float(collector.episodes.returns[-100:].mean())))
    return _trained(curve)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
