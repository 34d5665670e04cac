"""MiniGrid kernels: features without a counterpart in minigrid, such as frames and checks of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.envs.plain import begin

from envfleet.envs.frames import AGENT_COLOR, COLORS
from envfleet.envs.minigrid.door_key import DoorKey5x5
from envfleet.envs.minigrid.lava_crossing import LavaCrossing
from envfleet.envs.minigrid.multi_room import MultiRoom
from envfleet.envs.minigrid.world import EMPTY, GRAY_WALL, GREEN_GOAL, LAVA, WALL
from envfleet.errors import InvalidArgument


def test_frames_show_the_world() -> None:
    env = begin(DoorKey5x5, 1)
    render: Any = env.spec.render
    frame = render(env.state, env.params)
    assert frame.shape == (5 * 32, 5 * 32, 3)
    assert frame.dtype == np.uint8
    middles = frame[16::32, 16::32]
    assert (middles[env.state.cells % 16 == WALL] == COLORS[1]).all()
    assert (middles[3, 3] == COLORS[3]).all()
    assert (middles[env.state.y, env.state.x] == AGENT_COLOR).all()
    env.step(0)
    assert (frame != render(env.state, env.params)).any()  # as it shows where the agent looks


@pytest.mark.parametrize(("num_crossings", "num_gaps"), [(0, 0), (1, 1), (6, 6), (9, 6)])
def test_every_river_has_one_gap(num_crossings: int, num_gaps: int) -> None:
    for seed in range(20):
        env = begin(LavaCrossing, seed, num_crossings=num_crossings)
        lava = env.state.cells[1:-1, 1:-1] == LAVA
        rivers = [*lava, *lava.T]
        assert sum(river.sum() >= 4 for river in rivers) == num_gaps


def test_the_time_limit_ends_an_episode_without_reward() -> None:
    env = begin(DoorKey5x5, 0, max_steps=3)
    assert [env.step(6)[1:] for _ in range(3)] == [(0.0, False, False), (0.0, False, False), (0.0, False, True)]


def test_worlds_may_have_fewer_rooms() -> None:
    env = begin(MultiRoom, 0, num_rooms=1)
    assert set(np.unique(env.state.cells)) == {EMPTY, GRAY_WALL, GREEN_GOAL}


@pytest.mark.parametrize(("name", "value"), [("num_rooms", 7), ("num_rooms", 0), ("max_room_size", 3)])
def test_rooms_that_cannot_be_are_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"{name} is \[{value}\], expected \d+ to \d+: choose"):
        MultiRoom.check_params({name: np.array([value])})
