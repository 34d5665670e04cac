"""Every number of the game: field, bodies, forces, rewards, colours.

Lengths are metres, times seconds, angles radians, masses kilograms. The origin is the lower left corner of the field, x
points right, y up. Bodies are float32: a number that becomes part of one is rounded to float32 on its way in.
"""

from __future__ import annotations

import enum
import math

Point = tuple[float, float]
Outline = tuple[Point, ...]
Color = tuple[int, int, int]

PIXELS_PER_METER = 60
FIELD_WIDTH, FIELD_HEIGHT = 10.0, 8.0
CENTER_X, CENTER_Y = FIELD_WIDTH / 2, FIELD_HEIGHT / 2

STEPS_PER_SECOND = 50
TIME_STEP_S = 1.0 / STEPS_PER_SECOND
VELOCITY_ITERATIONS, POSITION_ITERATIONS = 180, 60


class Mode(enum.IntEnum):
    """Mode of play."""

    NORMAL = 0
    TRAIN_SHOOTING = 1
    TRAIN_DEFENSE = 2


TIME_LIMIT_STEPS = {Mode.NORMAL: 250, Mode.TRAIN_SHOOTING: 80, Mode.TRAIN_DEFENSE: 80}

OBSERVATION_SIZE = 18  # numbers that one player sees, of which the last two are the hold counters

# Control
ACTION_SIZE = 4  # numbers of one player's action, of which the last is nothing without keep mode
TRANSLATION_FORCE_N = 6000.0
TORQUE_NM = 400.0
MAX_ANGLE = math.pi / 3
MAX_RACKET_SPEED = 10.0
MAX_PUCK_SPEED = 25.0
STRIP_HALF_WIDTH = FIELD_WIDTH / 20  # around the centre line, where rackets are stopped
FAR_X = 210 / PIXELS_PER_METER  # how far from the centre line a racket may drive towards its own goal
LOWEST_Y, HIGHEST_Y = 1.2, 6.8
PUCK_LINEAR_DAMPING, FAST_PUCK_LINEAR_DAMPING = 0.05, 10.0
RACKET_LINEAR_DAMPING, FAST_RACKET_LINEAR_DAMPING = 5.0, 20.0
RACKET_ANGULAR_DAMPING, TURNED_RACKET_ANGULAR_DAMPING = 2.0, 10.0

# Holding and shooting
HOLD_STEPS = 15
CATCH_SPEED = 0.1
SHOOT_THRESHOLD = 0.5
SHOT_SPEED = 60.0

# Bodies
RACKET_DENSITY, RACKET_FRICTION = 200 / 1.2, 1.0
RACKET_MASSES = (58.000003814697266, 58.0)  # what Box2D makes of outline and density, as of the puck's
PUCK_RADIUS_PIXELS = 13
PUCK_RADIUS = PUCK_RADIUS_PIXELS / PIXELS_PER_METER
PUCK_DENSITY, PUCK_FRICTION, PUCK_RESTITUTION = 7.0, 0.1, 0.95
PUCK_MASS = 1.0323623418807983
WALL_FRICTION = 0.1

_RACKET_PIXELS: Outline = ((-10, 20), (5, 20), (5, -20), (-10, -20), (-18, -10), (-21, 0), (-18, 10))
_RACKET_SCALE = 1.2
_WALL_PIXELS: Outline = ((-250, 10), (-250, -10), (250, -10), (250, 10))
_POST_PIXELS: Outline = ((-10, 135), (10, 128), (10, -5), (-10, -5))
_GOAL_PIXELS: Outline = ((-10, 75), (10, 75), (10, -75), (-10, -75))


def _meters(pixels: Outline, x_sign: int = 1, y_sign: int = 1) -> Outline:
    return tuple((x_sign * x / PIXELS_PER_METER, y_sign * y / PIXELS_PER_METER) for x, y in pixels)


def _racket(x_sign: int) -> Outline:
    return tuple((x * _RACKET_SCALE, y * _RACKET_SCALE) for x, y in _meters(_RACKET_PIXELS, x_sign))


RACKET_OUTLINES: tuple[Outline, Outline] = (_racket(1), _racket(-1))
RACKET_POSITIONS: tuple[Point, Point] = ((2.0, CENTER_Y), (8.0, CENTER_Y))

_POST_X = 245 / PIXELS_PER_METER
_GOAL_X = 255 / PIXELS_PER_METER
_WALL_Y = 3.5
GOAL_HALF_HEIGHT = 75 / PIXELS_PER_METER

# Position and outline of what stands around the field: top, bottom, and the posts upper left, lower left, upper right,
# lower right.
BARRIERS: tuple[tuple[Point, Outline], ...] = (
    ((CENTER_X, CENTER_Y + _WALL_Y), _meters(_WALL_PIXELS)),
    ((CENTER_X, CENTER_Y - _WALL_Y), _meters(_WALL_PIXELS)),
    ((CENTER_X - _POST_X, CENTER_Y + _WALL_Y), _meters(_POST_PIXELS, 1, -1)),
    ((CENTER_X - _POST_X, CENTER_Y - _WALL_Y), _meters(_POST_PIXELS)),
    ((CENTER_X + _POST_X, CENTER_Y + _WALL_Y), _meters(_POST_PIXELS, -1, -1)),
    ((CENTER_X + _POST_X, CENTER_Y - _WALL_Y), _meters(_POST_PIXELS, -1)),
)
# Left, right. The puck flies into a goal, rackets do not.
GOALS: tuple[tuple[Point, Outline], ...] = (
    ((CENTER_X - _GOAL_X, CENTER_Y), _meters(_GOAL_PIXELS)),
    ((CENTER_X + _GOAL_X, CENTER_Y), _meters(_GOAL_PIXELS)),
)

# Rewards
WIN_REWARD = 10.0
REWARD_TERMS = ("reward_closeness_to_puck", "reward_touch_puck", "reward_puck_direction")  # in a player's infos
CLOSENESS_TOTAL = -30.0  # the closeness term of a game in which the puck is half the distance below away all the time
CLOSENESS_DISTANCE = 250 / PIXELS_PER_METER

# Controller of a player: the action, or a scripted player
AGENT, WEAK, STRONG = 0, 1, 2
WEAK_GAIN, STRONG_GAIN = 0.5, 10.0
DAMPING_GAIN = 0.5
PHASE_RANGE, PHASE_GROWTH = math.pi, 0.2
AWAY_SPEED = 0.5  # the puck counts as flying away from this speed on
CHASE_WIDTH = 0.5
LEAD_X, LEAD_Y = 0.2, 0.1
HOME_X = -3.5
LAST_HOLD_STEPS = 7  # shoots when it may hold the puck for less

# Picture
PICTURE_WIDTH, PICTURE_HEIGHT = 600, 480
WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)
CENTER_COLOR: Color = (204, 204, 204)
GOAL_COLOR: Color = (239, 203, 138)
RACKET_COLORS: tuple[Color, Color] = ((235, 98, 53), (93, 158, 199))
