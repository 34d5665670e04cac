"""`HockeyEnv`: air hockey for two players, as a Gymnasium environment on Box2D."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, SupportsIndex

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hockey.constants import Mode
from envfleet.envs.hockey.discrete import discrete_action
from envfleet.envs.hockey.game import HockeyGame, read_actions, reward_of
from envfleet.envs.hockey.rendering import METADATA, Screen
from envfleet.envs.hockey.rules import draw_start
from envfleet.envs.hockey.settings import read_mode
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_options

Info = dict[str, Any]
_OPTIONS = {"one_starting", "mode"}


@dataclasses.dataclass(frozen=True)
class Quirks:
    """Behaviors of the public environment that are fixed here unless enabled; `PUBLIC_QUIRKS` enables all of them.

    Attributes:
        holds_survive_reset: A puck that was held when the last game ended is held in the next game, too.
        limit_terminates: The time limit is reported as `terminated`, never as `truncated`.
        reset_draws_seed: `reset()` without a seed starts a generator from fresh entropy, instead of continuing with the
            one that was seeded last.
        starter_ignores_seed: The starting player alternates over all resets, also seeded ones. Then the
            same seed gives a mirrored game every other time.
        order_alternates: Contacts are solved in another order after every second reset, so that the last bits of a game
            depend on how many were played before.
        public_spaces: Observations are float64 in a float32 space; without keep mode the space has 18 numbers although
            there are 16; and the discrete action space lacks shooting.
    """

    holds_survive_reset: bool = False
    limit_terminates: bool = False
    reset_draws_seed: bool = False
    starter_ignores_seed: bool = False
    order_alternates: bool = False
    public_spaces: bool = False


PUBLIC_QUIRKS = Quirks(**{quirk.name: True for quirk in dataclasses.fields(Quirks)})


class HockeyEnv(gymnasium.Env[NDArray[Any], NDArray[Any]]):
    """Air hockey for two players: a Box2D game that behaves like the public hockey environment.

    Player one has the left goal; `step` returns its observation and reward. Player two sees the field rotated by 180
    degrees, so that a policy can play on either side; `obs_agent_two`, `get_info_agent_two` and `get_reward_agent_two`
    return its observation, info and reward.

    Observations are 18 numbers, float32: x, y (from the center), angle, velocity x and y, angular velocity of the
    player's racket; the same for the opponent's racket; x, y, velocity x and y of the puck; and the number of steps for
    which the player, and the opponent, can still hold the puck. The last two are missing without `keep_mode`.

    An action consists of those of player one and player two, each clipped to [-1, 1]: force x, force y, torque and, in
    `keep_mode`, shoot (above 0.5).

    A game ends with a goal (`terminated`, reward 10 or -10), or at the time limit (`truncated`): one step after 250
    steps, 80 in the training modes.

    Args:
        keep_mode: True if rackets catch and hold the puck.
        mode: `NORMAL`, `TRAIN_SHOOTING` or `TRAIN_DEFENSE`; a `Mode`, its name or its number.
        render_mode: `"rgb_array"`, `"human"` or `None`.
        quirks: Behaviors of the public environment to enable; none by default.

    Attributes:
        discrete_action_space: Space of the arguments of `discrete_to_continuous_action`.

    Raises:
        InvalidArgument: The mode or the render mode is unknown.

    Examples:
        >>> env = HockeyEnv()
        >>> observation, info = env.reset(seed=1)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> observation.shape, env.obs_agent_two().shape, info["winner"]
        ((18,), (18,), 0)
    """

    metadata: ClassVar[dict[str, Any]] = METADATA  # type: ignore[misc]  # an instance variable in Gymnasium's Env

    def __init__(
        self,
        keep_mode: bool = True,
        mode: Mode | str | SupportsIndex = Mode.NORMAL,
        *,
        render_mode: str | None = None,
        quirks: Quirks = Quirks(),  # frozen
    ) -> None:
        self.keep_mode, self.render_mode = keep_mode, render_mode
        self._screen = Screen(render_mode)
        self._quirks = quirks
        self._mode = read_mode(mode)
        self._is_reversed = self._is_one_starting = True
        self._size = 18 if keep_mode else 16
        self._dtype = np.float64 if quirks.public_spaces else np.float32
        shown = 18 if quirks.public_spaces else self._size
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (shown,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2 * self.num_actions,), np.float32)
        numbered = 8 if keep_mode and not quirks.public_spaces else 7
        self.discrete_action_space: gymnasium.spaces.Discrete[Any] = gymnasium.spaces.Discrete(numbered)
        self._begin(is_one_starting=True)

    @property
    def num_actions(self) -> int:
        """Number of elements of one player's action."""
        return 4 if self.keep_mode else 3

    @property
    def mode(self) -> Mode:
        """Mode of play; a new mode takes effect at the next reset."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode | str | SupportsIndex) -> None:
        self._mode = read_mode(mode)

    @property
    def winner(self) -> int:
        """1 if player one has scored, -1 if player two has, else 0."""
        return self._game.world.winner

    @property
    def time(self) -> int:
        """Steps played in this game."""
        return self._game.time

    @property
    def max_timesteps(self) -> int:
        """Time limit of this game in steps; the step after it is the last."""
        return self._game.limit

    def reset(
        self,
        one_starting: bool | None = None,
        mode: Mode | str | SupportsIndex | None = None,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], Info]:
        """Begin a game.

        Args:
            one_starting: True if player one gets the puck in `NORMAL`. By default players alternate, and player two
                begins after a seeded reset.
            mode: New mode; by default the current one.
            seed: Seed of the generator of start positions; without a seed the generator continues.
            options: Dict with `one_starting` or `mode`, for callers that pass Gymnasium's arguments only.

        Returns:
            Observation and info of player one.

        Raises:
            InvalidArgument: An option or a mode is unknown.
        """
        if seed is not None:
            self._reseed(seed)
        check_options(options)
        super().reset(seed=seed)
        unknown = set(options or {}) - _OPTIONS
        if unknown:
            raise InvalidArgument(f"options has {sorted(unknown)}, expected {sorted(_OPTIONS)}: remove the others")
        chosen = {"one_starting": one_starting, "mode": mode, **(options or {})}
        if chosen["mode"] is not None:
            self.mode = chosen["mode"]
        if seed is None and self._quirks.reset_draws_seed:
            self.np_random = np.random.default_rng()
        is_one_starting = chosen["one_starting"]
        if is_one_starting is None:
            is_first = seed is not None and not self._quirks.starter_ignores_seed
            is_one_starting = False if is_first else not self._is_one_starting
        self._begin(
            bool(is_one_starting), tuple(self._game.world.holds) if self._quirks.holds_survive_reset else (0, 0)
        )
        self._screen.follow(self._game.world)
        return self._observe(0), self._game.inform(0)

    def _reseed(self, seed: int) -> None:
        """Seed generators of subclasses, in addition to that of the environment."""

    def _begin(self, is_one_starting: bool, holds: tuple[int, ...] = (0, 0)) -> None:
        if self._mode is Mode.NORMAL:
            self._is_one_starting = is_one_starting
        if self._quirks.order_alternates:
            self._is_reversed = not self._is_reversed
        start = draw_start(self._mode, 1 if self._is_one_starting else 2, self.np_random)
        self._game = HockeyGame(self._mode, start, holds, keep_mode=self.keep_mode, is_reversed=self._is_reversed)

    def step(self, action: ArrayLike) -> tuple[NDArray[Any], float, bool, bool, Info]:
        """Play one step, 1/50 s.

        Args:
            action: Action of player one, then that of player two: shape `(8,)`, or `(6,)` without keep mode.

        Returns:
            Observation and reward of player one, `terminated` (a player scored), `truncated` (time limit), and info of
            player one. Steps after the end return the flag and the reward of the goal again.

        Raises:
            InvalidArgument: The action has another shape, or contains NaN.
        """
        game = self._game
        advice = "pass the action of player one, followed by that of player two"
        game.play(read_actions(action, (2 * self.num_actions,), advice))
        self._screen.follow(game.world)
        terminated = game.world.winner != 0 or (game.is_late and self._quirks.limit_terminates)
        info = game.inform(0)
        return self._observe(0), self.get_reward(info), terminated, game.is_late and not terminated, info

    def obs_agent_two(self) -> NDArray[Any]:
        """Return the observation of player two."""
        return self._observe(1)

    def get_info_agent_two(self) -> Info:
        """Return the info of player two; its `winner` is 1 if player two has won."""
        return self._game.inform(1)

    def get_reward(self, info: Info) -> float:
        """Return the reward for a player's info: 10 for a goal, -10 for one conceded, plus closeness."""
        return reward_of(info["winner"], info["reward_closeness_to_puck"])

    def get_reward_agent_two(self, info_two: Info) -> float:
        """Return the reward of player two; `info_two` is the result of `get_info_agent_two`."""
        return self.get_reward(info_two)

    def set_state(self, state: ArrayLike) -> None:
        """Set rackets and puck to the positions in an observation of player one.

        State that an observation does not contain is unchanged: the puck's spin, contacts, the clock, the score. A
        copy of the environment (`copy.deepcopy`, `pickle`) has all of it.

        Args:
            state: Observation, shape `(18,)`, or `(16,)` without keep mode.

        Raises:
            InvalidArgument: The observation has another shape, or a number in it is not finite or beyond a million.
        """
        self._game.place(state)

    def discrete_to_continuous_action(self, number: int) -> NDArray[np.float32]:
        """Return the action of one player with this number in the public table.

        Raises:
            InvalidArgument: The action is unknown.
        """
        return discrete_action(number, keep_mode=self.keep_mode)

    def render(self, mode: str | None = None) -> NDArray[np.uint8] | None:  # type: ignore[override]  # array or nothing
        """Draw the game.

        Args:
            mode: `"rgb_array"` or `"human"`; by default the environment's `render_mode`.

        Returns:
            Frame, uint8 `(480, 600, 3)`, for `"rgb_array"`, else `None`.

        Raises:
            InvalidArgument: The render mode is missing or unknown.
        """
        return self._screen.draw(self._game.world, mode)

    def close(self) -> None:
        """Close the window, if there is one."""
        self._screen.close()

    def _observe(self, player: int) -> NDArray[Any]:
        return self._game.observe()[player, : self._size].astype(self._dtype)
