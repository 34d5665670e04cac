"""Players of a game: scripted players by name, agents, checkpoints, and the user's own classes."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import load_agent
from envfleet.agents.randomness import Random
from envfleet.envs.games import Game, check_spaces, known_game, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import Policy
from envfleet.registry import RANDOM, find_own
from envfleet.training.phases import DEFAULT_GAME, SCRIPT

Player = str | Path | Policy
"""Name of a player of the game, `"random"`, `"my_package:MyOpponent"`, path of a checkpoint or of a run, or any object
with `act_batch`."""


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedPlayer:
    """Loaded player.

    Attributes:
        name: Display name.
        script: Number of a scripted player inside the environment; 0 if `policy` acts.
        policy: Policy; `None` for scripted players.
    """

    name: str
    script: int = 0
    policy: Policy | None = None


def idle_actions(space: spaces.Space[Any], num_rows: int) -> NDArray[Any]:
    """Return actions of an idle player, `(num_rows, …)`: zeros, or the first of each choice."""
    shape = (num_rows, *(space.shape or ()))
    return np.full(shape, getattr(space, "start", 0), space.dtype)


class RandomPlayer:
    """Player that samples each action from the action space, even when asked to be deterministic.

    Args:
        observation_space: Observation space of one player.
        action_space: Action space of one player.
        rng: Generator of all draws.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], rng: np.random.Generator
    ) -> None:
        self._space, self._rng = copy.deepcopy(action_space), rng

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Draw actions, `(N, …)`."""
        return np.array([self._draw(seed) for seed in self._rng.integers(2**32, size=len(observations)).tolist()])

    def _draw(self, seed: int) -> Any:
        self._space.seed(seed)
        return self._space.sample()


class UserPlayer:
    """Player of the user's own class, with its own random generator.

    A player with state per episode has a method `begin_episodes(env_indices)`, which receives the indices of new
    episodes, int64 `(M,)`; its `act_batch` then also receives `env_indices=`, the index of each row. When a run is
    resumed, running episodes begin again for the player.

    Args:
        kind: `"random"`, or `"module:Name"` of a callable with the arguments `(observation_space, action_space, rng,
            **kwargs)`, which returns an object with `act_batch(observations, deterministic)`. Its actions may depend on
            nothing else, or a resumed run differs.
        game: Game to play.
        seed: Seed of the generator.
        **kwargs: Keyword arguments of the callable.

    Attributes:
        random: The generator and its state.

    Raises:
        InvalidArgument: Unknown class, arguments that it does not accept, or an object without `act_batch`.
    """

    def __init__(self, kind: str, game: Game, seed: int, **kwargs: Any) -> None:
        self.random = Random(np.random.SeedSequence(seed))
        self._name, self._game = kind, game
        make: Any = RandomPlayer if kind == RANDOM else find_own(kind, "opponent")
        try:
            self._player = make(game.observation_space, game.action_space, self.random.numpy, **kwargs)
        except TypeError as error:
            raise InvalidArgument(
                f"{self._name} cannot be constructed ({error}): accept (observation_space, action_space, rng) and the "
                "keyword arguments"
            ) from error
        _check_acts(self._player)
        self._has_episodes = callable(getattr(self._player, "begin_episodes", None))

    def begin_episodes(self, env_indices: NDArray[np.int64]) -> None:
        """Notify the player that these episodes begin, if it has a method for it."""
        if self._has_episodes and len(env_indices):
            self._player.begin_episodes(env_indices)

    def act_batch(
        self, observations: NDArray[Any], deterministic: bool = False, *, env_indices: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Choose actions, `(N, …)`."""
        rows = np.arange(len(observations)) if env_indices is None else env_indices
        more = {"env_indices": rows} if self._has_episodes else {}
        actions = self._player.act_batch(observations, deterministic, **more)
        return check_actions(actions, len(observations), self._game, self._name)


def check_actions(actions: Any, rows: int, game: Game, name: str) -> NDArray[Any]:
    """Return a player's actions as an array.

    Raises:
        InvalidArgument: The shape or dtype does not fit the game's action space.
    """
    space: Any = game.action_space
    array, expected = np.asarray(actions), (rows, *space.shape)
    if array.shape != expected or (space.dtype.kind in "iu" and array.dtype.kind not in "iub"):
        raise InvalidArgument(
            f"{name} returned actions of shape {array.shape} and {array.dtype}, expected {expected}: return one per "
            f"row, in {space}"
        )
    return array


def load_player(
    player: Player | LoadedPlayer,
    name: str | None = None,
    *,
    game: Game | None = None,
    seed: int = 0,
    trust: bool = False,
) -> LoadedPlayer:
    """Load a player.

    Args:
        player: Player; the folder of a run means its best checkpoint, as in `load_agent`. A loaded player is returned
            unchanged.
        name: Display name; by default the name of the player, `name_of` a file or folder, or the agent's algorithm.
        game: Game to play; by default the first of `registry.GAMES`.
        seed: Seed of the draws of a random player or of the user's own class.
        trust: Argument of `load_agent`, for a file.

    Raises:
        InvalidArgument: Unknown player, or a player of another game.
    """
    if isinstance(player, LoadedPlayer):
        return player
    game = game or known_game(DEFAULT_GAME)
    player = getattr(player, "script", player)  # the environment's own version draws from the game's seed
    if isinstance(player, str) and (script := player.removeprefix(SCRIPT)) in game.scripts:
        return LoadedPlayer(name or script, game.scripts[script])
    if player == RANDOM or (isinstance(player, str) and ":" in player and not Path(player).exists()):
        return LoadedPlayer(name or player, policy=UserPlayer(player, game, seed))
    if isinstance(player, (str, Path)):
        path = game.files.get(str(player), Path(player))
        if not path.exists():
            known = ", ".join(map(repr, (*game.scripts, *game.files, RANDOM)))
            raise InvalidArgument(
                f"unknown player {str(path)!r}, expected {known}, the file of a checkpoint or the folder of a run: "
                "check the path"
            )
        agent: Any = load_agent(path, num_envs=1, trust=trust)
        shown = name or name_of(player)
    else:
        agent, shown = player, name or str(getattr(player, "name", type(player).__name__))
    _check_acts(agent)
    check_spaces(spaces_of(agent), shown, spaces_of(game), f"a player of {game.name}")
    return LoadedPlayer(shown, policy=cast(Policy, agent))


def name_of(player: str | Path) -> str:
    """Return the name of a player in a file: the folder of its run, or the file name without suffix."""
    path = Path(player)
    return path.resolve().name if path.is_dir() else path.stem


def _check_acts(player: Any) -> None:
    if not callable(getattr(player, "act_batch", None)):
        raise InvalidArgument(
            f"a player of type {type(player).__name__} has no act_batch(observations, deterministic): pass an agent, "
            "the path of a checkpoint, or the name of a player"
        )
