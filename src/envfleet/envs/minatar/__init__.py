"""MinAtar's five games as kernels, equal to the package `minatar` where both draw the same numbers."""

from envfleet.envs.minatar.asterix import Asterix
from envfleet.envs.minatar.breakout import Breakout
from envfleet.envs.minatar.freeway import Freeway
from envfleet.envs.minatar.minimal import AsterixMinimal, BreakoutMinimal, FreewayMinimal, SpaceInvadersMinimal
from envfleet.envs.minatar.seaquest import Seaquest
from envfleet.envs.minatar.space_invaders import SpaceInvaders

__all__ = [
    "Asterix",
    "AsterixMinimal",
    "Breakout",
    "BreakoutMinimal",
    "Freeway",
    "FreewayMinimal",
    "Seaquest",
    "SpaceInvaders",
    "SpaceInvadersMinimal",
]
