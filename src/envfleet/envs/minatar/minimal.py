"""MinAtar's games with those actions only that do something in them."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.minatar.asterix import Asterix
from envfleet.envs.minatar.breakout import Breakout
from envfleet.envs.minatar.freeway import Freeway
from envfleet.envs.minatar.game import DOWN, FIRE, LEFT, NOTHING, RIGHT, UP
from envfleet.envs.minatar.space_invaders import SpaceInvaders


class AsterixMinimal(Asterix):
    """Asterix by nothing, left, up, right, down."""

    action_space = spaces.Discrete(5)

    class Params(Asterix.Params):
        """As there."""

        action_set: NDArray[np.int32] = np.array([NOTHING, LEFT, UP, RIGHT, DOWN], np.int32)


class BreakoutMinimal(Breakout):
    """Breakout by nothing, left, right."""

    action_space = spaces.Discrete(3)

    class Params(Breakout.Params):
        """As there."""

        action_set: NDArray[np.int32] = np.array([NOTHING, LEFT, RIGHT], np.int32)


class FreewayMinimal(Freeway):
    """Freeway by nothing, up, down."""

    action_space = spaces.Discrete(3)

    class Params(Freeway.Params):
        """As there."""

        action_set: NDArray[np.int32] = np.array([NOTHING, UP, DOWN], np.int32)


class SpaceInvadersMinimal(SpaceInvaders):
    """Space Invaders by nothing, left, right, fire."""

    action_space = spaces.Discrete(4)

    class Params(SpaceInvaders.Params):
        """As there."""

        action_set: NDArray[np.int32] = np.array([NOTHING, LEFT, RIGHT, FIRE], np.int32)
