"""The public hockey environment's own interface, quirks included: for code and agents that were written for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from gymnasium.utils import EzPickle
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import env, one_player
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.opponents import BasicOpponent, HumanOpponent
from envfleet.envs.hockey.rules import PUBLIC_QUIRKS
from envfleet.envs.hockey.scripted import scripted_action

__all__ = [
    "BasicOpponent",
    "HockeyEnv",
    "HockeyEnv_BasicOpponent",
    "HumanOpponent",
    "Mode",
    "make",
    "opponent_action",
]


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
        super().__init__(keep_mode, mode, render_mode=render_mode, quirks=PUBLIC_QUIRKS)
        EzPickle.__init__(self, keep_mode, mode, verbose, render_mode=render_mode)
        self.verbose = verbose

    def discrete_to_continous_action(self, discrete_action: int) -> NDArray[np.float32]:
        """`discrete_to_continuous_action`, as the public environment spells it."""
        return self.discrete_to_continuous_action(discrete_action)

    def set_full_state(self, bodies: ArrayLike, holds: ArrayLike, puck_force: ArrayLike) -> None:
        """Put rackets and puck exactly where a recording says.

        Args:
            bodies: x, y, angle, velocity x, velocity y and angular velocity of player one, player two and the puck, in
                world coordinates: shape `(18,)`.
            holds: Both hold counters.
            puck_force: Force on the puck that acts in the next step (N).
        """
        self._game.forget()
        poses = np.asarray(bodies, np.float64).reshape(3, 6).tolist()
        for body, pose in zip((*self._world.rackets, self._world.puck), poses, strict=True):
            body.place(pose)
        self._world.holds[:] = np.asarray(holds, int).tolist()
        self._world.replace_puck_force(np.asarray(puck_force, np.float64).tolist())

    def set_puck_spin(self, angular_velocity: float) -> None:
        """Set the puck's angular velocity (rad/s), which no observation shows."""
        self._game.forget()
        self._world.puck.body.angularVelocity = angular_velocity


class HockeyEnv_BasicOpponent(one_player.HockeyOneEnv):  # noqa: N801  # the public name
    """`envfleet.envs.hockey.HockeyOneEnv` with all quirks of the public environment and its constructor."""

    def __init__(
        self,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        weak_opponent: bool = False,
        *,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(mode, weak_opponent, render_mode=render_mode, quirks=PUBLIC_QUIRKS)
        EzPickle.__init__(self, mode, weak_opponent, render_mode=render_mode)


def make(mode: int, keep_mode: bool) -> HockeyEnv:
    """Make the environment that recordings of the public one are replayed on."""
    return HockeyEnv(keep_mode, mode)


def opponent_action(observation: Sequence[float], weak: bool, keep_mode: bool, phase_after: float) -> Any:
    """Compute the scripted player's action as float64, given the phase it uses."""
    return np.array(scripted_action(observation, weak, keep_mode, phase_after))
