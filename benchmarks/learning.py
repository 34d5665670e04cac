"""Learning curves of the agents next to Stable-Baselines3's, with the same budgets, networks and hyperparameters."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from benchmarks.case import Session, Trained

import envfleet
from envfleet.agents import PPO, Collector, TransitionWriter
from envfleet.agents.loading import find_agent
from envfleet.training import train as train_by_config
from envfleet.training.records import read_history

NUM_EPISODES = 50
Points = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, an agent and a budget.

    Attributes:
        env: Id of the environment, ours.
        peer_env: Id of the environment of Stable-Baselines3.
        agent: Name of the agent.
        transitions: Budget.
        num_envs: Number of sub-environments.
        hyperparameters: Hyperparameters of the agent.
        updates: Gradient updates per transition; of PPO, steps per rollout.
        warmup: Transitions before the first update.
        every: Transitions between two evaluations.
        goal: Mean return that counts as learned.
    """

    env: str
    peer_env: str
    agent: str
    transitions: int
    num_envs: int
    hyperparameters: Mapping[str, Any]
    updates: float
    warmup: int = 1_000
    every: int = 0
    goal: float = 0.0

    @property
    def config(self) -> Any:
        """Hyperparameters as the agent takes them."""
        warmup = {} if self.agent == "PPO" else {"warmup": self.warmup}
        return find_agent(self.agent, "agent").config_class(**self.hyperparameters, **warmup)

    @property
    def updates_per_step(self) -> int:
        """Gradient updates per step of all sub-environments."""
        return round(self.num_envs * self.updates)


_SWING = {"hidden": (64, 64), "batch_size": 128, "learning_rate": 1e-3, "capacity": 20_000, "target_tau": 0.01}
_BALANCE = {"hidden": (128, 128), "batch_size": 128, "learning_rate": 5e-4, "capacity": 50_000, "num_steps": 3}
_BALANCE |= {"epsilon_end": 0.04, "epsilon_transitions": 8_000}
_BALANCE_PPO = {"learning_rate": 1e-3, "num_minibatches": 4, "gae_lambda": 0.9}
_PENDULUM, _CARTPOLE = ("envfleet/Pendulum-v1", "Pendulum-v1"), ("envfleet/CartPole-v1", "CartPole-v1")
TASKS = {
    "SAC": Task(*_PENDULUM, "SAC", 8_000, 4, _SWING, 1.0, every=1_000, goal=-200.0),
    "TD3": Task(*_PENDULUM, "TD3", 8_000, 4, _SWING, 1.0, every=1_000, goal=-200.0),
    "DDDQN": Task(*_CARTPOLE, "DDDQN", 50_000, 8, _BALANCE, 0.5, every=5_000, goal=475.0),
    "PPO": Task(*_CARTPOLE, "PPO", 102_400, 16, _BALANCE_PPO, 64, every=10_240, goal=475.0),
}
"""Tasks of the case `agents`, evaluated while they train."""

_SAC = {"gamma": 0.99, "batch_size": 256, "capacity": 100_000, "target_tau": 0.005}
_DDDQN = {"gamma": 0.99, "batch_size": 128, "capacity": 50_000, "target_tau": 1.0, "target_period": 128}
_PPO = {"gamma": 0.99, "gae_lambda": 0.95, "num_epochs": 4, "num_minibatches": 8, "entropy_weight": 0.01}
_LANDER = {**_DDDQN, "learning_rate": 6e-4, "hidden": (128, 128), "epsilon_end": 0.05, "epsilon_transitions": 15_000}
_CHEETAH = {**_SAC, "learning_rate": 3e-4, "hidden": (256, 256)}
_BREAKOUT = {**_PPO, "learning_rate": 1e-3, "hidden": (128,), "activation": "relu"}
LONG_TASKS = {
    "Pendulum": Task(*_PENDULUM, "SAC", 10_000, 4, {**_SAC, "learning_rate": 1e-3, "hidden": (128, 128)}, 1.0),
    "LunarLander": Task("LunarLander-v3", "LunarLander-v3", "DDDQN", 60_000, 4, _LANDER, 0.5),
    "Breakout": Task("envfleet/MinAtar-Breakout-v1", "MinAtar/Breakout-v1", "PPO", 300_000, 16, _BREAKOUT, 128),
    "HalfCheetah": Task("HalfCheetah-v5", "HalfCheetah-v5", "SAC", 100_000, 4, _CHEETAH, 0.5, warmup=10_000),
}
"""Tasks of the case `curves`, judged by their training episodes."""


def compare_agents(session: Session, *, tasks: tuple[str, ...] = tuple(TASKS)) -> None:
    """Compare agents on Pendulum and CartPole with Stable-Baselines3's.

    The figure is the last evaluation: 50 episodes with fixed seeds, without exploration.
    """
    torch.set_num_threads(1)
    for name in tasks:
        task = TASKS[name]
        ours = functools.partial(_evaluated, task, lambda task, seed: train(task, seed)[1])
        peer = functools.partial(_evaluated, task, _train_peer_with_evaluations)
        session.train(f"{name}, {task.peer_env}", {"envfleet": ours, "Stable-Baselines3": peer})


def _evaluated(task: Task, train: Callable[[Task, int], Evaluations], seed: int) -> Trained:
    start_s = time.process_time()
    evaluations = train(task, seed)
    cpu_s = time.process_time() - start_s - evaluations.cpu_s
    reached = next((transitions for transitions, value in evaluations.points if value >= task.goal), float("nan"))
    notes = {f"return {task.goal:g} after": reached, "CPU s": cpu_s}
    return Trained(evaluations.points[-1][1], evaluations.points, notes)


class Evaluations:
    """Evaluations of an agent while it trains, and the CPU time that they take.

    Attributes:
        points: Transitions and mean return of each evaluation.
        cpu_s: CPU seconds of all evaluations.
    """

    def __init__(self, task: Task) -> None:
        self._task, self.points, self.cpu_s = task, Points(), 0.0

    def after_step(self, transitions: int, act: Callable[[Any], Any]) -> None:
        """Evaluate if the next evaluation is scheduled."""
        if transitions >= (len(self.points) + 1) * self._task.every:
            start_s = time.process_time()
            result = envfleet.evaluate(act, self._task.env, episodes=NUM_EPISODES, seeds=10_000, num_envs=NUM_EPISODES)
            self.points.append((transitions, result.mean_return))
            self.cpu_s += time.process_time() - start_s


def train(task: Task, seed: int) -> tuple[Any, Evaluations]:
    """Train one of our agents by its own loop; return it and its evaluations."""
    evaluations = Evaluations(task)
    options: dict[str, Any] = {"backend": "kernel", "autoreset_mode": "SAME_STEP", "final_infos": False}
    with envfleet.make(task.env, task.num_envs, **options) as fleet:
        kind: Any = find_agent(task.agent, "agent")
        observation_space, action_space = fleet.single_observation_space, fleet.single_action_space
        agent = kind(observation_space, action_space, task.config, num_envs=task.num_envs, seed=seed)
        act = functools.partial(agent.act_batch, deterministic=True)
        if isinstance(agent, PPO):
            collector = Collector(fleet, int(task.updates), seed=seed)
            while agent.num_transitions < task.transitions:
                agent.update(collector.collect(agent))
                evaluations.after_step(agent.num_transitions, act)
            return agent, evaluations
        writer = TransitionWriter(fleet)
        observations, _ = fleet.reset(seed=seed)
        writer.reset(observations)
        while agent.num_transitions < task.transitions:
            actions = agent.act_batch(observations)
            step = fleet.step(actions)
            observations = step[0]
            agent.remember(writer.step(actions, *step))
            if agent.is_ready:
                agent.update(task.updates_per_step)
            evaluations.after_step(agent.num_transitions, act)
    return agent, evaluations


def _train_peer_with_evaluations(task: Task, seed: int) -> Evaluations:
    evaluations = Evaluations(task)

    def after_step(model: Any, infos: Any) -> None:
        act = functools.partial(model.predict, deterministic=True)
        evaluations.after_step(model.num_timesteps, lambda observations: act(observations)[0])

    _train_peer(task, seed, after_step)
    return evaluations


def _train_peer(task: Task, seed: int, after_step: Callable[[Any, Any], None]) -> None:
    """Train Stable-Baselines3's agent; for DDDQN its DQN, which is neither double nor dueling."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Callback(BaseCallback):
        def _on_step(self) -> bool:
            after_step(self.model, self.locals["infos"])
            return True

    if task.peer_env.startswith("MinAtar/"):
        from minatar.gym import register_envs

        register_envs()
    kind = getattr(sb3, "DQN" if task.agent == "DDDQN" else task.agent)
    envs = make_vec_env(task.peer_env, task.num_envs, seed=seed)
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **peer_options(task))
    model.learn(task.transitions, callback=Callback())
    envs.close()


def peer_options(task: Task) -> dict[str, Any]:
    """Translate the hyperparameters of a task to Stable-Baselines3's."""
    config = task.config
    options: dict[str, Any] = {"learning_rate": config.learning_rate, "gamma": config.gamma}
    if task.agent == "PPO":
        steps = int(task.updates)
        options |= {"n_steps": steps, "batch_size": steps * task.num_envs // config.num_minibatches}
        options |= {"n_epochs": config.num_epochs, "gae_lambda": config.gae_lambda, "ent_coef": config.entropy_weight}
        if task.peer_env.startswith("MinAtar/"):
            options["policy_kwargs"] = {
                "net_arch": list(config.hidden),
                "activation_fn": torch.nn.ReLU,
                "features_extractor_class": _convolutions(),
                "share_features_extractor": False,
            }
        return options
    options |= {"batch_size": config.batch_size, "buffer_size": config.capacity, "learning_starts": task.warmup}
    options |= {"tau": config.target_tau, "train_freq": 1, "gradient_steps": task.updates_per_step}
    options["policy_kwargs"] = {"net_arch": list(config.hidden)}
    if task.agent == "DDDQN":
        period = round(config.target_period / task.updates) if config.target_period > 1 else 1
        options |= {
            "target_update_interval": period,
            "exploration_fraction": (task.warmup + config.epsilon_transitions) / task.transitions,
            "exploration_final_eps": config.epsilon_end,
            "n_steps": config.num_steps,
        }
        if period == 1:  # its target moves once per step of all sub-environments, ours with every update
            options["tau"] = 1 - (1 - config.target_tau) ** task.updates_per_step
    if task.agent == "TD3":
        from stable_baselines3.common.noise import NormalActionNoise

        options["action_noise"] = NormalActionNoise(np.zeros(1), np.full(1, config.exploration_noise))
    return options


def _convolutions() -> type[Any]:
    """Return Stable-Baselines3's form of our encoder of small images."""
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Convolutions(BaseFeaturesExtractor):
        def __init__(self, observation_space: Any) -> None:
            height, width, channels = observation_space.shape
            super().__init__(observation_space, 16 * (height - 2) * (width - 2))
            self.layers = torch.nn.Sequential(torch.nn.Conv2d(channels, 16, 3), torch.nn.ReLU(), torch.nn.Flatten())

        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            features: torch.Tensor = self.layers(observations.permute(0, 3, 1, 2))
            return features

    return Convolutions


def compare_curves(
    session: Session,
    *,
    tasks: tuple[str, ...] = tuple(LONG_TASKS),
    transitions: int = 0,
    sides: tuple[str, ...] = ("envfleet", "Stable-Baselines3"),
) -> None:
    """Compare training returns on four tasks with Stable-Baselines3's.

    The figure is the mean over the last tenth of the budget.

    Args:
        session: Session of the case.
        tasks: Tasks.
        transitions: Budget, instead of the tasks' own.
        sides: Contenders; `between rounds` is ours without the thread that learns next to the games.
    """
    torch.set_num_threads(1)
    all_sides: dict[str, Any] = {
        "envfleet": _learn,
        "Stable-Baselines3": _learn_peer,
        "between rounds": functools.partial(_learn, is_beside=False),
    }
    for name in tasks:
        task = dataclasses.replace(LONG_TASKS[name], transitions=transitions or LONG_TASKS[name].transitions)
        session.train(f"{name}, {task.agent}", {side: functools.partial(all_sides[side], task) for side in sides})


def _learn(task: Task, seed: int, *, is_beside: bool = True) -> Trained:
    rate = {"rollout_steps": int(task.updates)} if task.agent == "PPO" else {"updates_per_step": task.updates}
    warmup = {} if task.agent == "PPO" else {"warmup_steps": task.warmup}
    once = {"eval_frequency": None, "eval_games": 2, "checkpoint_frequency": None, "learn_beside": is_beside}
    phase = {"name": "train", "transitions": task.transitions, "environment": {"id": task.env}}
    hyperparameters = {
        name: list(value) if isinstance(value, tuple) else value for name, value in task.hyperparameters.items()
    }
    config = {
        "curriculum": {"phases": [phase]},
        "training": {**rate, **warmup, **once},
        "agent": {"type": task.agent, "hyperparameters": hyperparameters},
    }
    backend: Any = "serial" if task.env == task.peer_env else "kernel"  # in this process, as Stable-Baselines3
    with tempfile.TemporaryDirectory() as runs:
        options: dict[str, Any] = {"seed": seed, "base_output_dir": runs, "verbose": False}
        result = train_by_config(config, num_envs=task.num_envs, backend=backend, **options)
        if result.reason != "completed":
            raise SystemExit(f"the run was {result.reason}: repeat the command, which continues with this seed")
        episodes = read_history(result.run_dir).episodes
    return _smoothed(task, episodes["transitions"].to_list(), episodes["return"].to_list())


def _learn_peer(task: Task, seed: int) -> Trained:
    ends, returns = list[int](), list[float]()

    def after_step(model: Any, infos: Any) -> None:
        for info in infos:
            if "episode" in info:
                ends.append(model.num_timesteps)
                returns.append(float(info["episode"]["r"]))

    _train_peer(task, seed, after_step)
    return _smoothed(task, ends, returns)


def _smoothed(task: Task, ends: list[int], returns: list[float]) -> Trained:
    """Return the mean of the episodes that ended in the tenth of the budget before each of 200 points."""
    curve: Points = []
    for point in np.linspace(0.1, 1.0, 200) * task.transitions:
        window = [
            value for end, value in zip(ends, returns, strict=True) if point - 0.1 * task.transitions < end <= point
        ]
        if window:
            curve.append((float(point), float(np.mean(window))))
    return Trained(curve[-1][1], curve, {"mean of the curve": float(np.mean([value for _, value in curve]))})
