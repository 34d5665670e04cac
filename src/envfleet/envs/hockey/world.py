"""The physical world of one game, in Box2D: bodies, walls, goals, and what happens when the puck touches something.

A `World` lives for one game. Building it anew on every reset is what makes a game a function of seed and actions: Box2D
keeps contact impulses, sleep timers and the order of its contact pairs, and none of them can be set from outside.

Box2D solves contacts in the order of its proxy ids, which are given in the order in which fixtures are created. The
public environment reuses one Box2D world, and Box2D hands freed ids out again last in, first out, so there the order is
reversed on every second reset. `is_reversed` says which of the two orders a world has.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.rules import Start

with warnings.catch_warnings():
    # Box2D's types warn when they are made, and where warnings are errors that ends the interpreter with SIGSEGV.
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from Box2D import b2CircleShape, b2ContactListener, b2FixtureDef, b2PolygonShape, b2World
    except ImportError as error:
        raise ImportError(
            f"hockey needs Box2D, which cannot be imported here ({error}): pip install 'envfleet[hockey]'"
        ) from error

# Filter bits, and names by which the contact listener knows its fixtures.
_PUCK_BIT, _RACKET_BIT = 0x01, 0x10
_BOTH_BITS = _PUCK_BIT | _RACKET_BIT
_PUCK, _RACKET_ONE, _RACKET_TWO, _LEFT_GOAL, _RIGHT_GOAL = "puck", "racket one", "racket two", "left goal", "right goal"


class _Referee(b2ContactListener):  # type: ignore[misc]  # Box2D has no types
    """Sees goals and catches."""

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
    """A racket or the puck: a Box2D body with its vectors at hand.

    Attributes:
        body: The Box2D body.
        position: Its origin, a live `b2Vec2`: follows the body, and writing a component moves nothing else.
        velocity: Velocity of its centre of mass, live as well; writing a component does not wake the body.
        mass: Its mass (kg).
    """

    __slots__ = ("body", "mass", "position", "velocity")

    def __init__(self, body: Any) -> None:
        self.body = body
        self.position = body.position
        self.velocity = body.linearVelocity
        self.mass: float = body.mass

    def place(self, pose: Sequence[float]) -> None:
        """Set x, y, angle, both velocity components and the angular velocity, in world coordinates."""
        x, y, angle, velocity_x, velocity_y, angular_velocity = (float(value) for value in pose)
        self.body.position = (x, y)
        self.body.angle = angle
        self.body.linearVelocity = (velocity_x, velocity_y)
        self.body.angularVelocity = angular_velocity


class World:
    """Two rackets, the puck and what stands around them.

    Args:
        start: Where the game begins.
        holds: The hold counters it begins with.
        keep_mode: Whether rackets catch the puck.
        is_reversed: Which order contacts are solved in; see the module.

    Attributes:
        rackets: Those of player one (left) and two (right).
        puck: The puck.
        holds: Steps for which each player may still hold the puck, plus one; 0 if the player does not hold it.
    """

    def __init__(self, start: Start, holds: Sequence[int], *, keep_mode: bool, is_reversed: bool) -> None:
        self._world = b2World(gravity=(0, 0), doSleep=True)
        barriers = [self._world.CreateStaticBody(position=position) for position, _ in c.BARRIERS]
        goals = [self._world.CreateStaticBody(position=position) for position, _ in c.GOALS]
        rackets = [
            self._world.CreateDynamicBody(position=position) for position in (c.RACKET_POSITIONS[0], start.racket_two)
        ]
        puck_body = self._world.CreateDynamicBody(position=start.puck)

        barrier_fixtures = [
            (body, [_solid(outline, _BOTH_BITS, _BOTH_BITS)])
            for body, (_, outline) in zip(barriers, c.BARRIERS, strict=True)
        ]
        goal_fixtures = [
            (body, [_sensor(outline, name), _solid(outline, _RACKET_BIT, _RACKET_BIT)])
            for body, (_, outline), name in zip(goals, c.GOALS, (_LEFT_GOAL, _RIGHT_GOAL), strict=True)
        ]
        racket_fixtures = [
            (body, [_racket(outline, name)])
            for body, outline, name in zip(rackets, c.RACKET_OUTLINES, (_RACKET_ONE, _RACKET_TWO), strict=True)
        ]
        step = -1 if is_reversed else 1
        movable = [*racket_fixtures, (puck_body, [_puck()])]
        for body, definitions in (*barrier_fixtures[::step], *goal_fixtures[::step], *movable[::step]):
            for definition in definitions:
                body.CreateFixture(definition)

        self.rackets = (Body(rackets[0]), Body(rackets[1]))
        self.puck = Body(puck_body)
        puck_body.linearDamping = c.PUCK_LINEAR_DAMPING
        self.holds = list(holds)
        self._referee = _Referee(self.holds, self.puck.velocity, keep_mode)
        self._world.contactListener = self._referee

    @property
    def winner(self) -> int:
        """1 if player one scored last, -1 if player two did, 0 if nobody has."""
        return self._referee.winner

    def replace_puck_force(self, force: Sequence[float]) -> None:
        """Let this force (N), and nothing that was queued before, act on the puck in the next step."""
        self._world.ClearForces()
        if any(force):
            self.puck.body.ApplyForceToCenter(force, True)

    def step(self) -> None:
        """Let one time step pass."""
        self._world.Step(c.TIME_STEP_S, c.VELOCITY_ITERATIONS, c.POSITION_ITERATIONS)


def _solid(outline: c.Outline, category: int, mask: int) -> Any:
    return b2FixtureDef(
        shape=b2PolygonShape(vertices=outline), friction=c.WALL_FRICTION, categoryBits=category, maskBits=mask
    )


def _sensor(outline: c.Outline, name: str) -> Any:
    return b2FixtureDef(
        shape=b2PolygonShape(vertices=outline),
        isSensor=True,
        categoryBits=_RACKET_BIT,
        maskBits=_PUCK_BIT,
        userData=name,
    )


def _racket(outline: c.Outline, name: str) -> Any:
    return b2FixtureDef(
        shape=b2PolygonShape(vertices=outline),
        density=c.RACKET_DENSITY,
        friction=c.RACKET_FRICTION,
        categoryBits=_RACKET_BIT,
        maskBits=_BOTH_BITS,
        userData=name,
    )


def _puck() -> Any:
    return b2FixtureDef(
        shape=b2CircleShape(radius=c.PUCK_RADIUS),
        density=c.PUCK_DENSITY,
        friction=c.PUCK_FRICTION,
        restitution=c.PUCK_RESTITUTION,
        categoryBits=_PUCK_BIT,
        maskBits=_RACKET_BIT,
        userData=_PUCK,
    )
