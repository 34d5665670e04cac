"""`HockeyGame`: one game on Box2D from its start to its end, with observations and copies."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey import rules
from envfleet.errors import InvalidArgument, StateUnsupported

if TYPE_CHECKING:
    from envfleet.envs.hockey.world import Body

_MAX_EVENTS = 100_000  # of one game, which is over after 251; a bound on memory for callers that never reset
_POSE = 6  # numbers of one body
_VIEWS = struct.Struct(f"={2 * c.OBSERVATION_SIZE}f")  # what both players see
_VIEW = struct.Struct(f"={c.OBSERVATION_SIZE}f")
_LARGEST = 1e6  # beyond, the float32 of forces overflows, and nothing is anywhere any more


class HockeyGame:
    """Game on a `World`.

    Box2D does not expose its state, so a copy or pickle contains the start of the game and all events since then, which
    are replayed bit for bit.

    Args:
        mode: Mode of the game.
        start: Start positions from `rules.draw_start`.
        holds: Initial hold counters.
        keep_mode: True if rackets catch the puck.
        is_reversed: Order in which contacts are solved; see `World`.
        events: Events to replay: actions, and states set by `place` (the longer arrays), in order.

    Attributes:
        world: World with the bodies.
        mode: Mode of the game.
        keep_mode: True if rackets catch the puck.
        limit: Time limit in steps; the step after it is the last.
        time: Number of steps played.
    """

    def __init__(
        self,
        mode: c.Mode,
        start: tuple[float, float, float, float, float],
        holds: tuple[int, ...] = (0, 0),
        *,
        keep_mode: bool = True,
        is_reversed: bool = True,
        events: Sequence[NDArray[np.floating]] = (),
    ) -> None:
        from envfleet.envs.hockey.world import World  # needs Box2D

        self._start, self._holds, self._is_reversed = start, holds, is_reversed
        self._events: list[NDArray[np.floating]] = []
        self.mode, self.keep_mode = mode, keep_mode
        self.limit, self.time = c.TIME_LIMIT_STEPS[mode], 0
        x, y, puck_x, puck_y, aim_y = start
        self.world = World((x, y), (puck_x, puck_y), holds, keep_mode=keep_mode, is_reversed=is_reversed)
        if mode is c.Mode.TRAIN_DEFENSE:
            puck = self.world.puck
            puck.push(*rules.serve_force(puck.position.x, puck.position.y, aim_y))
        self._look()
        for event in events:
            if event.size > 2 * c.ACTION_SIZE:
                self.place(event)
            else:
                self.play(event.astype(np.float32, copy=False))

    def _look(self) -> None:
        """Read all poses and pack both observations; called once per step, because reading from Box2D is slow."""
        (one, two), puck = self.world.rackets, self.world.puck
        self._poses = one.look(), two.look()
        self._puck = puck.position.x, puck.position.y, puck.velocity.x, puck.velocity.y
        (x, y, angle, vx, vy, spin), (x_two, y_two, angle_two, vx_two, vy_two, spin_two) = self._poses
        puck_x, puck_y, puck_vx, puck_vy = self._puck
        x, x_two, puck_x = x - c.CENTER_X, x_two - c.CENTER_X, puck_x - c.CENTER_X
        y, y_two, puck_y = y - c.CENTER_Y, y_two - c.CENTER_Y, puck_y - c.CENTER_Y
        hold, hold_two = self.world.holds if self.keep_mode else (0, 0)
        self._views = _VIEWS.pack(  # faster than making an array
            *(x, y, angle, vx, vy, spin, x_two, y_two, angle_two, vx_two, vy_two, spin_two),
            *(puck_x, puck_y, puck_vx, puck_vy, hold, hold_two),
            *(-x_two, -y_two, angle_two, -vx_two, -vy_two, spin_two, -x, -y, angle, -vx, -vy, spin),
            *(-puck_x, -puck_y, -puck_vx, -puck_vy, hold_two, hold),
        )

    @property
    def is_late(self) -> bool:
        """True after the time limit."""
        return self.time > self.limit

    def play(self, actions: NDArray[np.float32]) -> None:
        """Play one step.

        Args:
            actions: Actions of player one, then player two, in [-1, 1]: shape `(8,)`, or `(6,)` without shooting. The
                array is kept: do not modify it afterwards.
        """
        self._record(actions)
        own = actions.reshape(2, -1).tolist()
        for player, racket in enumerate(self.world.rackets):
            _drive(racket, player, self._poses[player], own[player])
        self.world.puck.damp(rules.puck_damping(*self._puck[2:]))
        if self.keep_mode:
            for player in range(2):
                if self.world.holds[player] > 1:
                    self._hold(player, own[player][3])
        self.world.step()
        self.time += 1
        self._look()

    def _hold(self, player: int, shoot: float) -> None:
        """Hold the puck at a racket for another step, or shoot it."""
        holds, racket, puck = self.world.holds, self.world.rackets[player].body, self.world.puck
        puck.body.position, puck.body.linearVelocity = racket.position, racket.linearVelocity
        holds[player] -= 1
        if holds[player] == 1 or shoot > c.SHOOT_THRESHOLD:
            puck.push(*rules.shot_force(player, racket.angle))
            holds[player] = 0

    def place(self, state: ArrayLike) -> None:
        """Set rackets, puck and hold counters from an observation of player one.

        Args:
            state: Observation, shape `(18,)`, or `(16,)` without keep mode. Angle and spin of the puck are unchanged.

        Raises:
            InvalidArgument: The state has another shape, or a number in it is not finite or beyond a million.
        """
        values: NDArray[np.float64] = np.array(state, np.float64)
        numbers = 18 if self.keep_mode else 16
        if values.shape != (numbers,) or not (np.abs(values) <= _LARGEST).all():
            largest = f" and {np.abs(values).max()} in it" if values.size else ""
            raise InvalidArgument(
                f"state has shape {values.shape}{largest}: pass {numbers} finite numbers up to {_LARGEST:,.0f}, as "
                "player one observes them"
            )
        for racket, first in zip(self.world.rackets, (0, _POSE), strict=True):
            x, y, *others = values[first : first + _POSE].tolist()
            racket.place((x + c.CENTER_X, y + c.CENTER_Y, *others))
        puck_x, puck_y, velocity_x, velocity_y = values[2 * _POSE : 2 * _POSE + 4].tolist()
        self.world.puck.body.position = (puck_x + c.CENTER_X, puck_y + c.CENTER_Y)
        self.world.puck.body.linearVelocity = (velocity_x, velocity_y)
        if self.keep_mode:
            self.world.holds[:] = [int(steps) for steps in values[16:18]]
        self._record(values)
        self._look()

    # ------------------------------------------------------------------ what is seen

    def observe(self) -> NDArray[np.float32]:
        """Return the observations of both players, `(2, 18)`; without keep mode the hold counters are 0."""
        return np.ndarray((2, c.OBSERVATION_SIZE), np.float32, bytearray(self._views))

    def view(self, player: int) -> tuple[float, ...]:
        """Return the observation of a player, 18 numbers."""
        return _VIEW.unpack_from(self._views, player * _VIEW.size)

    def inform(self, player: int) -> dict[str, Any]:
        """Return a player's info: the winner and the three shaping terms."""
        closeness, touch, direction = self.reward_terms(player)
        return {
            "winner": -self.world.winner if player else self.world.winner,
            "reward_closeness_to_puck": closeness,
            "reward_touch_puck": touch,
            "reward_puck_direction": direction,
        }

    def reward_terms(self, player: int) -> tuple[float, float, float]:
        """Return the three shaping terms of a player: closeness, touch and direction."""
        (x, y, *_), (puck_x, puck_y, puck_velocity_x, _) = self._poses[player], self._puck
        return rules.reward_terms(player, x, y, puck_x, puck_y, puck_velocity_x, self.world.holds[player], self.limit)

    # ------------------------------------------------------------------ copies

    def _record(self, event: NDArray[np.floating]) -> None:
        if len(self._events) <= _MAX_EVENTS:
            self._events.append(event)

    def __reduce__(self) -> tuple[Any, ...]:
        if len(self._events) > _MAX_EVENTS:
            raise StateUnsupported(
                f"this game cannot be copied, as it is longer than {_MAX_EVENTS:,} steps and placements: reset it first"
            )
        more: dict[str, Any] = {"keep_mode": self.keep_mode, "is_reversed": self._is_reversed, "events": self._events}
        return functools.partial(HockeyGame, **more), (self.mode, self._start, self._holds)


def read_actions(action: ArrayLike, shape: tuple[int, ...], advice: str) -> NDArray[np.float32]:
    """Return actions clipped to [-1, 1].

    Raises:
        InvalidArgument: Actions have another shape, or contain NaN.
    """
    numbers = np.array(action, np.float32)
    if numbers.shape == shape and all([-1 <= one <= 1 for one in numbers.ravel().tolist()]):  # noqa: C419  # faster
        return numbers
    numbers = np.clip(numbers, -1, 1)
    if numbers.shape != shape or np.isnan(numbers).any():
        raise InvalidArgument(
            f"action {numbers} has shape {numbers.shape}, expected numbers of shape {shape}: {advice}"
        )
    return numbers


def reward_of(winner: int, closeness: float) -> float:
    """Return a player's reward: 10 for a goal, -10 for one conceded, plus closeness."""
    return float(c.WIN_REWARD * winner + closeness)


def _drive(racket: Body, player: int, pose: tuple[float, ...], action: Sequence[float]) -> None:
    """Apply a player's action to its racket."""
    x, y, angle, velocity_x, velocity_y, spin = pose
    damping, force_x, force_y, is_leaving_x, is_leaving_y = rules.push(
        player, x, y, velocity_x, velocity_y, action[0], action[1]
    )
    if is_leaving_x:
        racket.velocity.x = 0.0
    if is_leaving_y:
        racket.velocity.y = 0.0
    racket.push(force_x, force_y)
    torque, angular_damping = rules.turn(player, angle, spin, action[2])
    racket.damp(damping, angular_damping)
    racket.body.ApplyTorque(float(torque), True)
