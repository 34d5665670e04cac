"""RLlib with `vec` and with packed batches; learning curves of PPO three ways."""

from __future__ import annotations

import functools
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.case import Record, Session, Trained
from benchmarks.worker import ROOT


class Stopwatch:
    """Sums wall-clock and CPU seconds of named functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(*args, **kwargs)
            spent = self.seconds.setdefault(name, [0.0, 0.0])
            spent[0] += time.perf_counter() - wall
            spent[1] += time.process_time() - cpu
            return result

        return timed

    def pop(self) -> dict[str, list[float]]:
        seconds, self.seconds = self.seconds, {}
        return seconds


class TimedConnector:
    """Replaces a learner connector; times it and the critic's passes in it."""

    def __init__(self, connector: Any, module: Any, watch: Stopwatch) -> None:
        self._call, self._module, self._watch = watch.wrap("connectors", connector), module, watch

    def __call__(self, **kwargs: Any) -> Any:
        self._module.compute_values = self._watch.wrap("network", self._module.compute_values)
        try:
            return self._call(**kwargs)
        finally:
            del self._module.compute_values


def configure(contender: str, num_envs: int, batch_size: int) -> Any:
    """Return the contender's configuration, with the same PPO settings for all."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from envfleet.rllib import PackedPPOConfig

    config = PackedPPOConfig() if contender == "packed_vec" else PPOConfig()
    config.environment("envfleet/Pendulum-v1").env_runners(
        num_env_runners=0, num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="vector_entry_point"
    )
    return config.training(
        train_batch_size=batch_size, minibatch_size=batch_size, num_epochs=5, lr=3e-4, lambda_=0.95, gamma=0.95
    ).debugging(seed=0)


def measure(contender: str, num_envs: int, batch_size: int, iterations: int, threads: int) -> dict[str, list[float]]:
    """Train; return the medians of wall-clock and CPU seconds of every part of an iteration, without the first."""
    import ray
    import torch
    from ray.rllib.core import DEFAULT_MODULE_ID

    torch.set_num_threads(threads)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = configure(contender, num_envs, batch_size).build_algo()
    watch = Stopwatch()
    runner, group = algorithm.env_runner, algorithm.learner_group
    runner.sample = watch.wrap("sampling", runner.sample)
    group.update = watch.wrap("update", group.update)
    runner.module._forward_exploration = watch.wrap("network", runner.module._forward_exploration)  # noqa: SLF001
    learner = group._learner  # noqa: SLF001
    critic = learner.module[DEFAULT_MODULE_ID].unwrapped()
    learner._learner_connector = TimedConnector(learner._learner_connector, critic, watch)  # noqa: SLF001
    train = watch.wrap("iteration", algorithm.train)
    laps = []
    for _ in range(iterations + 1):
        train()
        lap = watch.pop()
        lap["learner"] = [total - part for total, part in zip(lap.pop("update"), lap["connectors"], strict=True)]
        laps.append(lap)
    algorithm.stop()
    ray.shutdown()
    return {name: [statistics.median(lap[name][kind] for lap in laps[1:]) for kind in (0, 1)] for name in laps[0]}


def compare_rllib(
    session: Session,
    *,
    sizes: tuple[int, ...] = (1000, 5000, 100_000),
    contenders: tuple[str, ...] = ("packed_vec", "vec"),
    batch_size: int = 100_000,
    threads: int = os.cpu_count() or 1,
) -> None:
    """Compare packed batches in RLlib with its own `vec`, in CPU seconds per iteration.

    Each contender has a separate process. `network` is the share of sampling and connectors that the networks take.
    The notes are wall-clock seconds.
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
