"""Returns of training episodes over transitions, beside Stable-Baselines3 with the same algorithm and hyperparameters.

    python benchmarks/curves.py OUT                             # everything: an hour of CPU
    python benchmarks/curves.py OUT --only LunarLander --seeds 0 --steps 20000
    python benchmarks/curves.py OUT --only Pendulum --sides envfleet "between rounds"    # what learning beside costs

Each run leaves a file in OUT/runs and is not made again: take another OUT once a task has changed. All of them go into
OUT/curves.json and OUT/curves.png.
Ours are trained by `envfleet.training.train` with a configuration; `options_of` translates it for the peer.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from envfleet.training import train
from envfleet.training.records import read_history

SHARE = 0.1  # of a run's transitions: width of the window that a point of a curve is the mean of
NUM_POINTS = 200


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learned, and how.

    Attributes:
        env: Its id in a configuration of ours.
        peer_env: Its id for the peer.
        agent: Ours.
        transitions: The budget.
        num_envs: Sub-environments.
        num_seeds: Runs of each side, with seeds from 0 on.
        training: Section of the configuration.
        hyperparameters: Of the agent.
    """

    env: str
    peer_env: str
    agent: str
    transitions: int
    num_envs: int
    num_seeds: int
    training: dict[str, Any]
    hyperparameters: dict[str, Any]

    def config(self) -> dict[str, Any]:
        """Return the configuration of ours."""
        phase = {"name": "train", "transitions": self.transitions, "environment": {"id": self.env}}
        only_at_the_end = {"eval_frequency": None, "eval_games": 2, "checkpoint_frequency": None}
        return {
            "curriculum": {"phases": [phase]},
            "training": {**self.training, **only_at_the_end},
            "agent": {"type": self.agent, "hyperparameters": self.hyperparameters},
        }


_SAC = {"gamma": 0.99, "batch_size": 256, "capacity": 100_000, "target_tau": 0.005}
_DDDQN = {"gamma": 0.99, "batch_size": 128, "capacity": 50_000, "target_tau": 1.0, "target_period": 128}
_PPO = {"gamma": 0.99, "gae_lambda": 0.95, "num_epochs": 4, "num_minibatches": 8, "entropy_weight": 0.01}
TASKS = {
    "Pendulum": Task(
        env="envfleet/Pendulum-v1",
        peer_env="Pendulum-v1",
        agent="SAC",
        transitions=10_000,
        num_envs=4,
        num_seeds=3,
        training={"warmup_steps": 1_000, "updates_per_step": 1.0},
        hyperparameters={**_SAC, "learning_rate": 1e-3, "hidden": [128, 128]},
    ),
    "LunarLander": Task(
        env="LunarLander-v3",
        peer_env="LunarLander-v3",
        agent="DDDQN",
        transitions=60_000,
        num_envs=4,
        num_seeds=3,
        training={"warmup_steps": 1_000, "updates_per_step": 0.5},
        hyperparameters={
            **_DDDQN,
            "learning_rate": 6e-4,
            "hidden": [128, 128],
            "epsilon_end": 0.05,
            "epsilon_transitions": 15_000,
        },
    ),
    "Breakout": Task(
        env="envfleet/MinAtar-Breakout-v1",
        peer_env="MinAtar/Breakout-v1",
        agent="PPO",
        transitions=300_000,
        num_envs=16,
        num_seeds=3,
        training={"rollout_steps": 128},
        hyperparameters={**_PPO, "learning_rate": 1e-3, "hidden": [128], "activation": "relu"},
    ),
    "HalfCheetah": Task(
        env="HalfCheetah-v5",
        peer_env="HalfCheetah-v5",
        agent="SAC",
        transitions=100_000,
        num_envs=4,
        num_seeds=1,
        training={"warmup_steps": 10_000, "updates_per_step": 0.5},
        hyperparameters={**_SAC, "learning_rate": 3e-4, "hidden": [256, 256]},
    ),
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """The episodes of one training.

    Attributes:
        transitions: Made when each episode ended, over all sub-environments.
        returns: Undiscounted, of each episode.
        cpu_s: CPU seconds of the whole training.
    """

    transitions: list[int]
    returns: list[float]
    cpu_s: float

    def smoothed(self, budget: int) -> NDArray[np.float64]:
        """Return the mean of the episodes that ended in the window before each point, NaN without one."""
        ends, returns = np.array(self.transitions), np.array(self.returns)
        windows = [(ends > point - SHARE * budget) & (ends <= point) for point in points_of(budget)]
        return np.array([returns[window].mean() if window.any() else np.nan for window in windows])


def points_of(budget: int) -> NDArray[np.float64]:
    """Return the transitions at which curves are drawn."""
    return np.linspace(SHARE * budget, budget, NUM_POINTS)


def learn(task: Task, seed: int, *, is_beside: bool = True) -> Curve:
    """Train one of our agents; its CPU time includes records, plots, a checkpoint and an evaluation."""
    config = task.config()
    config["training"]["learn_beside"] = is_beside
    with tempfile.TemporaryDirectory() as runs:
        start_s = time.process_time()
        result = train(
            config,
            num_envs=task.num_envs,
            backend="serial" if task.env == task.peer_env else "kernel",  # in this process, as the peer's
            seed=seed,
            base_output_dir=runs,
            verbose=False,
        )
        cpu_s = time.process_time() - start_s
        if result.reason != "completed":
            raise SystemExit(f"the run was {result.reason}: call the command again")
        episodes = read_history(result.run_dir).episodes
    return Curve(episodes["transitions"].to_list(), episodes["return"].to_list(), cpu_s)


def learn_peer(task: Task, seed: int) -> Curve:
    """Train Stable-Baselines3's agent of that kind; of DDDQN, its DQN, which is neither double nor dueling."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Callback(BaseCallback):
        def _on_step(self) -> bool:
            for info in self.locals["infos"]:
                if "episode" in info:
                    ends.append(self.num_timesteps)
                    returns.append(float(info["episode"]["r"]))
            return True

    if task.peer_env.startswith("MinAtar/"):
        from minatar.gym import register_envs

        register_envs()
    ends, returns = list[int](), list[float]()
    start_s = time.process_time()
    envs = make_vec_env(task.peer_env, task.num_envs, seed=seed)
    kind: Any = {"SAC": sb3.SAC, "DDDQN": sb3.DQN, "PPO": sb3.PPO}[task.agent]
    model = kind("MlpPolicy", envs, seed=seed, device="cpu", **options_of(task))
    model.learn(task.transitions, callback=Callback())
    envs.close()
    return Curve(ends, returns, time.process_time() - start_s)


def options_of(task: Task) -> dict[str, Any]:
    """Return what the peer calls the hyperparameters of a task."""
    given = task.hyperparameters
    options = {"learning_rate": given["learning_rate"], "gamma": given["gamma"]}
    if task.agent == "PPO":
        steps = task.training["rollout_steps"]
        return options | {
            "n_steps": steps,
            "batch_size": steps * task.num_envs // given["num_minibatches"],
            "n_epochs": given["num_epochs"],
            "gae_lambda": given["gae_lambda"],
            "ent_coef": given["entropy_weight"],
            "policy_kwargs": {
                "net_arch": given["hidden"],
                "activation_fn": torch.nn.ReLU,
                "features_extractor_class": convolutions(),
                "share_features_extractor": False,
            },
        }
    options |= {
        "batch_size": given["batch_size"],
        "buffer_size": given["capacity"],
        "learning_starts": task.training["warmup_steps"],
        "tau": given["target_tau"],
        "train_freq": 1,
        "gradient_steps": round(task.num_envs * task.training["updates_per_step"]),
        "policy_kwargs": {"net_arch": given["hidden"]},
    }
    if task.agent == "DDDQN":
        ends_after = task.training["warmup_steps"] + given["epsilon_transitions"]
        options |= {
            "target_update_interval": round(given["target_period"] / task.training["updates_per_step"]),  # transitions
            "exploration_fraction": ends_after / task.transitions,
            "exploration_final_eps": given["epsilon_end"],
        }
    return options


def convolutions() -> type[Any]:
    """Return the peer's form of the encoder that ours puts before dense layers where images are small."""
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


SIDES: dict[str, Callable[[Task, int], Curve]] = {
    "envfleet": learn,
    "Stable-Baselines3": learn_peer,
    "between rounds": functools.partial(learn, is_beside=False),
}
Results = dict[str, dict[str, list[Curve]]]  # by task and side, one per seed


def collect(out: Path, tasks: dict[str, Task]) -> Results:
    """Read the runs that there are."""
    results: Results = {}
    for name, task in tasks.items():
        for side in SIDES:
            files = sorted((out / "runs").glob(f"{name}_{task.transitions}_{side}_*.json"))
            curves = [Curve(**json.loads(file.read_text())) for file in files]
            if curves:
                results.setdefault(name, {})[side] = curves
    return results


def summarise(results: Results, tasks: dict[str, Task]) -> dict[str, Any]:
    """Return, by task and side, the mean return of each seed's last tenth and over the whole run, and CPU minutes."""
    summary: dict[str, Any] = {}
    for name, sides in results.items():
        for side, curves in sides.items():
            lines = [curve.smoothed(tasks[name].transitions) for curve in curves]
            summary.setdefault(name, {})[side] = {
                "at the end": [round(float(line[-1]), 2) for line in lines],
                "mean of the curve": [round(float(np.nanmean(line)), 2) for line in lines],
                "cpu_minutes": [round(curve.cpu_s / 60, 2) for curve in curves],
            }
    return summary


def plot(results: Results, tasks: dict[str, Task], path: Path) -> None:
    """Draw a panel per task: a thin line per seed, and a thick one for their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.4), layout="constrained")
    for axes, (name, sides) in zip(figure.subplots(1, len(results), squeeze=False)[0], results.items(), strict=True):
        task, agent = tasks[name], tasks[name].agent
        for colour, (side, curves) in zip(("tab:blue", "tab:orange", "tab:green"), sides.items(), strict=False):
            lines = np.array([curve.smoothed(task.transitions) for curve in curves])
            minutes, points = np.mean([curve.cpu_s for curve in curves]) / 60, points_of(task.transitions) / 1000
            algorithm = "DQN" if agent == "DDDQN" and side == "Stable-Baselines3" else agent
            seeds = f"{len(curves)} seed{'s' * (len(curves) > 1)}"
            label = f"{side} {algorithm}, {seeds}, {minutes:.1f} CPU min"
            axes.plot(points, lines.T, color=colour, alpha=0.35, linewidth=0.8)
            axes.plot(points, lines.mean(axis=0), color=colour, linewidth=2, label=label)
        axes.set(title=task.peer_env, xlabel="thousand transitions")
        axes.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.18))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("return of training episodes")
    figure.savefig(path, dpi=110)


def write(path: Path, content: Any) -> None:
    """Write a file as a whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content) + "\n", encoding="utf-8")
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES)[:2])
    parser.add_argument("--seeds", type=int, nargs="*", help="by default those of each task; none: only draw")
    parser.add_argument("--steps", type=int, help="transitions of each run, instead of each task's own")
    given = parser.parse_args()
    torch.set_num_threads(1)
    (given.out / "runs").mkdir(parents=True, exist_ok=True)
    tasks = {
        name: dataclasses.replace(task, transitions=given.steps or task.transitions) for name, task in TASKS.items()
    }
    for name in given.only:
        for seed in range(tasks[name].num_seeds) if given.seeds is None else given.seeds:
            for side in given.sides:
                file = given.out / "runs" / f"{name}_{tasks[name].transitions}_{side}_{seed}.json"
                if not file.exists():
                    curve = SIDES[side](tasks[name], seed)
                    write(file, dataclasses.asdict(curve))
                    print(f"{name}, {side}, seed {seed}: {curve.cpu_s / 60:.1f} CPU minutes", flush=True)
    results = collect(given.out, tasks)
    summary = summarise(results, tasks)
    print(json.dumps(summary, indent=1))
    curves = {
        name: {side: [dataclasses.asdict(curve) for curve in found] for side, found in sides.items()}
        for name, sides in results.items()
    }
    ran = {name: {"num_envs": tasks[name].num_envs, "config": tasks[name].config()} for name in results}
    write(given.out / "curves.json", {"ran": ran, "summary": summary, "curves": curves})
    plot(results, tasks, given.out / "curves.png")


if __name__ == "__main__":
    main()
