"""PPO with our vector environment, and with those of Stable-Baselines3 and Gymnasium."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.case import Session
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics
from stable_baselines3 import PPO
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

import envfleet
from envfleet.adapters.old_infos import OldInfos
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.bench.workloads import Workload, resolve

BATCH = 1_024  # transitions between updates, which have four epochs of four minibatches
UPDATES = {"breakout": 2}  # of workloads with convolutions


def compare_ppo(
    session: Session,
    *,
    workloads: tuple[str, ...] = ("halfcheetah", "breakout", "minigrid", "lunar"),
    sizes: tuple[int, ...] = (8, 32),
    trainers: tuple[str, ...] = ("SB3", "CleanRL"),
    updates: int = 16,
) -> None:
    """Compare PPO of Stable-Baselines3 and in the style of CleanRL, where only the vector environment changes.

    `updates` is for workloads that are not in `UPDATES`. Construction and the first reset are not measured.
    """
    for name in workloads:
        for num_envs in sizes:
            for trainer in trainers:
                weights: dict[str, torch.Tensor] = {}
                kinds, learn = TRAINERS[trainer](resolve(name), num_envs)
                train = functools.partial(_train, learn, UPDATES.get(name, updates), weights)
                contenders = {label: functools.partial(train, label, make) for label, make in kinds.items()}
                notes = {label: functools.partial(_compare, weights, label) for label in kinds if label != "envfleet"}
                contenders["Dummy / Sync"]()  # lets torch import what it imports late
                session.compare(f"{trainer}, {num_envs} × {name}", contenders, notes)


def _train(learn: Any, updates: int, weights: dict[str, torch.Tensor], label: str, make: Callable[[], Any]) -> float:
    """Return transitions per second, and keep the final weights."""
    with contextlib.closing(make()) as envs:
        envs.reset()  # returns when all workers have started
        start_s = time.perf_counter()
        module = learn(envs, BATCH // envs.num_envs, BATCH * updates)
        elapsed_s = time.perf_counter() - start_s
    weights[label] = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    return BATCH * updates / elapsed_s


def _compare(weights: dict[str, torch.Tensor], label: str) -> dict[str, str]:
    return {"same weights": "yes" if torch.equal(weights[label], weights["envfleet"]) else "no"}


def _sb3(workload: Workload, num_envs: int) -> tuple[dict[str, Callable[[], Any]], Any]:
    def learn(envs: Any, steps: int, total: int) -> torch.nn.Module:
        policy = "CnnPolicy" if workload.name in UPDATES else "MlpPolicy"
        model = PPO(policy, envs, n_steps=steps, batch_size=BATCH // 4, n_epochs=4, seed=0, device="cpu")
        return model.learn(total).policy

    builds: list[Callable[[], Any]] = [lambda: Monitor(workload.build())] * num_envs
    return {
        "envfleet": lambda: FleetVecEnv(workload.spec, num_envs),
        "Dummy / Sync": lambda: DummyVecEnv(builds),
        # By default every worker imports torch, which takes minutes for 32 of them.
        "Subproc / Async": lambda: SubprocVecEnv(builds, start_method="fork"),
    }, learn


def _cleanrl(workload: Workload, num_envs: int) -> tuple[dict[str, Callable[[], Any]], Any]:
    def learn(envs: Any, steps: int, total: int) -> Any:
        example: Any = importlib.import_module("examples.cleanrl_ppo")
        args = example.parser.parse_args(["--num-steps", str(steps), "--total-timesteps", str(total)])
        with contextlib.redirect_stdout(io.StringIO()):
            return example.train(envs, args)

    builds, mode = [lambda: RecordEpisodeStatistics(workload.build())] * num_envs, AutoresetMode.SAME_STEP
    return {
        "envfleet": lambda: OldInfos(envfleet.make(workload.spec, num_envs, record_episodes=True, autoreset_mode=mode)),
        "Dummy / Sync": lambda: OldInfos(SyncVectorEnv(builds, autoreset_mode=mode)),
        "Subproc / Async": lambda: OldInfos(AsyncVectorEnv(builds, autoreset_mode=mode)),
    }, learn


TRAINERS = {"SB3": _sb3, "CleanRL": _cleanrl}
"""Functions that return a trainer's vector environments and its training."""
