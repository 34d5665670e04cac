"""Board games with the action mask in observations, where agents use it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.envs.board.connect_four import COLUMNS, ROWS, ConnectFourOne
from envfleet.envs.board.play_2048 import Play2048


class MaskedConnectFourOne(ConnectFourOne):
    """`ConnectFourOne` with Dict observations: `observation` (int8) and `action_mask`."""

    observation_space = spaces.Dict(  # type: ignore[assignment]  # another, indeed
        observation=spaces.Box(0, 1, (ROWS, COLUMNS, 2), np.int8), action_mask=spaces.MultiBinary(COLUMNS)
    )

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        """Write both."""
        ConnectFourOne.observe(state, out["observation"])
        out["action_mask"][:] = state.action_mask


class MaskedPlay2048(Play2048):
    """`Play2048` with Dict observations: `observation` (int8) and `action_mask`."""

    observation_space = spaces.Dict(  # type: ignore[assignment]  # another, indeed
        observation=spaces.Box(0, 1, Play2048.observation_space.shape, np.int8), action_mask=spaces.MultiBinary(4)
    )

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        """Write both."""
        Play2048.observe(state, out["observation"])
        out["action_mask"][:] = state.action_mask
