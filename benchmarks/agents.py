"""Learning curves of the agents on known ground, beside Stable-Baselines3 with the same budget.

    python benchmarks/agents.py OUT                             # all, three seeds: about fifteen minutes of CPU
    python benchmarks/agents.py OUT --seeds 1 --sides envfleet  # ours alone, once: two minutes

Writes OUT/agents.json and OUT/agents.png. Both sides get the same environments, hyperparameters, number of gradient
updates and sub-environments, and are evaluated alike: their best actions in 50 episodes of fixed seeds. Ours step
compiled environments, the peer Gymnasium's own.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import envfleet
from envfleet.agents import (
    DDDQN,
    PPO,
    SAC,
    TD3,
    Collector,
    DDDQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    TransitionWriter,
)

NUM_EPISODES = 50
OFF_POLICY: dict[str, Any] = {"hidden": (64, 64), "batch_size": 128, "warmup": 1000}


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, by whom, for how long.

    Attributes:
        agent: Class of the agent.
        config: Its hyperparameters.
        env: Gymnasium's name of the environment.
        goal: Mean return that counts as learned.
        transitions: The budget.
        num_envs: Sub-environments.
        updates: Gradient updates per transition; of PPO, steps per slab.
        every: Transitions between evaluations.
    """

    agent: type[Any]
    config: Any
    env: str
    goal: float
    transitions: int
    num_envs: int
    updates: float
    every: int


_SWING = {**OFF_POLICY, "learning_rate": 1e-3, "capacity": 20_000, "target_tau": 0.01}
TASKS = {
    "SAC": Task(SAC, SACConfig(**_SWING), "Pendulum-v1", -200.0, 8_000, 4, 1.0, 1_000),
    "TD3": Task(TD3, TD3Config(**_SWING), "Pendulum-v1", -200.0, 8_000, 4, 1.0, 1_000),
    "DDDQN": Task(
        DDDQN,
        DDDQNConfig(
            **{**OFF_POLICY, "hidden": (128, 128)},
            learning_rate=5e-4,
            capacity=50_000,
            num_steps=3,
            epsilon_end=0.04,
            epsilon_transitions=8_000,
        ),
        "CartPole-v1",
        475.0,
        50_000,
        8,
        0.5,
        5_000,
    ),
    "PPO": Task(
        PPO,
        PPOConfig(learning_rate=1e-3, num_minibatches=4, gae_lambda=0.9),
        "CartPole-v1",
        475.0,
        102_400,
        16,
        64,
        10_240,
    ),
}
Act = Callable[[Any], Any]
Curve = list[tuple[int, float, float]]  # transitions, CPU seconds of training, mean return


def evaluate(act: Act, env: str, num_episodes: int = NUM_EPISODES) -> float:
    """Mean return of one episode in each of `num_episodes` sub-environments, seeded from 10,000 on."""
    with envfleet.make(f"envfleet/{env}", num_episodes, backend="kernel", autoreset_mode="SAME_STEP") as fleet:
        observations, _ = fleet.reset(seed=10_000)
        returns, is_running = np.zeros(num_episodes), np.ones(num_episodes, bool)
        while is_running.any():
            observations, rewards, terminated, truncated, _ = fleet.step(act(observations))
            returns += rewards * is_running
            is_running &= ~(terminated | truncated)
    return float(returns.mean())


class Record:
    """Takes an evaluation every so many transitions; its time does not count."""

    def __init__(self, task: Task, act: Act) -> None:
        self._task, self._act, self.curve = task, act, Curve()
        self._start_s = time.process_time()

    def tell(self, transitions: int) -> None:
        if transitions >= (len(self.curve) + 1) * self._task.every:
            now = time.process_time()
            self.curve.append((transitions, now - self._start_s, evaluate(self._act, self._task.env)))
            self._start_s += time.process_time() - now


def train(task: Task, seed: int) -> tuple[Any, Curve]:
    """Train one of our agents; also the test of it, in tests/unit/agents/test_learning.py."""
    with envfleet.make(
        f"envfleet/{task.env}", task.num_envs, backend="kernel", autoreset_mode="SAME_STEP", final_infos=False
    ) as fleet:
        agent = task.agent(
            fleet.single_observation_space, fleet.single_action_space, task.config, num_envs=task.num_envs, seed=seed
        )
        record = Record(task, lambda observations: agent.act_batch(observations, deterministic=True))
        if isinstance(agent, PPO):
            collector = Collector(fleet, int(task.updates), seed=seed)
            while agent.num_transitions < task.transitions:
                agent.update(collector.collect(agent))
                record.tell(agent.num_transitions)
            return agent, record.curve
        writer = TransitionWriter(fleet)
        observations, _ = fleet.reset(seed=seed)
        writer.reset(observations)
        while agent.num_transitions < task.transitions:
            actions = agent.act_batch(observations)
            step = fleet.step(actions)
            observations = step[0]
            agent.remember(writer.step(actions, *step))
            if agent.is_ready:
                agent.update(round(task.num_envs * task.updates))
            record.tell(agent.num_transitions)
    return agent, record.curve


def train_peer(task: Task, seed: int) -> Curve:
    """Train Stable-Baselines3's agent of that kind (of DDDQN, its DQN, which is neither double nor dueling)."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Callback(BaseCallback):
        def _on_step(self) -> bool:
            record.tell(self.num_timesteps)
            return True

    config = task.config
    options: dict[str, Any] = {"learning_rate": config.learning_rate, "gamma": config.gamma}
    if task.agent is PPO:
        options |= {
            "n_steps": int(task.updates),
            "batch_size": int(task.updates) * task.num_envs // config.num_minibatches,
            "n_epochs": config.num_epochs,
            "gae_lambda": config.gae_lambda,
            "ent_coef": config.entropy_weight,
        }
    else:
        options |= {
            "batch_size": config.batch_size,
            "buffer_size": config.capacity,
            "learning_starts": config.warmup,
            "tau": config.target_tau,
            "train_freq": 1,
            "gradient_steps": round(task.num_envs * task.updates),
            "policy_kwargs": {"net_arch": list(config.hidden)},
        }
    if task.agent is DDDQN:
        options |= {
            # Its target moves once per step of all sub-environments, ours with every update.
            "tau": 1 - (1 - config.target_tau) ** round(task.num_envs * task.updates),
            "exploration_fraction": config.epsilon_transitions / task.transitions,
            "exploration_final_eps": config.epsilon_end,
            "target_update_interval": 1,
            "n_steps": config.num_steps,
        }
    if task.agent is TD3:
        options["action_noise"] = sb3.common.noise.NormalActionNoise(np.zeros(1), np.full(1, config.exploration_noise))
    kind: Any = {"SAC": sb3.SAC, "TD3": sb3.TD3, "DDDQN": sb3.DQN, "PPO": sb3.PPO}[task.agent.__name__]
    envs = make_vec_env(task.env, task.num_envs, seed=seed)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **options)
    record = Record(task, lambda observations: model.predict(observations, deterministic=True)[0])
    model.learn(task.transitions, callback=Callback())
    envs.close()
    return record.curve


SIDES: dict[str, Callable[[Task, int], Curve]] = {
    "envfleet": lambda task, seed: train(task, seed)[1],
    "Stable-Baselines3": train_peer,
}


def plot(results: dict[str, dict[str, list[Curve]]], path: Path) -> None:
    """One panel per task: the mean over seeds, and every seed as a thin line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.2), layout="constrained")
    for axes, (name, sides) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        for colour, (side, curves) in zip(("tab:blue", "tab:orange"), sides.items(), strict=False):
            lines = [np.array(curve) for curve in curves]
            for line in lines:
                axes.plot(line[:, 0], line[:, 2], color=colour, alpha=0.3, linewidth=0.8)
            mean, seconds = np.mean([line[:, 2] for line in lines], axis=0), np.mean([line[-1, 1] for line in lines])
            axes.plot(lines[0][:, 0], mean, color=colour, label=f"{side} ({seconds:.0f} CPU s)")
        axes.axhline(TASKS[name].goal, color="grey", linestyle=":", linewidth=0.8)
        axes.set(title=f"{name}, {TASKS[name].env}", xlabel="transitions", ylabel="return, 50 episodes")
        axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "agents.json"
    results: dict[str, dict[str, list[Curve]]] = json.loads(file.read_text()) if file.exists() else {}
    for name in options.only:
        for side in options.sides:
            curves = [SIDES[side](TASKS[name], seed) for seed in range(options.seeds)]
            results.setdefault(name, {})[side] = curves
            for seed, curve in enumerate(curves):
                reached = next((f"{t:,}" for t, _, mean in curve if mean >= TASKS[name].goal), "never")
                print(f"{name:6} {side:18} seed {seed}: goal reached after {reached:>7}, at the end "
                      f"{curve[-1][2]:7.1f}, {curve[-1][1]:4.0f} CPU s", flush=True)  # fmt: skip
            file.write_text(json.dumps(results))
            plot(results, options.out / "agents.png")


if __name__ == "__main__":
    main()
