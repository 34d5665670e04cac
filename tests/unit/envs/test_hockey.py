"""Fleets of hockey games are the games one by one."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest

import envfleet
from envfleet.envs.hockey import HockeyEnv, HockeyOneEnv

NUM_ENVS = 3
STEPS = 170  # two games in a training mode


def play(fleet: Any) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(1)
    played = [[fleet.reset(seed=7)[0].copy()]]
    for _ in range(STEPS):
        actions = rng.uniform(-1, 1, fleet.action_space.shape).astype(np.float32)
        observations, rewards, terminated, truncated, infos = fleet.step(actions)
        played.append([np.copy(one) for one in (observations, rewards, terminated, truncated, infos["winner"])])
    fleet.close()
    return played


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("kind", [HockeyEnv, HockeyOneEnv])
def test_a_fleet_plays_like_gymnasiums_own(kind: Any, backend: Any) -> None:
    make_env = functools.partial(kind, mode="TRAIN_DEFENSE")
    expected = play(gymnasium.vector.SyncVectorEnv([make_env] * NUM_ENVS))
    got = play(envfleet.make(make_env, num_envs=NUM_ENVS, backend=backend, workers=None if backend == "serial" else 2))
    assert any(step[3].any() for step in expected[1:])
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(ours, theirs, f"step {number}")


def test_ids_work_in_processes() -> None:
    with envfleet.make("Hockey-One-v0", num_envs=2, backend="process", weak_opponent=True) as fleet:
        observations, _ = fleet.reset(seed=0)
        assert observations.shape == (2, 18)
        assert fleet.step(fleet.action_space.sample())[0].shape == (2, 18)


@pytest.mark.parametrize("kind", [HockeyEnv, HockeyOneEnv])
def test_saved_games_go_on_exactly_in_another_process(kind: Any) -> None:
    """A pickle of such an environment holds its arguments only, and a fleet once took it for a saved state."""

    def play_on(fleet: Any) -> list[np.ndarray]:
        rng = np.random.default_rng(1)
        actions = rng.uniform(-1, 1, (120, *fleet.action_space.shape)).astype(np.float32)
        return [np.column_stack(fleet.step(one)[:2]) for one in actions]

    make_env = functools.partial(kind, mode="TRAIN_SHOOTING")
    with envfleet.make(make_env, num_envs=2, backend="serial") as fleet:
        fleet.reset(seed=3)
        fleet.apply(lambda env: env.unwrapped.set_state(np.arange(18) % 4 / 8))
        play_on(fleet)
        state = pickle.loads(pickle.dumps(fleet.get_state()))
        expected = play_on(fleet)
    with envfleet.make(make_env, num_envs=2, backend="process", workers=2) as fleet:
        fleet.set_state(state)
        for step, (one, other) in enumerate(zip(play_on(fleet), expected, strict=True)):
            np.testing.assert_array_equal(one, other, str(step))
