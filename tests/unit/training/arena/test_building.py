"""The default fleet of a run."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from envfleet.envs.games import known_game
from envfleet.errors import InvalidArgument
from envfleet.training import RunOptions
from envfleet.training.arena import building
from envfleet.training.arena.building import make_arena, make_fleet
from envfleet.training.arena.stopwatch import Stopwatch
from envfleet.training.config import parse_config
from envfleet.training.loop.trainer import Trainer
from envfleet.training.phases import Environment
from envfleet.training.plan import resolve

HOCKEY = known_game("hockey")


@pytest.mark.parametrize(("num_envs", "engine", "backend"), [(2, "compiled", "kernel"), (1, "box2d", "serial")])
def test_what_is_compiled_is_a_kernel_and_one_game_is_serial(num_envs: int, engine: str, backend: str) -> None:
    with contextlib.closing(make_fleet(Environment(), RunOptions(num_envs=num_envs, engine=engine), HOCKEY)) as fleet:
        assert fleet.plan.backend == backend


def test_an_engine_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="engine='ice': pass one of 'compiled', 'box2d'"):
        make_fleet(Environment(), RunOptions(engine="ice"), HOCKEY)


def test_several_games_on_box2d_are_where_a_trial_says() -> None:
    with contextlib.closing(make_fleet(Environment(), RunOptions(num_envs=2, engine="box2d"), HOCKEY)) as fleet:
        assert fleet.plan.reason.startswith("auto:")


BY_TORCH: dict[str, Any] = {"compiled": False}


@pytest.mark.parametrize(
    ("kind", "hyperparameters", "device", "workers"),
    [("SAC", {}, "cpu", 3), ("SAC", BY_TORCH, "cpu", 4), ("SAC", {}, "cuda", 4), ("PPO", {}, "cpu", 4)],
)
def test_a_thread_that_learns_beside_the_games_has_a_core(
    monkeypatch: pytest.MonkeyPatch, kind: str, hyperparameters: dict[str, Any], device: str, workers: int
) -> None:
    monkeypatch.setattr(building, "whole_cores", lambda: 4)
    monkeypatch.setattr("envfleet.backends.whole_cores", lambda: 4)
    monkeypatch.setattr("envfleet.choice.CHEAP_STEP_S", 0.0)
    monkeypatch.setattr("envfleet.choice.MARGIN", 0.0)  # so that processes are always chosen
    phase = {"name": "all", "transitions": 1_000, "environment": {"id": "Pendulum-v1"}}
    config = parse_config(
        {"curriculum": {"phases": [phase]}, "agent": {"type": kind, "hyperparameters": hyperparameters}}
    )
    options = RunOptions(num_envs=8, device=device)
    seed = np.random.SeedSequence(0)
    with contextlib.closing(make_arena(resolve(config, options), 0, seed=seed, stopwatch=Stopwatch())) as arena:
        assert (arena.fleet.plan.backend, arena.fleet.plan.num_workers) == ("process", workers)


def plan(*kwargs: dict[str, Any], env: str = "FrozenLake-v1") -> Any:
    phases = [
        {"name": f"phase {number}", "transitions": 64, "environment": {"id": env, "kwargs": one}}
        for number, one in enumerate(kwargs)
    ]
    return parse_config({"curriculum": {"phases": phases}, "agent": {"type": "PPO"}})


def test_incompatible_phases_are_refused_before_the_first() -> None:
    small, large = {"map_name": "4x4"}, {"map_name": "8x8"}
    message = r"phase 0.* Discrete\(16\) .*phase 2.* Discrete\(64\) .*train in several runs"
    with pytest.raises(InvalidArgument, match=message):
        Trainer(resolve(plan(small, {**small, "is_slippery": False}, large)))


def test_phases_with_other_bounds_of_actions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"phase 0.*Box\(-1.0, 1.0.*phase 1.*Box\(-2.0, 2.0"):
        Trainer(resolve(plan({"reach": 1.0}, {"reach": 2.0}, env="tests.unit.training.own:Reaching")))


def test_phases_may_change_what_agents_do_not_see() -> None:
    with contextlib.closing(Trainer(resolve(plan({"is_slippery": True}, {"is_slippery": False})))) as trainer:
        assert len(trainer.plan.phases) == 2
