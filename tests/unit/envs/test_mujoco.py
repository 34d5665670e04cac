"""Gymnasium's MuJoCo environments against the tasks that replace them: every bit of every result."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import envfleet
from envfleet.testing.duel import Duel, differences_of

_NAMES = (
    *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum"),
    *("InvertedPendulum", "Pusher", "Reacher", "Swimmer", "Walker2d"),
)
_WHERE = {"exclude_current_positions_from_observation": False}
_WALK = {"forward_reward_weight": 1.5, "ctrl_cost_weight": 0.3, "reset_noise_scale": 0.05}
_HEALTH = {"healthy_reward": 0.5, "terminate_when_unhealthy": False}
_PARTS = {"include_cvel_in_observation": False, "include_qfrc_actuator_in_observation": False}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "Ant": {
        **_WALK,
        **_HEALTH,
        **_WHERE,
        "main_body": "torso",
        "include_cfrc_ext_in_observation": False,
        "contact_force_range": (-0.5, 2.0),
        "contact_cost_weight": 1e-3,
        "healthy_z_range": (0.4, 0.9),
    },
    "HalfCheetah": {**_WALK, **_WHERE, "frame_skip": 3},
    "Hopper": {
        **_WALK,
        **_WHERE,
        "healthy_reward": 2.0,
        "healthy_z_range": (0.9, 1.4),
        "healthy_angle_range": (-0.1, 0.3),
        "healthy_state_range": (-5.0, 5.0),
        "max_episode_steps": 20,
    },
    "Humanoid": {
        **_WALK,
        **_HEALTH,
        **_WHERE,
        **_PARTS,
        "contact_cost_range": (0.0, 0.1),
        "healthy_z_range": (1.1, 1.9),
    },
    "HumanoidStandup": {
        **_PARTS,
        "ctrl_cost_weight": 0.2,
        "impact_cost_weight": 1e-6,
        "impact_cost_range": (-1.0, 3.0),
    },
    "InvertedDoublePendulum": {"healthy_reward": 3.5, "reset_noise_scale": 0.2},
    "InvertedPendulum": {"reset_noise_scale": 0.05, "frame_skip": 4},
    "Pusher": {"reward_near_weight": 0.7, "reward_dist_weight": 2, "reward_control_weight": 0.3},
    "Reacher": {"reward_dist_weight": 2, "reward_control_weight": 0.3, "frame_skip": 1},
    "Swimmer": {**_WALK, **_WHERE},
    "Walker2d": {**_WALK, **_HEALTH, **_WHERE, "healthy_z_range": (1.0, 1.5), "healthy_angle_range": (-0.5, 0.5)},
}
VARIANTS = [(f"{name}-v5", kwargs) for name in _NAMES for kwargs in ({}, _ARGUMENTS[name])]


def name(variant: tuple[str, dict[str, Any]]) -> str:
    return variant[0] + ("-arguments" if variant[1] else "")


def compare(env_id: str, kwargs: dict[str, Any], mode: AutoresetMode, num_steps: int, seed: int) -> None:
    num_envs = 4
    reference: Any = SyncVectorEnv([lambda: gym.make(env_id, **kwargs)] * num_envs, autoreset_mode=mode)
    subject = envfleet.make(env_id, num_envs, backend="native", autoreset_mode=mode, **kwargs)
    try:
        assert subject.plan.backend == "native"
        duel = Duel(reference, subject)
        for space in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
            assert not list(differences_of(getattr(reference, space), getattr(subject, space), space))
        reference.action_space.seed(seed)
        differences = [*duel.reset(seed=seed), *duel.roll(num_steps)]
        mask = np.array([True, False, False, True])
        differences += [*duel.reset(options={"reset_mask": mask}), *duel.roll(num_steps // 4), *duel.check_kept()]
        assert not differences, differences[:5]
    finally:
        reference.close()
        subject.close()


@pytest.mark.parametrize(("number", "variant"), list(enumerate(VARIANTS)), ids=lambda value: str(value)[:20])
def test_short_rollouts_are_equal(number: int, variant: tuple[str, dict[str, Any]]) -> None:
    compare(*variant, list(AutoresetMode)[number % 3], num_steps=60, seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=name)
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_many_episodes_are_equal(variant: tuple[str, dict[str, Any]], mode: AutoresetMode) -> None:
    for seed in range(4):
        compare(*variant, mode, num_steps=2_200, seed=100 * seed)
