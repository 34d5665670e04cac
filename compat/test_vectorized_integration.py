"""Check in at most two minutes that training with two games side by side works, and how much faster it is than one.

    python test_vectorized_integration.py

Trains by configs/curriculum_simple.json, or by the shipped configuration of that name, with short runs.
"""

from __future__ import annotations

import statistics
import tempfile
from typing import Any

import numpy as np
import torch
from rl_hockey.common.training.older_files import read_older
from rl_hockey.common.training.train_single_run import train_single_run
from rl_hockey.common.vectorized_env import VectorizedHockeyEnvOptimized

from envfleet.agents import load_agent

NUM_ENVS = 2
TURNS = 2  # of each number of games, by turns, so that other programs slow down both
BUDGET: dict[str, Any] = {"max_transitions": 3_000, "max_minutes": 0.3}  # of each run
CHANGES = {"warmup_steps": 300, "eval_frequency": None, "checkpoint_frequency": None}


def main() -> None:
    """Run all checks; print what each verified, and the speed-up."""
    torch.set_num_threads(1)
    check_games()
    speeds: dict[int, list[float]] = {1: [], NUM_ENVS: []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(TURNS):
            for num_envs, rates in speeds.items():
                config = read_older("configs/curriculum_simple.json", num_envs)
                config["training"] = config.get("training", {}) | CHANGES
                result = train_single_run(config, folder, verbose=False, eval_num_games=10, num_envs=num_envs, **BUDGET)
                rates.append(result["steps_per_s"])
        check_run(result)
    one, both = (statistics.median(rates) for rates in speeds.values())
    print(
        f"speed-up: {both / one:.2f} x, {both:,.0f} transitions per second with {NUM_ENVS} games, {one:,.0f} with one "
        f"(medians of {TURNS} short runs each)"
    )


def check_games() -> None:
    """Step two games until both have ended and begun again."""
    env: Any = VectorizedHockeyEnvOptimized(NUM_ENVS, mode="TRAIN_SHOOTING", backend="serial")
    env.reset(seed=0)
    ended = np.zeros(NUM_ENVS, int)
    for _ in range(200):
        observations, _, terminated, truncated, _ = env.step(np.zeros((NUM_ENVS, 8), np.float32))
        ended += terminated | truncated
    others = env.obs_agent_two()
    env.close()
    verify(
        observations.shape == others.shape == (NUM_ENVS, 18), f"{NUM_ENVS} games are stepped and seen from both sides"
    )
    verify(bool((ended > 0).all()), "a game that ends is reset while the other one continues")


def check_run(result: dict[str, Any]) -> None:
    """Look at what a run with two games reports and leaves behind."""
    steps, updates = result["total_steps"], result["total_updates"]
    verify(result["run_name"].endswith(f"_vec{NUM_ENVS}"), f"the run is called {result['run_name']}")
    verify(
        steps > 0 and steps % NUM_ENVS == 0,
        f"{steps:,} transitions, {NUM_ENVS} per step, {result['total_episodes']} episodes",
    )
    verify(updates > 0, f"{updates:,} gradient updates, {updates / steps:.2f} per transition")
    evaluations = result["evaluation"]
    verify(
        bool(evaluations),
        "evaluated against " + ", ".join(f"{name} ({one['games']:.0f} games)" for name, one in evaluations.items()),
    )
    agent = load_agent(result["checkpoint"])
    states = np.random.default_rng(0).normal(size=(NUM_ENVS, 18)).astype(np.float32)
    single = np.concatenate([agent.act_batch(states[[row]], True) for row in range(NUM_ENVS)])
    verify(
        np.allclose(agent.act_batch(states, True), single, atol=1e-5),
        "the checkpoint acts for a batch as for each game alone",
    )


def verify(is_so: bool, what: str) -> None:
    """Print what was verified, or end with the check that failed."""
    if not is_so:
        raise SystemExit(f"FAILED: {what}")
    print(f"verified: {what}", flush=True)


if __name__ == "__main__":
    main()
