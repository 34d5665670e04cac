"""`HockeyTwoEnv`: the Box2D game for both players, with the interface of the compiled game."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, SupportsIndex

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey import constants as c
from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.game import HockeyGame, read_actions, reward_of
from envfleet.envs.hockey.opponents import scripted_action
from envfleet.envs.hockey.rendering import METADATA, Screen
from envfleet.envs.hockey.rules import draw_mode, draw_start
from envfleet.envs.hockey.settings import SETTINGS, read_setting
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_options


class HockeyTwoEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Air hockey on Box2D with the interface of the compiled `envfleet/Hockey-v0`, equal bit for bit.

    Observations `(2, 18)` and actions `(2, 4)`, each from the view of the player; without keep mode hold counters are 0
    and shooting does nothing. The reward is that of player one; that of player two and the terms of both are in the
    infos. The same seed gives the same games as the compiled one, including scripted players.

    A goal ends a game as `terminated`, the limit of its mode as `truncated`: after 251 steps, or 81 in the training
    modes.

    Every argument but `render_mode` is also an attribute that can be set at any time, in a fleet with `set_attr`.
    Controllers change with the next step, other settings with the next game. A copy of the environment
    (`copy.deepcopy`, `pickle`) continues exactly, also in another process: the game is replayed up to this point.

    Args:
        mode: Mode of play: a `Mode`, its name or its number.
        keep_mode: True if rackets catch and hold the puck.
        starter: Player that gets the puck in `NORMAL`: 1 or 2, or 0 for a random one in each game.
        player_one: Controller of the left side: 0 the action, 1 the weak scripted player, 2 the strong one.
        player_two: Controller of the right side.
        shooting_share: Probability that a game is `TRAIN_SHOOTING` instead of `mode`.
        defense_share: Probability that a game is `TRAIN_DEFENSE` instead of `mode`.
        render_mode: `"rgb_array"`, `"human"` or `None`.

    Raises:
        InvalidArgument: An argument has an invalid value.

    Examples:
        >>> env = HockeyTwoEnv(player_two=2)
        >>> observation, info = env.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> observation.shape, info["mode"], sorted(info)[:3]
        ((2, 18), 0, ['mode', 'reward_closeness_to_puck', 'reward_closeness_to_puck_two'])
    """

    metadata: ClassVar[dict[str, Any]] = METADATA  # type: ignore[misc]  # an instance variable in Gymnasium's Env
    mode: int
    keep_mode: bool
    starter: int
    player_one: int
    player_two: int
    shooting_share: float
    defense_share: float

    def __init__(
        self,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        *,
        keep_mode: bool = True,
        starter: int = 0,
        player_one: int = c.AGENT,
        player_two: int = c.AGENT,
        shooting_share: float = 0.0,
        defense_share: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        self._set({"mode": mode, "keep_mode": keep_mode, "starter": starter})
        self._set({"player_one": player_one, "player_two": player_two})
        self._set({"shooting_share": shooting_share, "defense_share": defense_share})
        self.render_mode = render_mode
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2, c.OBSERVATION_SIZE), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2, c.ACTION_SIZE), np.float32)
        self._screen = Screen(render_mode)
        self._game: HockeyGame | None = None
        self._phases = [0.0, 0.0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin a game.

        Args:
            seed: Seed of the generator; without a seed the generator continues.
            options: Dict with `"params"`: new settings by name.

        Returns:
            Observations of both players, and infos.

        Raises:
            InvalidArgument: An option or a setting is unknown or has an invalid value.
        """
        check_options(options)
        super().reset(seed=seed)
        unknown = set(options or {}) - {"params"}
        if unknown:
            raise InvalidArgument(f"options has {min(unknown)!r}, expected 'params': pass settings by name under it")
        params = (options or {}).get("params")
        check_options(params, name="options['params']")
        self._set(params or {})
        if self.shooting_share + self.defense_share > 1:
            raise InvalidArgument(
                f"shooting_share={self.shooting_share} and defense_share={self.defense_share} add up to more than 1: "
                "reduce them"
            )
        rng = self.np_random
        played = Mode(draw_mode(self.mode, self.shooting_share, self.defense_share, rng))
        start = draw_start(played, self.starter, rng)
        self._phases = [rng.uniform(0.0, c.PHASE_RANGE) for _ in range(2)]
        self._game = HockeyGame(played, start, keep_mode=self.keep_mode)
        self._screen.follow(self._game.world)
        return self._game.observe(), self._inform(self._game)

    def _set(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if name not in SETTINGS:
                raise InvalidArgument(f"unknown setting {name!r}: settings are {', '.join(SETTINGS)}")
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, read_setting(name, value) if name in SETTINGS else value)

    def step(self, action: ArrayLike) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Play one step, 1/50 s.

        Args:
            action: Actions of both players, shape `(2, 4)`; clipped to [-1, 1]. Those of scripted players are ignored.

        Returns:
            Observations of both players, reward of player one, `terminated`, `truncated`, and infos. Steps after the
            end are allowed.

        Raises:
            InvalidArgument: The action has another shape, or contains NaN.
            gymnasium.error.ResetNeeded: `reset` was not called.
        """
        game = self._require_game()
        actions = read_actions(action, (2, c.ACTION_SIZE), "pass one row for each player")
        strengths = (self.player_one, self.player_two)
        if any(strengths):
            self._swing(game, strengths, actions)
        game.play(actions.reshape(-1))
        self._screen.follow(game.world)
        info = self._inform(game)
        reward = reward_of(info["winner"], info["reward_closeness_to_puck"])
        return game.observe(), reward, game.world.winner != 0, game.is_late, info

    def _swing(self, game: HockeyGame, strengths: tuple[int, int], actions: NDArray[np.float32]) -> None:
        """Let the scripted players choose their rows of the actions."""
        for player, strength in enumerate(strengths):
            if strength != c.AGENT:
                self._phases[player] += c.PHASE_GROWTH * self.np_random.random()  # `uniform`, but faster
                is_weak = strength == c.WEAK
                actions[player] = scripted_action(game.view(player), is_weak, True, self._phases[player])

    def _inform(self, game: HockeyGame) -> dict[str, Any]:
        closeness, touch, direction = game.reward_terms(0)
        closeness_two, touch_two, direction_two = game.reward_terms(1)
        winner = game.world.winner
        return {
            "mode": int(game.mode),
            "winner": winner,
            "reward_closeness_to_puck": closeness,
            "reward_touch_puck": touch,
            "reward_puck_direction": direction,
            "reward_two": reward_of(-winner, closeness_two),
            "reward_closeness_to_puck_two": closeness_two,
            "reward_touch_puck_two": touch_two,
            "reward_puck_direction_two": direction_two,
        }

    def _require_game(self) -> HockeyGame:
        if self._game is None:
            raise gymnasium.error.ResetNeeded("no game has begun: call reset() first")
        return self._game

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]  # an array or nothing
        """Draw the game: `(480, 600, 3)`, uint8, if `render_mode` is `"rgb_array"`."""
        return self._screen.draw(self._require_game().world)

    def close(self) -> None:
        """Close the window, if there is one."""
        self._screen.close()
