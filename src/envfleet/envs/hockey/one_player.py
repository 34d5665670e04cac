"""`HockeyOneEnv`: hockey for one player against a scripted player."""

from __future__ import annotations

from typing import Any, SupportsIndex

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.env import HockeyEnv, Info, Quirks
from envfleet.envs.hockey.game import read_actions
from envfleet.envs.hockey.opponents import BasicOpponent

_OPPONENT_STREAM = 1  # of the seed; the environment's own numbers are what they are in the two-player game


class HockeyOneEnv(HockeyEnv):
    """Hockey for player one, against the scripted player on the right side.

    Args:
        mode: Argument of `HockeyEnv`.
        weak_opponent: True for the weak scripted player, False for the strong one.
        render_mode: Argument of `HockeyEnv`.
        quirks: Argument of `HockeyEnv`.

    Attributes:
        opponent: Player two: any object with `act(observation)`. Each seeded reset seeds a `BasicOpponent`.

    Examples:
        >>> env = HockeyOneEnv(weak_opponent=True)
        >>> observation, info = env.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = env.step([1.0, 0.0, 0.0, 0.0])
        >>> env.action_space.shape, observation.shape
        ((4,), (18,))
    """

    def __init__(
        self,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        weak_opponent: bool = False,
        *,
        render_mode: str | None = None,
        quirks: Quirks = Quirks(),  # noqa: B008  # frozen
    ) -> None:
        super().__init__(mode=mode, render_mode=render_mode, quirks=quirks)
        self.opponent: Any = BasicOpponent(weak=weak_opponent)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.num_actions,), np.float32)

    def _reseed(self, seed: int) -> None:
        if isinstance(self.opponent, BasicOpponent):
            self.opponent.seed(np.random.SeedSequence(seed, spawn_key=(_OPPONENT_STREAM,)))

    def step(self, action: ArrayLike) -> tuple[NDArray[Any], float, bool, bool, Info]:
        """Play one step against the opponent.

        Args:
            action: Action of player one, shape `(4,)`.

        Returns:
            The same as `HockeyEnv.step`.

        Raises:
            InvalidArgument: The action has another shape, or contains NaN.
        """
        own = read_actions(action, (self.num_actions,), "pass only the action of player one, without NaN")
        return super().step(np.concatenate([own, self.opponent.act(self.obs_agent_two())], dtype=np.float32))
