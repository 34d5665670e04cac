"""Games of hockey side by side, for two players each."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper
from numpy.typing import NDArray

import envfleet
from envfleet import Fleet
from envfleet.envs.hockey import HockeyEnv


class VectorizedHockeyEnv(VectorWrapper):
    """N games of `envfleet.envs.hockey.HockeyEnv` as one vector environment; one that ends is reset in the same step.

    Observations, rewards and infos are those of player one. An action is that of player one, followed by player two's.
    The compiled game, `envfleet.make("envfleet/Hockey-v0", N)`, is faster.

    Args:
        num_envs: Number of games.
        mode: `"NORMAL"`, `"TRAIN_SHOOTING"` or `"TRAIN_DEFENSE"`.
        keep_mode: True if rackets catch and hold the puck.
        **options: For `envfleet.make`: `backend`, `workers`, `seed`, …
    """

    env: Fleet
    _copies: ClassVar[bool] = True

    def __init__(self, num_envs: int = 4, mode: str = "NORMAL", keep_mode: bool = True, **options: Any) -> None:
        env = functools.partial(HockeyEnv, keep_mode, mode)
        options = {"autoreset_mode": AutoresetMode.SAME_STEP, "copy": self._copies, **options}
        super().__init__(envfleet.make(env, num_envs, **options))

    def obs_agent_two(self) -> NDArray[np.float32]:
        """Return what each player two sees, `(num_envs, 18)`, or 16 numbers without `keep_mode`."""
        return np.array(self.env.call("obs_agent_two"))


class VectorizedHockeyEnvOptimized(VectorizedHockeyEnv):
    """The same with results that are views of two buffers, which the step after the next fills again."""

    _copies = False
