"""MinAtar's games with those actions only that do something in them."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from envfleet.envs.minatar.asterix import Asterix
from envfleet.envs.minatar.breakout import Breakout
from envfleet.envs.minatar.freeway import Freeway
from envfleet.envs.minatar.game import DOWN, FIRE, LEFT, NOTHING, RIGHT, UP, MinAtarGame
from envfleet.envs.minatar.space_invaders import SpaceInvaders


def _restrict(name: str, game: type[MinAtarGame], *actions: int) -> type[MinAtarGame]:
    """Return the game with these actions only, as a class of this module, where pickle finds it by its name."""
    params = type("Params", (game.Params,), {"action_set": np.array(actions, np.int32)})
    own = {"__module__": __name__, "__doc__": f"`{game.__name__}` with fewer actions.", "Params": params}
    return type(name, (game,), {**own, "action_space": spaces.Discrete(len(actions))})


AsterixMinimal = _restrict("AsterixMinimal", Asterix, NOTHING, LEFT, UP, RIGHT, DOWN)
BreakoutMinimal = _restrict("BreakoutMinimal", Breakout, NOTHING, LEFT, RIGHT)
FreewayMinimal = _restrict("FreewayMinimal", Freeway, NOTHING, UP, DOWN)
SpaceInvadersMinimal = _restrict("SpaceInvadersMinimal", SpaceInvaders, NOTHING, LEFT, RIGHT, FIRE)
