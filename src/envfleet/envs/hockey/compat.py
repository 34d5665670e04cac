"""Interface of the public hockey environment, including its quirks, for existing code and agents."""

from __future__ import annotations

from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hockey import env, one_player
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.opponents import BasicOpponent, HumanOpponent

__all__ = ["BasicOpponent", "HockeyEnv", "HockeyEnv_BasicOpponent", "HumanOpponent", "Mode"]


class HockeyEnv(env.HockeyEnv):
    """`envfleet.envs.hockey.HockeyEnv` with all quirks of the public environment and its constructor."""

    def __init__(
        self,
        keep_mode: bool = True,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        verbose: bool = False,
        *,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(keep_mode, mode, render_mode=render_mode, quirks=env.PUBLIC_QUIRKS)
        self.verbose = verbose

    def discrete_to_continous_action(self, discrete_action: int) -> NDArray[np.float32]:
        """`discrete_to_continuous_action`, as the public environment spells it."""
        return self.discrete_to_continuous_action(discrete_action)


class HockeyEnv_BasicOpponent(one_player.HockeyOneEnv):  # noqa: N801  # the public name
    """`envfleet.envs.hockey.HockeyOneEnv` with all quirks of the public environment and its constructor."""

    def __init__(
        self,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        weak_opponent: bool = False,
        *,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(mode, weak_opponent, render_mode=render_mode, quirks=env.PUBLIC_QUIRKS)
