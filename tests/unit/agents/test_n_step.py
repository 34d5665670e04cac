"""Returns of several steps against their definition."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agents.scripted import MODES, Script, Scripted, alone, play, scripts

from envfleet.agents.n_step import NStepWriter
from envfleet.agents.replay import COLUMNS, ReplayBuffer
from envfleet.agents.transitions import Transitions


def n_steps_into(count: int, num_steps: int, space: Any, action_shape: tuple[int, ...] = ()) -> Any:
    """A writer over n steps, with the buffer it writes to."""
    action_dtype = torch.int64 if action_shape == () else torch.uint8
    replay = ReplayBuffer(1000, space, action_shape, action_dtype, rng=np.random.default_rng(0))
    return NStepWriter(replay, count, num_steps, 0.9), replay


def columns_of(replay: ReplayBuffer) -> list[Any]:
    columns = replay.state_dict()["columns"]
    return [columns[name].numpy() for name in COLUMNS]


@given(scripts, st.integers(1, 4), st.sampled_from(MODES[:2]))
@settings(max_examples=60)
def test_n_steps_against_their_definition(all_scripts: list[Script], num_steps: int, mode: Any) -> None:
    gamma, count = 0.9, len(all_scripts)
    n_step, replay = n_steps_into(count, num_steps, Scripted.observation_space)
    for happened in play(all_scripts, mode):
        n_step.write(happened, happened.actions)
    n_step.cut(np.arange(count))
    stored = list(zip(*(column.tolist() for column in columns_of(replay)), strict=True))
    for number, script in enumerate(all_scripts):
        own = [row for row in stored if row[0][0] == number]
        single = alone(number, script, len(own))
        for start, (observation, action, reward, discount, following) in enumerate(own):
            steps, total = 0, 0.0
            for _, _, _, step_reward, terminated, truncated, _ in single[start : start + num_steps]:
                total += gamma**steps * step_reward
                steps += 1
                if terminated or truncated:
                    break
            after = single[start + steps - 1][6]
            assert (observation, action, following) == (single[start][1], single[start][2], after)
            assert reward == pytest.approx(total)
            assert discount == pytest.approx(0.0 if terminated else gamma**steps)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2, 3)])
def test_n_steps_of_any_shape_go_on_from_their_state(shape: tuple[int, ...]) -> None:
    rng, rows, nobody = np.random.default_rng(0), np.arange(2), np.zeros(2, np.bool_)
    seen = rng.integers(0, 256, (12, 2, *shape)).astype(np.uint8)
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    (first, held), (second, others) = (n_steps_into(2, 3, space, shape) for _ in range(2))
    for step in range(11):
        happened = Transitions(seen[step], seen[step], np.ones(2), nobody, nobody, seen[step + 1], rows)
        first.write(happened, happened.actions)
        if step == 6:
            second.load_state_dict(first.state_dict())
            others.load_state_dict(held.state_dict())
        elif step > 6:
            second.write(happened, happened.actions)
    observations, actions, rewards, discounts, following = columns_of(held)
    assert np.array_equal(observations, seen[:9].reshape(-1, *shape))
    assert np.array_equal(actions, observations)
    assert np.array_equal(following, seen[3:].reshape(-1, *shape))
    assert set(rewards.tolist()) == {np.float32(1 + 0.9 + 0.81)}
    assert set(discounts.tolist()) == {np.float32(0.9**3)}
    assert all(np.array_equal(*pair) for pair in zip(columns_of(held), columns_of(others), strict=True))
