"""Colours of grid worlds and boards."""

from __future__ import annotations

from typing import Final

from envfleet.envs.frames import Color

COLORS: Final[tuple[Color, ...]] = ((236, 236, 230), (84, 88, 96), (226, 88, 34), (64, 168, 92))
"""Of floor, wall, lava and goal."""

AGENT_COLOR: Final[Color] = (40, 92, 200)
