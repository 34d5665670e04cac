"""Rules that need no physics engine: how a game starts, what it pays, and which deviations can be had.

A compiled kernel shares these with the Box2D environment.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, SupportsIndex

import numpy as np

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode, Point
from envfleet.errors import InvalidArgument


def read_mode(mode: Mode | str | SupportsIndex) -> Mode:
    """Return the mode that is meant by a `Mode`, its name or its number.

    Raises:
        InvalidArgument: There is no such mode.

    Examples:
        >>> read_mode("TRAIN_DEFENSE"), read_mode(1)
        (<Mode.TRAIN_DEFENSE: 2>, <Mode.TRAIN_SHOOTING: 1>)
    """
    try:
        return Mode[mode] if isinstance(mode, str) else Mode(int(mode.__index__()))
    except (KeyError, ValueError, AttributeError) as error:
        names = ", ".join(f"{one.name} ({one.value})" for one in Mode)
        raise InvalidArgument(f"mode={mode!r}: pass a Mode, or the name or number of one: {names}") from error


@dataclasses.dataclass(frozen=True)
class Quirks:
    """Ways of the public environment that are mended unless asked for; `PUBLIC_QUIRKS` has them all.

    Attributes:
        holds_survive_reset: A puck that was held when the last game ended is held in the next game, too.
        limit_terminates: The time limit is reported as `terminated`, never as `truncated`.
        reset_draws_seed: `reset()` without a seed starts a generator from fresh entropy, instead of going on with the
            one that was seeded last.
        starter_ignores_seed: Who starts alternates over all resets, instead of anew from each seeded one. Then the
            same seed gives a mirrored game every other time.
        order_alternates: Contacts are solved in another order after every second reset, so that the last bits of a game
            depend on how many were played before.
        public_spaces: Observations are float64 while the space says float32, the space says 18 numbers without keep
            mode, too, when there are 16, and the discrete action space leaves shooting out.
    """

    holds_survive_reset: bool = False
    limit_terminates: bool = False
    reset_draws_seed: bool = False
    starter_ignores_seed: bool = False
    order_alternates: bool = False
    public_spaces: bool = False


PUBLIC_QUIRKS = Quirks(**{quirk.name: True for quirk in dataclasses.fields(Quirks)})


class Start(NamedTuple):
    """Where a game begins; player one always begins in its place.

    Attributes:
        racket_two: Position of the second racket.
        puck: Position of the puck.
        aim: What the puck is shot at in the first step, if it is.
    """

    racket_two: Point
    puck: Point
    aim: Point | None = None


def draw_mode(mode: Mode, shooting_share: float, defense_share: float, rng: np.random.Generator) -> Mode:
    """Draw what a game is, from a mixture.

    Args:
        mode: What is played else.
        shooting_share: Chance of `TRAIN_SHOOTING`.
        defense_share: Chance of `TRAIN_DEFENSE`.
        rng: Draws one number; none if there is no mixture.
    """
    if shooting_share + defense_share <= 0:
        return mode
    drawn = rng.random()
    if drawn < shooting_share:
        return Mode.TRAIN_SHOOTING
    return Mode.TRAIN_DEFENSE if drawn < shooting_share + defense_share else mode


def draw_start(mode: Mode, is_one_starting: bool | None, rng: np.random.Generator) -> Start:
    """Draw where a game begins.

    Args:
        mode: What is played.
        is_one_starting: Whether player one gets the puck; `None` draws that, too, last. Matters in `NORMAL` only.
        rng: Draws up to five numbers, one at a time.
    """
    x, y, width, height = c.CENTRE_X, c.CENTRE_Y, c.FIELD_WIDTH, c.FIELD_HEIGHT
    racket_two = c.RACKET_POSITIONS[1]
    if mode is not Mode.NORMAL:
        racket_two = (
            racket_two[0] + rng.uniform(-width / 3, width / 6),
            racket_two[1] + rng.uniform(-height / 4, height / 4),
        )
    if mode is Mode.TRAIN_DEFENSE:
        puck = (x + rng.uniform(0, width / 3), y + 0.8 * rng.uniform(-height / 2, height / 2))
        return Start(racket_two, puck, (0.0, y + 0.6 * rng.uniform(-c.GOAL_HALF_HEIGHT, c.GOAL_HALF_HEIGHT)))
    away, puck_y = rng.uniform(1, 2), y + rng.uniform(-1, 1)
    if is_one_starting is None and mode is Mode.NORMAL:
        is_one_starting = rng.random() < 0.5
    side = -1 if is_one_starting or mode is Mode.TRAIN_SHOOTING else 1
    return Start(racket_two, (x + side * away, puck_y))


def reward_terms(
    side: int, racket: Point, puck: Point, puck_velocity_x: float, hold_steps: int, limit: int
) -> tuple[float, float, float]:
    """Compute the three shaping terms of one player.

    Args:
        side: 1 for player one, -1 for player two.
        racket: Position of the player's racket.
        puck: Position of the puck.
        puck_velocity_x: In world coordinates (m/s).
        hold_steps: The player's hold counter.
        limit: The time limit (steps).

    Returns:
        Closeness to the puck (0 or below; only while it rests or comes nearer on the player's own half), touch (1 in
        the step of a catch, else 0), and direction (positive when the puck flies towards the opponent).
    """
    closeness = 0.0
    if side * (puck[0] - c.CENTRE_X) < 0 and side * puck_velocity_x <= 0:
        per_metre = c.CLOSENESS_TOTAL / (c.CLOSENESS_DISTANCE * limit / 2)
        # The difference is float32 in the public environment.
        offset_x, offset_y = float(np.float32(racket[0] - puck[0])), float(np.float32(racket[1] - puck[1]))
        closeness = math.sqrt(offset_x**2 + offset_y**2) * per_metre
    touch = 1.0 if hold_steps == c.HOLD_STEPS else 0.0
    direction = side * puck_velocity_x * (1 / (limit * c.MAX_PUCK_SPEED))
    return closeness, touch, direction
