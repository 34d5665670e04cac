"""In the public environment contacts are solved in another order after every second reset; that can be had, or not.

There one Box2D world is used for all games: bodies are destroyed and made again, and Box2D gives freed ids out last in,
first out. `PublicWorld` does just that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from envfleet.envs.hockey import HockeyEnv, world
from envfleet.envs.hockey.compat import HockeyEnv as PublicEnv

CORNERS = range(40)


def play_in_a_corner(env: Any, corner: int, resets: int) -> np.ndarray:
    """Push both rackets and the puck into a corner, where many contacts begin in the same step."""
    for _ in range(resets):
        env.reset(True, seed=0)
    env.reset(True, seed=corner)
    rng = np.random.default_rng(corner)
    side = rng.choice([-1.0, 1.0])
    state = np.zeros(18)
    state[0:3] = -3.3 + rng.uniform(-0.2, 0.2), side * 2.8 + rng.uniform(-0.1, 0.1), rng.uniform(-1, 1)
    state[6:9] = 3.4, side * 2.7, rng.uniform(-1, 1)
    state[3:6], state[9:12] = rng.uniform(-9, 9, (2, 3))
    state[12:14] = -3.5 + rng.uniform(-0.2, 0.2), side * 3 + rng.uniform(-0.2, 0.1)
    state[14:16] = rng.uniform(-20, 20, 2)
    env.set_state(state)
    observations = []
    for step in range(60):
        if step % 5 == 0:
            action = rng.uniform(-1, 1, 8)
            action[:2] = -1, side
        observations.append(env.step(action)[0])
    return np.array(observations)


class PublicWorld(world.World):
    """A world that takes over the Box2D world of the one before."""

    box2d: Any = None
    bodies: tuple[Any, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        cls = type(self)
        if cls.bodies:
            cls.box2d.contactListener = None
            barriers, goals, movables = cls.bodies[:6], cls.bodies[6:8], cls.bodies[8:]
            for body in (*movables, *goals, *barriers):
                cls.box2d.DestroyBody(body)
        super().__init__(*args, **{**options, "is_reversed": False})
        cls.box2d, cls.bodies = self._world, tuple(self._world.bodies)


@pytest.fixture
def public_env(monkeypatch: pytest.MonkeyPatch) -> Callable[[], PublicEnv]:
    make_world = vars(world)["b2World"]

    def reuse(**options: Any) -> Any:
        return PublicWorld.box2d or make_world(**options)

    class Env(PublicEnv):
        def _begin(self, *args: Any, **options: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr(world, "World", PublicWorld)
                patch.setattr(world, "b2World", reuse)
                super()._begin(*args, **options)

    def make() -> PublicEnv:
        PublicWorld.box2d, PublicWorld.bodies = None, ()
        return Env()

    return make


@pytest.mark.parametrize("resets", [0, 1, 2])
def test_contacts_are_solved_in_the_order_of_a_reused_world(public_env: Callable[[], PublicEnv], resets: int) -> None:
    for corner in CORNERS:
        expected = play_in_a_corner(public_env(), corner, resets)
        np.testing.assert_array_equal(play_in_a_corner(PublicEnv(), corner, resets), expected, str(corner))


def test_a_game_does_not_depend_on_the_games_before() -> None:
    differ = []
    for kind in (HockeyEnv, PublicEnv):
        plays = [[play_in_a_corner(kind(), corner, resets) for corner in CORNERS] for resets in (0, 1)]
        differ.append(sum(not np.array_equal(one, other) for one, other in zip(*plays, strict=True)))
    assert differ[0] == 0 < differ[1]
