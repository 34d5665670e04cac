"""What a player sees: observations and infos, from either side, and the way back from an observation to bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.rules import reward_terms
from envfleet.errors import InvalidArgument

if TYPE_CHECKING:
    from envfleet.envs.hockey.world import Body, World

_POSE = 6  # numbers of one body
_LARGEST = 1e6  # beyond, the float32 of forces overflows, and nothing is anywhere any more
# Which of player one's numbers player two sees in the place of each, and with which sign.
_OTHERS = np.array([*range(6, 12), *range(6), *range(12, 16), 17, 16])
_SIGNS = np.array([-1, -1, 1, -1, -1, 1] * 2 + [-1] * 4 + [1, 1], np.float32)


def observe(world: World, player: int, keep_mode: bool) -> list[float]:
    """List what a player sees, unrounded: rounding to float32 gives the observation.

    Args:
        world: The game.
        player: 0 or 1.
        keep_mode: Whether the hold counters are seen.

    Returns:
        18 numbers, 16 without `keep_mode`.
    """
    sign = -1.0 if player else 1.0
    puck = world.puck
    numbers = [*_pose(world.rackets[player], sign), *_pose(world.rackets[1 - player], sign)]
    numbers += [
        sign * (puck.position.x - c.CENTRE_X),
        sign * (puck.position.y - c.CENTRE_Y),
        sign * puck.velocity.x,
        sign * puck.velocity.y,
    ]
    if keep_mode:
        numbers += [world.holds[player], world.holds[1 - player]]
    return numbers


def observe_both(world: World, keep_mode: bool) -> NDArray[np.float32]:
    """Observe with both players.

    Args:
        world: The game.
        keep_mode: Whether the hold counters are seen; otherwise they are 0.

    Returns:
        Shape `(2, 18)`.
    """
    seen = np.zeros((2, c.OBSERVATION_SIZE), np.float32)
    numbers = observe(world, 0, keep_mode)
    seen[0, : len(numbers)] = numbers
    np.multiply(seen[0].take(_OTHERS), _SIGNS, out=seen[1])
    return seen


def _pose(racket: Body, sign: float) -> tuple[float, ...]:
    position, velocity, body = racket.position, racket.velocity, racket.body
    return (
        sign * (position.x - c.CENTRE_X),
        sign * (position.y - c.CENTRE_Y),
        body.angle,
        sign * velocity.x,
        sign * velocity.y,
        body.angularVelocity,
    )


def inform(world: World, player: int, limit: int) -> dict[str, Any]:
    """Make a player's info: who won, and the three shaping terms.

    Args:
        world: The game.
        player: 0 or 1.
        limit: The time limit (steps).
    """
    side = -1 if player else 1
    racket, puck = world.rackets[player].position, world.puck.position
    closeness, touch, direction = reward_terms(
        side, (racket.x, racket.y), (puck.x, puck.y), world.puck.velocity.x, world.holds[player], limit
    )
    return {
        "winner": side * world.winner,
        "reward_closeness_to_puck": closeness,
        "reward_touch_puck": touch,
        "reward_puck_direction": direction,
    }


def place(world: World, state: ArrayLike, keep_mode: bool) -> None:
    """Put rackets, puck and hold counters where an observation of player one says.

    Args:
        world: The game; the puck's angle and spin stay as they are.
        state: The observation, shape `(18,)`, or `(16,)` without keep mode.
        keep_mode: Whether there are hold counters at its end.

    Raises:
        InvalidArgument: The state has another shape, or a number in it is not finite or beyond a million.
    """
    values: NDArray[np.float64] = np.asarray(state, np.float64)
    numbers = 18 if keep_mode else 16
    if values.shape != (numbers,) or not (np.abs(values) <= _LARGEST).all():
        largest = f" and {np.abs(values).max()} in it" if values.size else ""
        raise InvalidArgument(
            f"state has shape {values.shape}{largest}: pass {numbers} finite numbers up to {_LARGEST:,.0f}, as player "
            "one observes them"
        )
    for racket, first in zip(world.rackets, (0, _POSE), strict=True):
        x, y, *others = values[first : first + _POSE].tolist()
        racket.place((x + c.CENTRE_X, y + c.CENTRE_Y, *others))
    puck_x, puck_y, velocity_x, velocity_y = values[2 * _POSE : 2 * _POSE + 4].tolist()
    world.puck.body.position = (puck_x + c.CENTRE_X, puck_y + c.CENTRE_Y)
    world.puck.body.linearVelocity = (velocity_x, velocity_y)
    if keep_mode:
        world.holds[:] = [int(steps) for steps in values[16:18]]
