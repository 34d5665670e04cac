"""Engines for any number of flights per decision are those of a kernel that was compiled for that number."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.envs.turbofan import engines
from envfleet.envs.turbofan.engines import make_engines

TURBOFAN = "envfleet/Turbofan-v0"
NUM_ENVS = 6


def assert_equal(actual: Any, expected: Any) -> None:
    """Compare observations, rewards, flags, infos and indices."""
    for left, right in zip(actual, expected, strict=True):
        if isinstance(left, dict):
            assert set(left) == set(right)
            for one, other in zip(left.get("final_obs", ()), right.get("final_obs", ()), strict=True):
                np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_array_equal(left, right)


LATER = (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)


@pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, *(pytest.param(mode, marks=pytest.mark.slow) for mode in LATER)]
)
def test_a_longer_program_shows_what_the_shorter_one_does(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SHORT_BLOCK", 1)  # ten flights are cut from the program for fifty
    rng, some = np.random.default_rng(0), np.array([4, 1])
    with (
        make_engines(gym.spec(TURBOFAN), NUM_ENVS, mode, {"step_size": 10, "max_episode_steps": 9}) as cut,
        envfleet.make(TURBOFAN, NUM_ENVS, backend="kernel", autoreset_mode=mode, max_episode_steps=9) as whole,
    ):
        assert cut.single_observation_space == whole.single_observation_space
        assert cut.observation_space == whole.observation_space
        np.testing.assert_array_equal(cut.reset(seed=5)[0], whole.reset(seed=5)[0])
        for _ in range(40):
            if mode is AutoresetMode.DISABLED and whole.terminated_indices:
                ended = whole.terminated_indices
                np.testing.assert_array_equal(cut.reset_envs(ended)[0], whole.reset_envs(ended)[0])
            actions = rng.choice(3, NUM_ENVS, p=[0.9, 0.08, 0.02])
            assert_equal(cut.step(actions), whole.step(actions))
            if mode is AutoresetMode.DISABLED and whole.terminated_indices:
                continue
            for fleet in (cut, whole):
                fleet.send(actions[some], some)
            assert_equal(cut.recv(), whole.recv())
        np.testing.assert_array_equal(cut.set_state(cut.get_state()), whole.set_state(whole.get_state()))


def test_the_last_row_alone_is_seen_everywhere() -> None:
    options = {"step_size": 7, "max_episode_steps": 3}
    spec, mode = gym.spec(TURBOFAN), AutoresetMode.SAME_STEP
    with (
        make_engines(spec, 2, mode, options) as whole,
        make_engines(spec, 2, mode, {**options, "return_all_states": False}) as last,
    ):
        rollouts = []
        for fleet in (whole, last):
            fleet.reset(seed=1)
            rollouts.append(fleet.rollout(np.zeros((5, 2), np.int64), 5))
        np.testing.assert_array_equal(rollouts[1].all_observations, rollouts[0].all_observations[..., -1, :])
        np.testing.assert_array_equal(rollouts[1].episodes.observations, rollouts[0].episodes.observations[:, -1])
        assert len(rollouts[1].episodes) == 2
