"""Two-player air hockey. Importing this registers `Hockey-v0` and `Hockey-One-v0` with Gymnasium.

Box2D and pygame are imported only when a game begins or is drawn.
"""

import gymnasium

from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.discrete import action_table
from envfleet.envs.hockey.env import PUBLIC_QUIRKS, HockeyEnv, Quirks
from envfleet.envs.hockey.one_player import HockeyOneEnv
from envfleet.envs.hockey.opponents import BasicOpponent, HumanOpponent
from envfleet.envs.hockey.two_player import HockeyTwoEnv

__all__ = [
    "PUBLIC_QUIRKS",
    "BasicOpponent",
    "HockeyEnv",
    "HockeyOneEnv",
    "HockeyTwoEnv",
    "HumanOpponent",
    "Mode",
    "Quirks",
    "action_table",
]

# The names of the public environment; where another package has registered them they stay with it.
for _name, _env in (("Hockey-v0", HockeyEnv), ("Hockey-One-v0", HockeyOneEnv)):
    if _name not in gymnasium.registry:
        gymnasium.register(_name, entry_point=f"{_env.__module__}:{_env.__name__}")
