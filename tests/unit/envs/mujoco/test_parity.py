"""Gymnasium's MuJoCo environments against the tasks that replace them: every bit of every result."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.testing.duel import Duel, differences_of

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("HalfCheetah-v5", {}),
    (
        "HalfCheetah-v5",
        {
            "frame_skip": 3,
            "forward_reward_weight": 1.5,
            "ctrl_cost_weight": 0.3,
            "reset_noise_scale": 0.05,
            "exclude_current_positions_from_observation": False,
        },
    ),
]
DEFAULTS = [one for one in VARIANTS if not one[1]]


def name(variant: tuple[str, dict[str, Any]]) -> str:
    return variant[0] + ("-arguments" if variant[1] else "")


def compare(env_id: str, kwargs: dict[str, Any], mode: AutoresetMode, num_steps: int, seed: int) -> None:
    num_envs = 4
    reference: Any = SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * num_envs, autoreset_mode=mode)
    subject = envfleet.make(env_id, num_envs, autoreset_mode=mode, **kwargs)
    try:
        assert subject.plan.backend == "native"
        duel = Duel(reference, subject)
        for space in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
            assert not list(differences_of(getattr(reference, space), getattr(subject, space), space))
        reference.action_space.seed(seed)
        found = [*duel.reset(seed=seed), *duel.roll(num_steps)]
        mask = np.array([True, False, False, True])
        found += [*duel.reset(options={"reset_mask": mask}), *duel.roll(num_steps // 4), *duel.check_kept()]
        assert not found, found[:5]
    finally:
        reference.close()
        subject.close()


@pytest.mark.parametrize("variant", VARIANTS, ids=name)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_short_rollouts_are_equal(variant: tuple[str, dict[str, Any]], mode: AutoresetMode) -> None:
    compare(*variant, mode, num_steps=60, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_many_episodes_are_equal(variant: tuple[str, dict[str, Any]], mode: AutoresetMode) -> None:
    for seed in range(4):
        compare(*variant, mode, num_steps=2_200, seed=100 * seed)
