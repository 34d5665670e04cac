"""One game on Box2D, from its start to its end: what is played and seen in it, and how it is copied."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey import rules
from envfleet.errors import InvalidArgument, StateUnsupported

if TYPE_CHECKING:
    from envfleet.envs.hockey.world import Body

_MAX_EVENTS = 100_000  # of one game, which is over after 251; a bound on memory for those who never reset
_POSE = 6  # numbers of one body
_LARGEST = 1e6  # beyond, the float32 of forces overflows, and nothing is anywhere any more
# Which of player one's numbers player two sees in the place of each, and with which sign.
_OTHERS = np.array([*range(6, 12), *range(6), *range(12, 16), 17, 16])
_SIGNS = np.array([-1, -1, 1, -1, -1, 1] * 2 + [-1] * 4 + [1, 1], np.float32)


class Game:
    """A world that is played in.

    Box2D lets nobody look inside: what is copied or pickled are a game's start and what has happened since. Played
    again, it is the same game to the last bit.

    Args:
        mode: What is played.
        start: Where everything begins, as `rules.draw_start` returned it.
        holds: Hold counters that it begins with.
        keep_mode: Whether rackets catch the puck.
        is_reversed: Which order contacts are solved in; see `World`.
        events: What is played at once: actions, and placements by `place`, which are the longer ones, in order.

    Attributes:
        world: Where the bodies are.
        mode: What is played.
        keep_mode: Whether rackets catch the puck.
        limit: The time limit (steps); the step after it is the last.
        time: Steps played.
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
        for event in events:
            if event.size > 2 * c.ACTION_SIZE:
                self.place(event)
            else:
                self.play(event.astype(np.float32, copy=False))

    @property
    def is_late(self) -> bool:
        """Whether time is up."""
        return self.time > self.limit

    def play(self, actions: NDArray[np.float32]) -> None:
        """Play one step.

        Args:
            actions: Player one's, then player two's, clipped to [-1, 1]: shape `(8,)`, or `(6,)`, where nobody shoots.
                It is kept, so nobody may write to it any more.
        """
        self._record(actions)
        own = actions.reshape(2, -1)
        puck = self.world.puck
        for player, racket in enumerate(self.world.rackets):
            _drive(racket, player, own[player])
        puck.body.linearDamping = rules.puck_damping(puck.velocity.x, puck.velocity.y)
        if self.keep_mode:
            for player in range(2):
                if self.world.holds[player] > 1:
                    self._hold(player, own[player, 3])
        self.world.step()
        self.time += 1

    def _hold(self, player: int, shoot: np.float32) -> None:
        """Keep the puck at a racket for one more step, or shoot it."""
        holds, racket, puck = self.world.holds, self.world.rackets[player].body, self.world.puck
        puck.body.position, puck.body.linearVelocity = racket.position, racket.linearVelocity
        holds[player] -= 1
        if holds[player] == 1 or shoot > c.SHOOT_THRESHOLD:
            puck.push(*rules.shot_force(player, racket.angle))
            holds[player] = 0

    def place(self, state: ArrayLike) -> None:
        """Put rackets, puck and hold counters where an observation of player one says.

        Args:
            state: The observation, shape `(18,)`, or `(16,)` without keep mode. The puck's angle and spin stay.

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
            racket.place((x + c.CENTRE_X, y + c.CENTRE_Y, *others))
        puck_x, puck_y, velocity_x, velocity_y = values[2 * _POSE : 2 * _POSE + 4].tolist()
        self.world.puck.body.position = (puck_x + c.CENTRE_X, puck_y + c.CENTRE_Y)
        self.world.puck.body.linearVelocity = (velocity_x, velocity_y)
        if self.keep_mode:
            self.world.holds[:] = [int(steps) for steps in values[16:18]]
        self._record(values)

    # ------------------------------------------------------------------ what is seen

    def observe(self) -> NDArray[np.float32]:
        """Observe with both players: shape `(2, 18)`; without keep mode the hold counters are 0."""
        seen = np.zeros((2, c.OBSERVATION_SIZE), np.float32)
        (one, two), puck = self.world.rackets, self.world.puck
        seen[0, :16] = (
            *_pose(one),
            *_pose(two),
            puck.position.x - c.CENTRE_X,
            puck.position.y - c.CENTRE_Y,
            puck.velocity.x,
            puck.velocity.y,
        )
        if self.keep_mode:
            seen[0, 16:] = self.world.holds
        np.multiply(seen[0].take(_OTHERS), _SIGNS, out=seen[1])
        return seen

    def inform(self, player: int) -> dict[str, Any]:
        """Make a player's info: who won, and the three shaping terms."""
        racket, puck = self.world.rackets[player].position, self.world.puck
        closeness, touch, direction = rules.reward_terms(
            player,
            racket.x,
            racket.y,
            puck.position.x,
            puck.position.y,
            puck.velocity.x,
            self.world.holds[player],
            self.limit,
        )
        return {
            "winner": -self.world.winner if player else self.world.winner,
            "reward_closeness_to_puck": closeness,
            "reward_touch_puck": touch,
            "reward_puck_direction": direction,
        }

    # ------------------------------------------------------------------ copies

    def _record(self, event: NDArray[np.floating]) -> None:
        if len(self._events) <= _MAX_EVENTS:
            self._events.append(event)

    def __reduce__(self) -> tuple[Any, ...]:
        if len(self._events) > _MAX_EVENTS:
            raise StateUnsupported(
                f"this game cannot be copied, as it is longer than {_MAX_EVENTS:,} steps and placements: reset it first"
            )
        make = functools.partial(Game, keep_mode=self.keep_mode, is_reversed=self._is_reversed, events=self._events)
        return make, (self.mode, self._start, self._holds)


def read_actions(action: ArrayLike, shape: tuple[int, ...], advice: str) -> NDArray[np.float32]:
    """Return actions clipped to [-1, 1].

    Raises:
        InvalidArgument: They have another shape, or contain NaN.
    """
    numbers = np.clip(np.asarray(action, np.float32), -1, 1)
    if numbers.shape != shape or np.isnan(numbers).any():
        raise InvalidArgument(
            f"action {numbers} has shape {numbers.shape}, expected numbers of shape {shape}: {advice}"
        )
    return numbers


def reward_of(info: dict[str, Any]) -> float:
    """Return the reward that belongs to a player's info: 10 for a goal, -10 for one conceded, plus closeness."""
    return float(c.WIN_REWARD * info["winner"] + info["reward_closeness_to_puck"])


def _drive(racket: Body, player: int, action: NDArray[np.float32]) -> None:
    """Let a player's action act on its racket."""
    body, position, velocity = racket.body, racket.position, racket.velocity
    damping, force_x, force_y, is_leaving_x, is_leaving_y = rules.push(
        player, position.x, position.y, velocity.x, velocity.y, action[0], action[1]
    )
    if is_leaving_x:
        velocity.x = 0.0
    if is_leaving_y:
        velocity.y = 0.0
    body.linearDamping = damping
    racket.push(force_x, force_y)
    torque, body.angularDamping = rules.turn(player, body.angle, body.angularVelocity, action[2])
    body.ApplyTorque(float(torque), True)


def _pose(racket: Body) -> tuple[float, ...]:
    position, velocity, body = racket.position, racket.velocity, racket.body
    x, y = position.x - c.CENTRE_X, position.y - c.CENTRE_Y
    return x, y, body.angle, velocity.x, velocity.y, body.angularVelocity
