"""Hockey's entry in the registry of games: used by training, evaluation and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.games import Game
from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.discrete import action_table
from envfleet.errors import InvalidArgument


class HockeyGame(Game):
    """Hockey."""

    name = "hockey"
    sides = ("left", "right")
    observation_space = spaces.Box(-np.inf, np.inf, (c.OBSERVATION_SIZE,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (c.ACTION_SIZE,), np.float32)
    modes = tuple(mode.name for mode in Mode)
    scripts: ClassVar[Mapping[str, int]] = {"weak": 1, "strong": 2}
    # 3.0 apart, as strong scores 62.5 % against weak, draws counting half.
    anchors: ClassVar[Mapping[str, float]] = {"weak": 22.0, "strong": 25.0}
    files: ClassVar[Mapping[str, Path]] = {"champion": Path(__file__).with_name("champion.pt")}
    terms: ClassVar[Mapping[str, tuple[str, float, float, str]]] = {
        "CLOSENESS": ("reward_closeness_to_puck", 20.0, 1.5, "being near the puck in the own half"),
        "TOUCH": ("reward_touch_puck", 15.0, 1.0, "touching the puck"),
        "DIRECTION": ("reward_puck_direction", 0.0, 2.0, "sending the puck towards the opponent's goal"),
    }

    defaults: ClassVar[Mapping[str, Any]] = {"keep_mode": True, "starter": 0}
    fixed = ("keep_mode",)

    def __init__(self) -> None:
        """Create the game; all its properties are constants."""

    @property
    def engines(self) -> Mapping[str, str]:
        """Return the compiled game and that on Box2D, which are equal bit for bit."""
        return {"compiled": "envfleet/Hockey-v0", "box2d": "envfleet/Hockey-Two-Box2D-v0"}

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check the `environment.kwargs` of a configuration."""
        for name, value in settings.items():
            if name not in self.defaults:
                raise InvalidArgument(
                    f"has {name!r} in kwargs, where hockey accepts {' and '.join(self.defaults)}: mode and mixture "
                    "are keys next to kwargs, and the opponent section sets the players"
                )
            if name == "keep_mode" and not isinstance(value, bool):
                raise InvalidArgument(f"has keep_mode={value!r} in kwargs, expected true or false")
            if name == "starter" and (isinstance(value, bool) or value not in (0, 1, 2)):
                raise InvalidArgument(
                    f"has starter={value!r} in kwargs, expected 1 or 2, or 0 to draw it for every game"
                )

    def settings(self, mode_shares: Mapping[str, float], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return modes, `keep_mode` and `starter` as attributes."""
        return {
            "mode": int(Mode.NORMAL),
            "shooting_share": mode_shares.get(Mode.TRAIN_SHOOTING.name, 0.0),
            "defense_share": mode_shares.get(Mode.TRAIN_DEFENSE.name, 0.0),
            **self.defaults,  # set in every phase, or those of the phase before would stay
            **settings,
        }

    def arguments(self, mode: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the mode by its number, and the settings."""
        return {"mode": int(Mode[mode]), **settings}

    def deal(self, scripts: tuple[int, int], starter: int) -> dict[str, Any]:
        """Return the controllers of both players, and the player that starts with the puck."""
        return {"params": {"starter": starter, "player_one": scripts[0], "player_two": scripts[1]}}

    def default_side(self, mode: str) -> str:
        """Return both sides in turn; in the training modes the left one, which shoots or defends."""
        return "both" if mode == Mode.NORMAL.name else self.sides[0]

    def action_table(self, fineness: int, combined: bool, settings: Mapping[str, Any]) -> NDArray[Any]:
        """Return the table of actions, `(K, 4)`."""
        table = action_table(fineness, keep_mode=settings.get("keep_mode", True), combined=combined)
        return np.pad(table, ((0, 0), (0, c.ACTION_SIZE - table.shape[1])))  # without keep_mode players cannot shoot

    def open(self, mode: str, settings: Mapping[str, Any], render_mode: str | None = None) -> gym.Env[Any, Any]:
        """Make the game on Box2D, for a window or for frames."""
        from envfleet.envs.hockey.two_player import HockeyTwoEnv
        from envfleet.envs.keyboard import require_display

        if render_mode == "human":
            require_display()
        return HockeyTwoEnv(render_mode=render_mode, **self.arguments(mode, settings))

    def person(self, env: gym.Env[Any, Any], player: int) -> Any:
        """Return a human player that uses the arrow keys."""
        from envfleet.envs.hockey.opponents import HumanOpponent

        return HumanOpponent(env, player=player + 1)
