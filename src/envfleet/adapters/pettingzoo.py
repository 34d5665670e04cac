"""PettingZoo's parallel environments as fleets whose rows are agents. PettingZoo itself is not imported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envfleet.adapters.pettingzoo_game import ParallelGame
from envfleet.adapters.sb3_infos import spread_infos
from envfleet.errors import InvalidArgument
from envfleet.fleet.episodes import EpisodeStats
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.infos import scatter_infos, take_infos
from envfleet.fleet.layout import SpaceLayout
from envfleet.make import make

_OWN = ("reward", "terminated", "truncated", "is_active")


class AgentFleet(VectorEnv[Any, Any, Any]):
    """N games of A agents as a vector environment of N * A rows: row `g * A + a` is agent `a` of game `g`.

    To a learner every row is a sub-environment with its own observations, rewards and flags. A game is reset when all
    of its agents have ended, in the way of the fleet's autoreset mode. Agents that end before the others wait: their
    rows are zeros and `infos["is_active"]` is False there. Such rows, and in `NEXT_STEP` those of a reset, are not
    transitions.

    Args:
        games: Fleet of `ParallelGame`, owned by this object: `close` closes it.
        record_episodes: True if `infos["episode"]` has return and length of each row's episode when it ends.

    Attributes:
        games: The fleet, for operations on whole games: `call`, `set_attr`, `get_state`, `stats()`, ….
        num_games: N.
        agent_names: Agents of one game, in order.

    Raises:
        InvalidArgument: The spaces of the agents vary in shape.
    """

    def __init__(self, games: Fleet, *, record_episodes: bool = False) -> None:
        self.games, self._records_episodes = games, record_episodes
        self.num_games = games.num_envs
        self.agent_names: tuple[str, ...] = games.get_attr("agent_names")[0]
        self.num_envs = self.num_games * len(self.agent_names)
        self.single_observation_space = games.get_attr("agent_observation_space")[0]
        self.single_action_space = games.get_attr("agent_action_space")[0]
        self._observations = SpaceLayout(self.single_observation_space)
        self._actions = SpaceLayout(self.single_action_space)
        for layout in (self._observations, self._actions):
            if layout.num_objects:
                raise InvalidArgument(
                    f"an agent's space is {layout.space}, expected Box, Discrete, MultiDiscrete or MultiBinary, or a "
                    "Dict or Tuple of them: agents are rows of arrays"
                )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.autoreset_mode, self.metadata, self.render_mode = games.autoreset_mode, games.metadata, games.render_mode
        # A row that ended waits for the others of its game without steps, so its next episode may begin at once.
        self._episodes = EpisodeStats(self.num_envs, AutoresetMode.SAME_STEP)

    @classmethod
    def make(
        cls, make_env: Callable[[], Any], num_games: int, *, record_episodes: bool = False, **make_kwargs: Any
    ) -> Self:
        """Make games and adapt them.

        Args:
            make_env: Function that makes a `ParallelEnv`; called in the process that runs the game.
            num_games: Number of games.
            record_episodes: Argument of the class.
            **make_kwargs: Options of `envfleet.make`: `backend`, `workers`, `autoreset_mode`, ….

        Raises:
            InvalidArgument: An option is invalid, or the spaces of the agents vary in shape.
            SubEnvError: `make_env` raised.
        """
        games = make(functools.partial(ParallelGame, make_env), num_games, **make_kwargs)
        try:
            return cls(games, record_episodes=record_episodes)
        except BaseException:
            games.close(terminate=True)
            raise

    # ------------------------------------------------------------------ reset and step

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new games.

        Args:
            seed: Game `g` gets `seed + g`; or one for each game, or for each row, of which a game gets its first.
            options: Options of the games. `"reset_mask"`, bool `(num_envs,)`, selects rows; whole games only.

        Returns:
            Observations and infos of all rows.

        Raises:
            InvalidArgument: The mask differs between the agents of a game.
        """
        if isinstance(seed, Sequence) and len(seed) == self.num_envs:
            seed = seed[:: len(self.agent_names)]
        mask = np.ones(self.num_envs, np.bool_)
        if options is not None and "reset_mask" in options:
            mask = np.asarray(options["reset_mask"])
            if mask.shape != (self.num_envs,):
                raise InvalidArgument(
                    f"reset_mask has shape {mask.shape}, expected {self.num_envs} rows: {self.num_games} games × "
                    f"{len(self.agent_names)} agents"
                )
            by_game = mask.reshape(self.num_games, -1)
            if (by_game.any(axis=1) != by_game.all(axis=1)).any():
                raise InvalidArgument(
                    "reset_mask differs between the agents of a game: the rows of a game are reset together"
                )
            options = {**options, "reset_mask": by_game[:, 0]}
        observations, infos = self.games.reset(seed=seed, options=options)
        self._episodes.begin(np.flatnonzero(mask).tolist())
        return self._by_row(observations), self._spread(infos)

    def step(self, actions: Any) -> tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """Step all games.

        Args:
            actions: One action per row, in the form of `action_space`; those of waiting rows are checked, then
                ignored.

        Returns:
            Observations, rewards (float64), terminated, truncated, each with a row per agent, and infos.

        Raises:
            InvalidArgument: The number of actions is not that of rows.
            SubEnvError: A game raised.
        """
        observations, _, _, is_late, infos = self.games.step(self._to_games(actions))
        rewards, _ = self._read(infos, "reward", np.float64)
        terminated, has_flags = self._read(infos, "terminated", np.bool_)
        truncated, _ = self._read(infos, "truncated", np.bool_)
        is_active, _ = self._read(infos, "is_active", np.bool_)
        lost = np.repeat(is_late, len(self.agent_names)) & ~has_flags  # the game failed and was rebuilt
        truncated |= lost
        spread = {**self._spread(infos), "is_active": is_active | lost, "_is_active": np.ones(self.num_envs, np.bool_)}
        self._count(spread, rewards, terminated | truncated)
        return self._by_row(observations), rewards, terminated, truncated, spread

    def _count(self, infos: dict[str, Any], rewards: NDArray[Any], ended: NDArray[Any]) -> None:
        """Add a step of the active rows to their episodes, and report those that ended."""
        rows = np.flatnonzero(infos["is_active"])
        flags = np.array((ended[rows], np.zeros(len(rows), np.bool_)))
        if self._episodes.on_step(rewards[rows], flags, rows) is not None and self._records_episodes:
            episodes = self._episodes.ended_episodes()
            infos.update(episodes._replace(rows=rows[episodes.rows]).entries(self.num_envs))

    # ------------------------------------------------------------------ games and rows

    def _to_games(self, actions: Any) -> Any:
        """Reshape every array: (N * A, …) -> (N, A, …)."""
        leaves, _ = self._actions.unbatch(actions, self.num_envs)
        shape = self.num_games, len(self.agent_names)
        return self._actions.batch([leaf.reshape(*shape, *leaf.shape[1:]) for leaf in leaves])

    def _by_row(self, observations: Any) -> Any:
        """Reshape every array: (N, A, …) -> (N * A, …)."""
        leaves = self._observations.apart(observations)
        return self._observations.batch([leaf.reshape(self.num_envs, *leaf.shape[2:]) for leaf in leaves])

    def _read(
        self, infos: Mapping[str, Any], name: str, dtype: type[np.generic]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return a number of every agent by row, and the mask of the rows that have it.

        For games that ended and were reset in the same step it is the number at the end.
        """
        shape = self.num_games, len(self.agent_names)
        values, shown = np.zeros(shape, dtype), np.zeros(shape, np.bool_)
        for source in (infos, infos.get("final_info", {})):
            for place, agent in enumerate(self.agent_names):
                if (key := f"{agent}.{name}") in source:
                    mask = source[f"_{key}"]
                    values[mask, place] = source[key][mask]
                    shown[mask, place] = True
        return values.reshape(self.num_envs), shown.reshape(self.num_envs)

    def _gather(self, infos: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return one of the agents' infos by row, with its mask; as objects if types differ between agents."""
        keys = {place: f"{agent}.{name}" for place, agent in enumerate(self.agent_names) if f"{agent}.{name}" in infos}
        is_dict = all(isinstance(infos[key], Mapping) for key in keys.values())
        parts = []
        for place, key in keys.items():
            column, games = infos[key], np.flatnonzero(infos[f"_{key}"])
            if isinstance(column, Mapping) and not is_dict:
                column = np.array(spread_infos(column, self.num_games), object)
            own = take_infos({name: column, f"_{name}": infos[f"_{key}"]}, games)
            parts.append((own, games * len(self.agent_names) + place))
        return scatter_infos(parts, self.num_envs)

    def _spread(self, infos: Mapping[str, Any]) -> dict[str, Any]:
        """Turn infos of games into infos of rows."""
        rows: dict[str, Any] = {}
        prefixes = tuple(f"{agent}." for agent in self.agent_names)
        for key in infos:
            bare = key.removeprefix("_")
            prefix = next((prefix for prefix in prefixes if bare.startswith(prefix)), None)
            if prefix is None:
                rows[key] = self._repeat(key, infos[key])
                continue
            name = bare.removeprefix(prefix)
            if name not in rows and name not in _OWN:
                rows |= self._gather(infos, name)
        return rows

    def _repeat(self, key: str, value: Any) -> Any:
        """Repeat an info of whole games for the rows of each."""
        if key == "final_obs":
            rows = np.full(self.num_envs, None, object)
            for game in np.flatnonzero([one is not None for one in value]):
                first = game * len(self.agent_names)
                for place, one in enumerate(iterate(self.games.single_observation_space, value[game])):
                    rows[first + place] = one
            return rows
        if isinstance(value, Mapping):
            return self._spread(value)
        return np.repeat(value, len(self.agent_names), axis=0)

    # ------------------------------------------------------------------ the rest

    def render(self) -> tuple[Any, ...] | None:
        """Render every game; one frame each."""
        return self.games.render()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every game, or get an attribute; one result per game."""
        return self.games.call(name, *args, **kwargs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every game."""
        return self.games.get_attr(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every game: one value for all, or a list of one per game."""
        self.games.set_attr(name, values)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        self.games.close(**kwargs)
