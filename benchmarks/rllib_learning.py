"""Learning curves of PPO three ways, from the same number of samples: RLlib's `vec`, `packed_vec`, and our own agent.

    python benchmarks/rllib_learning.py OUT              # three seeds: a quarter of an hour
    python benchmarks/rllib_learning.py OUT --seeds 1    # five minutes

Writes OUT/rllib_learning.json and OUT/rllib_learning.png, anew after each seed. All get the same compiled environments,
networks, batches, minibatches and epochs. A return is the mean over the episodes that ended in an iteration, the
last 100 at most, as RLlib has it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import envfleet
from envfleet.agents import PPO, Collector
from envfleet.agents import PPOConfig as OurConfig
from envfleet.rllib.experiments.training import TrainingPlan, build, quiet_ray, train

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
COLOURS = {"vec": "#c2571a", "packed_vec": "#1f6f8b", "envfleet PPO": "#5a8f29"}
Curve = list[tuple[int, float]]


def rllib_curve(env: str, way: Any, seed: int, iterations: int, settings: dict[str, Any]) -> Curve:
    plan = TrainingPlan(env=f"envfleet/{env}", way=way, hidden=HIDDEN, seed=seed, **settings)
    with build(plan) as algorithm:
        found = list(train(algorithm, plan, iterations))
    samples, curve = 0, []
    for iteration in found:
        samples += iteration.samples
        if iteration.episode_return is not None:
            curve.append((samples, iteration.episode_return))
    return curve


def our_curve(env: str, seed: int, iterations: int, settings: dict[str, Any]) -> Curve:
    num_envs = settings["num_envs"]
    config = OurConfig(
        learning_rate=settings["learning_rate"],
        gamma=settings["gamma"],
        gae_lambda=settings["lambda_"],
        num_epochs=settings["num_epochs"],
        num_minibatches=settings["batch_size"] // settings["minibatch_size"],
        hidden=HIDDEN,
    )
    curve, samples = [], 0
    with envfleet.make(f"envfleet/{env}", num_envs, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        agent = PPO(fleet.single_observation_space, fleet.single_action_space, config, num_envs=num_envs, seed=seed)
        collector = Collector(fleet, settings["batch_size"] // num_envs, seed=seed)
        for _ in range(iterations):
            slab = collector.collect(agent)
            agent.update(slab)
            samples += slab.rewards.size
            if len(collector.episodes):
                curve.append((samples, float(collector.episodes.returns[-100:].mean())))
    return curve


def draw(results: dict[str, dict[str, list[Curve]]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, (env, ways) in zip(figure.subplots(1, len(results)), results.items(), strict=True):
        for way, curves in ways.items():
            for number, curve in enumerate(curves):
                samples, returns = zip(*curve, strict=True)
                axes.plot(
                    [count / 1000 for count in samples],
                    returns,
                    color=COLOURS[way],
                    alpha=0.8,
                    lw=1.2,
                    label=None if number else way,
                )
        axes.set(title=env, xlabel="thousand samples", ylabel="return of an episode")
        axes.grid(visible=True, alpha=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, list[Curve]]] = {task: {way: [] for way in COLOURS} for task in chosen.tasks}
    with quiet_ray():
        for seed in range(chosen.seeds):
            for task, ways in results.items():
                settings = dict(TASKS[task])
                iterations = settings.pop("iterations")
                for way, curves in ways.items():
                    if way == "envfleet PPO":
                        curves.append(our_curve(task, seed, iterations, settings))
                    else:
                        curves.append(rllib_curve(task, way, seed, iterations, settings))
                    samples, last = curves[-1][-1]
                    print(f"{task:12} {way:13} seed {seed}: return {last:8.1f} after {samples:,} samples", flush=True)
            (chosen.out / "rllib_learning.json").write_text(json.dumps(results))
            draw(results, chosen.out / "rllib_learning.png")


if __name__ == "__main__":
    main()
