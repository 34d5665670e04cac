"""Who can sit at the table: scripted players by name, agents, checkpoints."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import load_agent
from envfleet.agents.randomness import Random
from envfleet.envs.games import RANDOM, Game, check_spaces, known_game, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.registry import find_own
from envfleet.training.phases import DEFAULT_GAME, SCRIPT


class Policy(Protocol):
    """Whoever chooses actions for many observations at once: every agent does."""

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Choose an action for every observation, `(N, …)`."""
        ...


Player = str | Path | Policy
"""A name that the game knows, `"random"`, `"my_package:MyOpponent"`, the path of a checkpoint or of a run, or anything
with `act_batch`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Seated:
    """A player that is ready to play.

    Attributes:
        name: To show.
        script: Number of a scripted player, which the environment plays; 0: `policy` does.
        policy: `None` for scripted players.
    """

    name: str
    script: int = 0
    policy: Policy | None = None


def idle_actions(space: spaces.Space[Any], num_rows: int) -> NDArray[Any]:
    """Return actions of nobody, `(num_rows, …)`: zeros, or the first of each choice."""
    shape = (num_rows, *(space.shape or ()))
    return np.full(shape, getattr(space, "start", 0), space.dtype)


class RandomPlayer:
    """Draws every action from the action space, also where others do not explore.

    Args:
        observation_space: Of one player.
        action_space: Of one player.
        rng: Draws.
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


class OwnPlayer:
    """A player of a class, with a generator of its own.

    A player that has a state of its own for each episode has a method `begin_episodes(env_indices)`, which is called
    with the numbers of its episodes that begin, int64 `(M,)`; its `act_batch` is then also passed `env_indices=`, the
    number of each row. When a run is resumed, running episodes begin for it anew.

    Args:
        kind: `"random"`, or `"module:Name"` of what is called with the spaces of observations and actions of one
            player, a NumPy generator for all draws, and the keywords; what it makes has `act_batch(observations,
            deterministic)`. What it does may depend on nothing else, or a run that is resumed goes on otherwise.
        game: That it plays.
        seed: Of the generator.
        **kwargs: For the class.

    Attributes:
        random: The generator, with its state.

    Raises:
        InvalidArgument: There is no such class, it does not take these arguments, or what it makes has no `act_batch`.
    """

    def __init__(self, kind: str, game: Game, seed: int, **kwargs: Any) -> None:
        self.random = Random(np.random.SeedSequence(seed))
        self._name, self._game = kind, game
        make: Any = RandomPlayer if kind == RANDOM else find_own(kind, "opponent")
        try:
            self._player = make(game.observation_space, game.action_space, self.random.numpy, **kwargs)
        except TypeError as error:
            raise InvalidArgument(
                f"{self._name} cannot be made ({error}): let it take (observation_space, action_space, rng) and its "
                "kwargs"
            ) from error
        _check_acts(self._player)
        self._has_episodes = callable(getattr(self._player, "begin_episodes", None))

    def begin_episodes(self, env_indices: NDArray[np.int64]) -> None:
        """Tell the player, if it wants to know, that these of its episodes begin."""
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
        InvalidArgument: There is not one of the game's for every row.
    """
    space: Any = game.action_space
    found, expected = np.asarray(actions), (rows, *space.shape)
    if found.shape != expected or (space.dtype.kind in "iu" and found.dtype.kind not in "iub"):
        raise InvalidArgument(
            f"{name} returned actions of shape {found.shape} and {found.dtype}, expected {expected}: return one per "
            f"row, in {space}"
        )
    return found


def seat_player(
    player: Player | Seated, name: str | None = None, *, game: Game | None = None, seed: int = 0, trust: bool = False
) -> Seated:
    """Make a player ready to play.

    Args:
        player: Who; the folder of a run stands for its best checkpoint, as in `load_agent`. One that is ready stays as
            it is.
        name: To show; by default the known name, `name_of` a file or folder, or the kind of the agent.
        game: That it is to play; by default the first of `registry.GAMES`.
        seed: Of its draws, if it is random or of a class of the user's own.
        trust: As in `load_agent`, for a file.

    Raises:
        InvalidArgument: There is no such player, or it plays something else.
    """
    if isinstance(player, Seated):
        return player
    game = game or known_game(DEFAULT_GAME)
    player = getattr(player, "script", player)  # one that the environment plays better: it draws from the game's seed
    if isinstance(player, str) and (script := player.removeprefix(SCRIPT)) in game.scripts:
        return Seated(name or script, game.scripts[script])
    if player == RANDOM or (isinstance(player, str) and ":" in player and not Path(player).exists()):
        return Seated(name or player, policy=OwnPlayer(player, game, seed))
    if isinstance(player, (str, Path)):
        path = game.files.get(str(player), Path(player))
        if not path.exists():
            known = ", ".join(map(repr, (*game.scripts, *game.files, RANDOM)))
            raise InvalidArgument(
                f"there is no player {str(path)!r}, expected {known}, the file of a checkpoint or the folder of a run: "
                "check the path"
            )
        agent: Any = load_agent(path, num_envs=1, trust=trust)
        shown = name or name_of(player)
    else:
        agent, shown = player, name or str(getattr(player, "name", type(player).__name__))
    _check_acts(agent)
    check_spaces(spaces_of(agent), shown, spaces_of(game), f"a player of {game.name}")
    return Seated(shown, policy=cast(Policy, agent))


def name_of(player: str | Path) -> str:
    """Return what a player in a file is called: after the folder of its run, or the file without its suffix."""
    path = Path(player)
    return path.resolve().name if path.is_dir() else path.stem


def _check_acts(player: Any) -> None:
    if not callable(getattr(player, "act_batch", None)):
        raise InvalidArgument(
            f"a player of type {type(player).__name__} has no act_batch(observations, deterministic): pass an agent, "
            "the path of a checkpoint, or the name of a player"
        )
