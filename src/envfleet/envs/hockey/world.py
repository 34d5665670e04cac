"""`World`: the physics of one game in Box2D: bodies, walls, goals, and contacts of the puck.

A `World` is used for one game. It is rebuilt on every reset so that a game depends on seed and actions only: Box2D
keeps contact impulses, sleep timers and the order of its contact pairs, and none of them can be set from outside.

Box2D solves contacts in the order of its proxy ids, which follow the order in which fixtures are created. The public
environment reuses one Box2D world, and Box2D reuses freed ids last in, first out, so there the order is reversed on
every second reset. `is_reversed` selects one of the two orders.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.extras import missing

with warnings.catch_warnings():
    # Box2D's types warn when they are made, and where warnings are errors that ends the interpreter with SIGSEGV.
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from Box2D import b2CircleShape, b2ContactListener, b2FixtureDef, b2PolygonShape, b2World
    except ImportError as error:
        raise missing("hockey", error) from error

# Filter bits, and names by which the contact listener knows its fixtures.
_PUCK_BIT, _RACKET_BIT = 0x01, 0x10
_BOTH_BITS = _PUCK_BIT | _RACKET_BIT
_PUCK, _RACKET_ONE, _RACKET_TWO, _LEFT_GOAL, _RIGHT_GOAL = "puck", "racket one", "racket two", "left goal", "right goal"

# In which order the bodies get their fixtures, by `is_reversed`: barriers, goals, rackets and puck.
_ORDERS = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (5, 4, 3, 2, 1, 0, 7, 6, 10, 9, 8))


class _Referee(b2ContactListener):  # type: ignore[misc]  # Box2D has no types
    """Contact listener that detects goals and catches."""

    def __init__(self, holds: list[int], puck_velocity: Any, keep_mode: bool) -> None:
        super().__init__()
        self.winner = 0
        self.holds = holds
        self._puck_velocity = puck_velocity
        self._keep_mode = keep_mode

    def BeginContact(self, contact: Any) -> None:  # noqa: N802  # Box2D's name
        touching = (contact.fixtureA.userData, contact.fixtureB.userData)
        if _PUCK not in touching:
            return
        if _RIGHT_GOAL in touching:
            self.winner = 1
        elif _LEFT_GOAL in touching:
            self.winner = -1
        elif self._keep_mode:
            speed = self._puck_velocity.x
            if _RACKET_ONE in touching and speed < c.CATCH_SPEED and self.holds[0] == 0:
                self.holds[0] = c.HOLD_STEPS
            elif _RACKET_TWO in touching and speed > -c.CATCH_SPEED and self.holds[1] == 0:
                self.holds[1] = c.HOLD_STEPS


class Body:
    """Racket or puck: a Box2D body with cached references to its vectors.

    Attributes:
        body: The Box2D body.
        position: Its origin, a live `b2Vec2` that follows the body; writing a component moves only the origin.
        velocity: Velocity of its center of mass, also live; writing a component does not wake the body.
    """

    __slots__ = ("_damping", "body", "position", "velocity")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.position = body.position
        self.velocity = body.linearVelocity
        self._damping: tuple[float, float] | None = None

    def damp(self, linear: float, angular: float = 0.0) -> None:
        """Set both dampings unless they are unchanged; comparing is faster than writing."""
        if self._damping != (linear, angular):
            self._damping = self.body.linearDamping, self.body.angularDamping = linear, angular

    def look(self) -> tuple[float, float, float, float, float, float]:
        """Return x, y, angle, velocity x and y, and angular velocity, in world coordinates."""
        position, velocity, body = self.position, self.velocity, self.body
        return position.x, position.y, body.angle, velocity.x, velocity.y, body.angularVelocity

    def push(self, force_x: np.float32, force_y: np.float32) -> None:
        """Add a force (N) for the next step."""
        self.body.ApplyForceToCenter((float(force_x), float(force_y)), True)

    def place(self, pose: Sequence[float]) -> None:
        """Set x, y, angle, both velocity components and the angular velocity, in world coordinates."""
        x, y, angle, velocity_x, velocity_y, angular_velocity = (float(value) for value in pose)
        self.body.position = (x, y)
        self.body.angle = angle
        self.body.linearVelocity = (velocity_x, velocity_y)
        self.body.angularVelocity = angular_velocity


class World:
    """Two rackets, the puck, walls and goals.

    Args:
        racket_two: Position of the second racket; the first starts at its own position.
        puck: Position of the puck.
        holds: Initial hold counters.
        keep_mode: True if rackets catch the puck.
        is_reversed: Order in which contacts are solved; see the module.

    Attributes:
        rackets: Rackets of player one (left) and two (right).
        puck: Puck.
        holds: Steps for which each player may still hold the puck, plus one; 0 if the player does not hold it.
    """

    def __init__(
        self, racket_two: c.Point, puck: c.Point, holds: Sequence[int], *, keep_mode: bool, is_reversed: bool
    ) -> None:
        self._world = b2World(gravity=(0, 0), doSleep=True)
        standing = [self._world.CreateStaticBody(position=position) for position, _ in (*c.BARRIERS, *c.GOALS)]
        moving = [
            self._world.CreateDynamicBody(position=position) for position in (c.RACKET_POSITIONS[0], racket_two, puck)
        ]
        bodies, definitions = (*standing, *moving), _definitions()
        for index in _ORDERS[is_reversed]:
            for definition in definitions[index]:
                bodies[index].CreateFixture(definition)

        self.rackets = (Body(moving[0]), Body(moving[1]))
        self.puck = Body(moving[2])
        self.puck.damp(c.PUCK_LINEAR_DAMPING)
        self.holds = list(holds)
        self._referee = _Referee(self.holds, self.puck.velocity, keep_mode)
        self._world.contactListener = self._referee

    @property
    def winner(self) -> int:
        """1 if player one scored last, -1 if player two did, otherwise 0."""
        return self._referee.winner

    def step(self) -> None:
        """Simulate one time step."""
        self._world.Step(c.TIME_STEP_S, c.VELOCITY_ITERATIONS, c.POSITION_ITERATIONS)


@functools.cache
def _definitions() -> tuple[tuple[Any, ...], ...]:
    """Return the fixtures of every body: barriers, goals, rackets, puck. Cached, because Box2D never frees them."""
    barriers = [(_polygon(outline, _BOTH_BITS, _BOTH_BITS, friction=c.WALL_FRICTION),) for _, outline in c.BARRIERS]
    goals = [
        (
            _polygon(outline, _RACKET_BIT, _PUCK_BIT, isSensor=True, userData=name),
            _polygon(outline, _RACKET_BIT, _RACKET_BIT, friction=c.WALL_FRICTION),
        )
        for (_, outline), name in zip(c.GOALS, (_LEFT_GOAL, _RIGHT_GOAL), strict=True)
    ]
    of_rackets = {"density": c.RACKET_DENSITY, "friction": c.RACKET_FRICTION}
    rackets = [
        (_polygon(outline, _RACKET_BIT, _BOTH_BITS, userData=name, **of_rackets),)
        for outline, name in zip(c.RACKET_OUTLINES, (_RACKET_ONE, _RACKET_TWO), strict=True)
    ]
    puck = b2FixtureDef(
        shape=b2CircleShape(radius=c.PUCK_RADIUS),
        density=c.PUCK_DENSITY,
        friction=c.PUCK_FRICTION,
        restitution=c.PUCK_RESTITUTION,
        categoryBits=_PUCK_BIT,
        maskBits=_RACKET_BIT,
        userData=_PUCK,
    )
    return (*barriers, *goals, *rackets, (puck,))


def _polygon(outline: c.Outline, category: int, mask: int, **more: Any) -> Any:
    return b2FixtureDef(shape=b2PolygonShape(vertices=outline), categoryBits=category, maskBits=mask, **more)
