"""Workers that are threads of their owner's process."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import InvalidArgument


class Cycle:
    def __init__(self) -> None:
        self.itself: Any = self


def test_threads_end_with_a_fleet_that_nobody_closed() -> None:
    before = set(threading.enumerate())
    fleet = envfleet.make("CartPole-v1", 2, backend="thread", workers=2)
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it was not closed, which is so
        del fleet
        gc.collect()
    for worker in workers:
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


def test_threads_leave_the_owners_garbage_to_be_collected() -> None:
    """Objects that `gc.freeze` keeps are never freed, such as a fleet in a cycle after an exception."""
    gc.disable()  # so that it is not collected before the fleet is made
    try:
        gone = weakref.ref(Cycle())
        with envfleet.make("CartPole-v1", 2, backend="thread", workers=2) as fleet:
            fleet.reset()
        gc.collect()
    finally:
        gc.enable()
    assert gone() is None


@pytest.mark.parametrize(
    ("env_id", "render_mode"),
    [
        ("CarRacing-v3", None),  # its observations are drawn
        ("CarRacing-v3", "rgb_array"),
        ("CartPole-v1", "rgb_array"),
        ("Acrobot-v1", "rgb_array_list"),
        ("Pendulum-v1", "rgb_array"),
    ],
)
def test_environments_with_a_process_wide_buffer_are_refused(env_id: str, render_mode: str | None) -> None:
    """`pygame.gfxdraw.filled_polygon` of two threads at once gave wrong pictures, and freed memory twice."""
    remedy = 'pass backend="process" or "serial"' + (f", or leave out {render_mode=}" if render_mode else "")
    with pytest.raises(InvalidArgument, match=r"draws with pygame\.gfxdraw") as refusal:
        envfleet.make(lambda: gym.make(env_id, render_mode=render_mode), 2, backend="thread")
    assert str(refusal.value).endswith(remedy)


def test_other_drawing_gives_the_same_pictures_in_threads() -> None:
    with envfleet.make("CartPole-v1", 2, backend="thread") as fleet:  # draws polygons only with a render mode
        fleet.reset(seed=1)

    def pictures(backend: Any) -> list[Any]:
        with envfleet.make(lambda: gym.make("LunarLander-v3", render_mode="rgb_array"), 4, backend=backend) as fleet:
            fleet.reset(seed=1)
            return [(fleet.step(np.full(4, action)), fleet.render())[1] for action in [0, 1, 2, 3] * 3]

    np.testing.assert_array_equal(pictures("thread"), pictures("serial"))


def draw(surface: Any, points: Any) -> None:
    from pygame import gfxdraw

    gfxdraw.filled_polygon(surface, points, (0, 0, 0))


class PicturesInDict(gym.Env):
    """Draws by a function next to it, which imports what it needs late."""

    observation_space = gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)})
    action_space = gym.spaces.Discrete(2)


def test_functions_next_to_an_environment_are_searched() -> None:
    with pytest.raises(InvalidArgument, match=r"PicturesInDict .* draws with pygame\.gfxdraw"):
        envfleet.make(lambda: gym.wrappers.FlattenObservation(PicturesInDict()), 2, backend="thread")
