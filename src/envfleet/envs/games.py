"""Games for two players: properties that training, evaluation and the commands need, beyond the environment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envfleet.adapters.pettingzoo_game import SCRIPT_ATTRIBUTES, DuelGame
from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.options import advise
from envfleet.registry import GAMES, RANDOM, resolve
from envfleet.sources import find_callable, is_kernel_class


class Game:
    """Game for two players; this class adapts any parallel PettingZoo game with two agents.

    Sub-environments observe `(2, …)` and take actions `(2, …)`, a row per player, each from that player's view. The
    reward is that of player one; infos have `reward_two` and, on the last step, `winner`: 1 if player one won, -1 if
    player two did, 0 for a draw. A game with scripts, modes or ratings is a subclass, which configurations and commands
    name as `"module:Class"`; those that come with envfleet have names in `registry.GAMES`.

    Args:
        name: Display name.
        make_env: Callable that makes the `ParallelEnv`, with the keyword `render_mode` if the game is rendered.

    Attributes:
        name: Display name, also used in configurations.
        sides: Names of the sides of player one and two.
        observation_space: Observation space of one player.
        action_space: Action space of one player.
        modes: Names of the modes; the info `mode` is an index of this tuple.
        scripts: Scripted players of the environment, the weakest first: values of its settings `player_one` and
            `player_two`, which are 0 if actions come from outside.
        anchors: Fixed ratings by name of the player.
        files: Included trained players, by name.
        terms: Shaping terms by their key in configurations: the name in the infos (player two's with the suffix
            `_two`), initial and final default weights, and a description.
        defaults: Default settings by name.
        fixed: Settings that must be equal in all phases of a run, since observations or actions depend on them.
    """

    name: str
    sides: tuple[str, str]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    modes: tuple[str, ...] = ()
    scripts: ClassVar[Mapping[str, int]] = {}
    anchors: ClassVar[Mapping[str, float]] = {RANDOM: 25.0}
    files: ClassVar[Mapping[str, Path]] = {}
    terms: ClassVar[Mapping[str, tuple[str, float, float, str]]] = {}
    defaults: ClassVar[Mapping[str, Any]] = {}
    fixed: tuple[str, ...] = ()

    def __init__(self, name: str, make_env: Any) -> None:
        self.name, self._make_env = name, make_env
        duel = DuelGame(make_env)
        missing = sorted(name for name in SCRIPT_ATTRIBUTES if self.scripts and not duel.has_wrapper_attr(name))
        duel.close()
        if missing:
            raise InvalidArgument(
                f"{name} has scripts, but its environment has no {' and '.join(missing)}: read the "
                "script from these attributes in step(), 0 if the action comes from outside"
            )
        self.sides = (duel.agent_names[0], duel.agent_names[1])
        self.observation_space, self.action_space = duel.agent_observation_space, duel.agent_action_space

    @property
    def engines(self) -> Mapping[str, Any]:
        """Return the sources for `envfleet.make` by name of the engine; the first is the default."""
        return {"python": functools.partial(DuelGame, self._make_env)}

    @property
    def strongest(self) -> str:
        """Return the strongest scripted player, or the random one."""
        return [RANDOM, *self.scripts][-1]

    def source(self, engine: str | None = None) -> Any:
        """Return the source for `envfleet.make` of an engine, by default the first.

        Raises:
            InvalidArgument: The engine does not exist.
        """
        if engine is None:
            return next(iter(self.engines.values()))
        if engine not in self.engines:
            raise InvalidArgument(f"engine={engine!r}: pass one of {', '.join(map(repr, self.engines))}")
        return self.engines[engine]

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check the `environment.kwargs` of a configuration.

        Raises:
            InvalidArgument: A key is unknown or has an invalid value.
        """

    def settings(self, mode_shares: Mapping[str, float], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return attributes to set on sub-environments for a phase.

        Args:
            mode_shares: Probability of each mode.
            settings: The configuration's `environment.kwargs`.
        """
        return {}

    def arguments(self, mode: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of sub-environments for a match.

        Args:
            mode: One of `modes`.
            settings: The configuration's `environment.kwargs`.
        """
        return {}

    def deal(self, scripts: tuple[int, int], starter: int) -> dict[str, Any] | None:
        """Return the reset options for a game of a match.

        Args:
            scripts: Scripts of player one and two: values as in `scripts`, 0 if actions come from outside.
            starter: Player with the first move, 1 or 2.
        """
        return {"player_one": scripts[0], "player_two": scripts[1]} if self.scripts else None

    def default_side(self, mode: str) -> str:
        """Return the default side of a player: one side, or `"both"` to alternate."""
        return "both"

    def action_table(self, fineness: int, combined: bool, settings: Mapping[str, Any]) -> NDArray[Any] | None:
        """Return actions of one player to choose from, `(K, …)`; `None` if the game has no such table.

        Args:
            fineness: Levels in each direction of an axis.
            combined: True if an action may move several axes.
            settings: The configuration's `environment.kwargs`.
        """
        return None

    def open(self, mode: str, settings: Mapping[str, Any], render_mode: str | None = None) -> gym.Env[Any, Any]:
        """Make an environment for rendering.

        Args:
            mode: One of `modes`.
            settings: The configuration's `environment.kwargs`.
            render_mode: `"rgb_array"`, `"human"` or `None`.
        """
        return DuelGame(
            self._make_env if render_mode is None else functools.partial(self._make_env, render_mode=render_mode)
        )

    def person(self, env: gym.Env[Any, Any], player: int) -> Any:
        """Return a human player; each step calls its `act(observation)`.

        Args:
            env: Environment returned by `open`; the human plays in its window.
            player: 0 for player one, 1 for player two.
        """
        from envfleet.envs.keyboard import Keyboard

        return Keyboard(env, self.name)


def find_game(source: str, kwargs: Mapping[str, Any] | None = None) -> Game | None:
    """Return the two-player game of a source; `None` if it is a single-player environment.

    A callable that is neither a Gymnasium class nor a kernel is called to inspect its result.

    Args:
        source: A name in `registry.GAMES`, a Gymnasium id, `"module:callable"`, or `"module:Class"` of a `Game`.
        kwargs: Keyword arguments of the callable.

    Raises:
        InvalidArgument: The module cannot be imported; the callable raises, does not accept these arguments or does not
            return an environment; or its game is not for two players.
        EnvfleetError: Raised by the callable.
    """
    if source in GAMES:
        return known_game(source)
    make_env = find_callable(source)
    if make_env is None or is_kernel_class(make_env) or (isinstance(make_env, type) and issubclass(make_env, gym.Env)):
        return None
    bound = functools.partial(make_env, **(kwargs or {}))
    try:
        inspect.signature(bound).bind()
    except TypeError:  # it takes a seed, as makers of Gymnasium environments may
        return None
    except ValueError as error:
        parameters = inspect.signature(make_env).parameters
        wrong = ", ".join(name for name in kwargs or {} if name not in parameters)
        raise InvalidArgument(
            f"{source!r} takes no argument {wrong!r}, it takes {', '.join(parameters) or 'none'}: "
            f"{advise(wrong, parameters)}"
        ) from error
    try:
        probe: Any = bound()
    except EnvfleetError:  # it keeps its type and code
        raise
    except Exception as error:
        raise InvalidArgument(f"{source!r} raised {type(error).__name__}: {error}: fix it, or its kwargs") from error
    if isinstance(probe, Game):
        return probe
    if not hasattr(probe, "close"):
        raise InvalidArgument(
            f"{source!r} returned {probe!r}, expected a gymnasium.Env or a PettingZoo ParallelEnv: return one"
        )
    probe.close()
    return Game(source, bound) if hasattr(probe, "possible_agents") else None


Spaces = tuple[Any, Any]
"""Observation and action space of one player; any other value than a space matches all spaces."""

_OTHER_PLAYER = (
    "pass one that was trained there, or pass the environment of this one (`env=`, `match=`, on the command line --env)"
)


def spaces_of(player: Any) -> Spaces:
    """Return the spaces of a player, as far as they are known."""
    return getattr(player, "observation_space", None), getattr(player, "action_space", None)


def check_spaces(made_for: Spaces, name: str, spaces: Spaces, place: str, advice: str = _OTHER_PLAYER) -> None:
    """Check that a player's spaces match those of the game; only bounds of observations may differ.

    Args:
        made_for: Spaces of the player.
        name: Description of the player, for the message.
        spaces: Spaces of one sub-environment, or of one player of a game.
        place: Side of these players.
        advice: Advice of the message.

    Raises:
        InvalidArgument: The spaces differ.
    """
    forms = [(_form_of(seen), _form_of(done, has_bounds=True)) for seen, done in (made_for, spaces)]
    for space, one, other in zip(made_for, *forms, strict=True):
        if isinstance(space, gym.Space) and one != other:
            raise InvalidArgument(
                f"{name} has observations {made_for[0]} and actions {made_for[1]}, {place} has observations "
                f"{spaces[0]} and actions {spaces[1]}, expected the same: {advice}"
            )


def _form_of(space: Any, *, has_bounds: bool = False) -> Any:
    """Return the parts of a space on which an agent depends."""
    if isinstance(space, gym.spaces.Box) and not has_bounds:
        return space.shape, space.dtype == np.uint8
    if isinstance(space, gym.spaces.Discrete):
        return space.n, space.start
    if isinstance(space, gym.spaces.Dict):
        return [(key, _form_of(part)) for key, part in space.spaces.items()]
    return [_form_of(part) for part in space.spaces] if isinstance(space, gym.spaces.Tuple) else space


@functools.cache
def known_game(name: str) -> Game:
    """Return the game of this name in `registry.GAMES`."""
    game: Game = resolve(GAMES[name])()
    return game


def known_games() -> list[Game]:
    """Return all games in `registry.GAMES`."""
    return [known_game(name) for name in GAMES]
