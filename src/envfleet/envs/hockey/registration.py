"""Makes hockey known to Gymnasium."""

from __future__ import annotations

import gymnasium

_ROOM = "envfleet.envs.hockey"
_ENTRY_POINTS = {
    "Hockey-v0": f"{_ROOM}.env:HockeyEnv",
    "Hockey-One-v0": f"{_ROOM}.one_player:HockeyOneEnv",
}


def register() -> None:
    """Register `Hockey-v0` and `Hockey-One-v0`.

    These names are those of the public environment; where another package has registered them they stay with it. Names
    of our own are known as soon as envfleet is imported.
    """
    for name, entry_point in _ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point)
