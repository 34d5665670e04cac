"""Many games between two players, each with its own seed; `envfleet.evaluation.episodes` says how."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.games import Game, check_spaces, known_game, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.evaluation.episodes import BlockPolicy, EpisodeRunner, EpisodeSchedule
from envfleet.fleet.checks import check_choice, check_whole
from envfleet.fleet.evaluating import Progress
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.nested import map_arrays
from envfleet.sources import names_kernel
from envfleet.training.games.players import (
    LoadedPlayer,
    Player,
    check_actions,
    idle_actions,
    load_player,
)
from envfleet.training.phases import DEFAULT_GAME

_ONE = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchConfig:
    """Settings of a match between two players.

    Attributes:
        game: Game to play.
        engine: Engine of the game; `None` for the first.
        mode: Mode of the game; `""` for the first.
        settings: Settings of the game, as in `environment.kwargs` of a configuration.
        num_envs: Maximum number of simultaneous games.
        options: Options of `envfleet.make`, for games that are not compiled.
    """

    game: Game = dataclasses.field(default_factory=lambda: known_game(DEFAULT_GAME))
    engine: str | None = None
    mode: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_envs: int = 1024
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.game.source(self.engine)
        if self.game.modes:
            object.__setattr__(self, "mode", self.mode or self.game.modes[0])
            check_choice("mode", self.mode, self.game.modes)
        elif self.mode:
            raise InvalidArgument(f"mode={self.mode!r}, but {self.game.name!r} has no modes: leave it out")

    def open(self, num_envs: int) -> Fleet:
        """Make a fleet of the game."""
        arguments = self.game.arguments(self.mode, self.settings)
        return open_fleet(self.game.source(self.engine), num_envs, self.options, **arguments)


def open_fleet(env: Any, num_envs: int, options: Mapping[str, Any] | None = None, **env_kwargs: Any) -> Fleet:
    """Make a fleet for whole games: a kernel if possible, else by `options`, which default to this process."""
    if names_kernel(env):
        return envfleet.make(env, num_envs, backend="kernel", **env_kwargs)
    fleet_options = {"backend": "serial", "num_envs": num_envs, "workers": 1, **(options or {})}
    limits = {name: min(fleet_options[name], num_envs) for name in ("num_envs", "workers")}
    return envfleet.make(env, **{**fleet_options, **limits}, **env_kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Games:
    """G games and their results, as columns, by number of the game.

    Attributes:
        seeds: Seeds, uint64 `(G,)`.
        is_left: True if the player has the first of the game's two sides, bool `(G,)`.
        is_starting: True if the player has the first move, in games that assign it, bool `(G,)`.
        outcomes: 1 where the player won, -1 where the opponent won, 0 for a draw, int64 `(G,)`.
        returns: Sum of the player's rewards, float64 `(G,)`.
        lengths: Steps, int64 `(G,)`.
    """

    seeds: NDArray[np.uint64]
    is_left: NDArray[np.bool_]
    is_starting: NDArray[np.bool_]
    outcomes: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.seeds)


def play(
    player: Player | LoadedPlayer,
    opponent: Player | LoadedPlayer,
    games: int,
    *,
    seed: int = 0,
    side: str = "both",
    match: MatchConfig | None = None,
    fleet: Fleet | None = None,
    progress: Progress | None = None,
) -> Games:
    """Play games between two players, without exploration.

    Args:
        player: Name of a player of the game, `"random"`, `"my_package:MyOpponent"`, path of a checkpoint, or any object
            with `act_batch`.
        opponent: Opponent, in the same form.
        games: Number of games.
        seed: Seed that the seeds of all games derive from; the first ones are the same for any number of games.
        side: Side of the player; with `"both"` even games use the first, odd ones the second. Of four consecutive games
            each player starts two.
        match: Game, engine and number of simultaneous games.
        fleet: Fleet from `match.open`, which stays open; by default one is opened and closed.
        progress: Called after games end with a text and the share of finished games.

    Raises:
        InvalidArgument: Unknown player, side or engine.
    """
    match = match or MatchConfig()
    ready = [load_player(one, game=match.game, seed=2 * seed + k) for k, one in enumerate((player, opponent))]
    plan = plan_games(match.game, games, seed, side)
    with contextlib.nullcontext(fleet) if fleet else match.open(min(games, match.num_envs)) as opened:
        num_ended = 0
        for ended in MatchRunner(opened, plan, ready, match.game).play():
            num_ended += len(ended)
            if progress is not None and len(ended):
                progress(f"{ready[0].name} against {ready[1].name}", num_ended / games)
    return plan


def plan_games(game: Game, games: int, seed: int = 0, side: str = "both") -> Games:
    """Return games with seeds, sides and starters but without results; arguments as in `play`."""
    check_choice("side", side, (*game.sides, "both"))
    check_whole("games", games, 1)
    numbers = np.arange(games)
    seeds = np.random.SeedSequence(seed).generate_state(games, np.uint64) >> np.uint64(1)
    is_left = numbers % 2 == 0 if side == "both" else np.full(games, side == game.sides[0])
    return _planned(seeds, is_left, numbers // 2 % 2 == 0)


def plan_episodes(episodes: int, seed: int = 0) -> Games:
    """Return single-player episodes with seeds but without results."""
    check_whole("episodes", episodes, 1)
    every = np.ones(episodes, np.bool_)
    return _planned(np.random.SeedSequence(seed).generate_state(episodes).astype(np.uint64), every, every)


def _planned(seeds: NDArray[np.uint64], is_left: NDArray[np.bool_], is_starting: NDArray[np.bool_]) -> Games:
    outcomes, lengths = np.zeros((2, len(seeds)), np.int64)
    return Games(seeds, is_left, is_starting, outcomes, np.zeros(len(seeds)), lengths)


class MatchRunner(EpisodeRunner):
    """Runner of games; writes the results into `games`.

    Args:
        fleet: Fleet that the games are played in, one per sub-environment at a time.
        games: Games without results.
        players: Player and opponent; the player alone in single-player environments.
        game: Two-player game; `None` for single-player environments.

    Attributes:
        returns: Returns of the player on the first side, float64 `(N,)`.
    """

    repeats_lost = False  # they are drawn

    def __init__(self, fleet: Fleet, games: Games, players: Sequence[LoadedPlayer], game: Game | None) -> None:
        if game is None:
            env_spaces = fleet.single_observation_space, fleet.single_action_space
            check_spaces(spaces_of(players[0].policy), "the agent", env_spaces, "the environment")
        super().__init__(fleet, games.seeds, EpisodeSchedule(range(len(games)), fleet.num_envs))
        self._games, self._game = games, game
        self._scripts = [player.script for player in players]
        acting = {number: player.policy for number, player in enumerate(players) if player.policy is not None}
        self._policies = {number: BlockPolicy(policy, self.schedule) for number, policy in acting.items()}
        self._sides = np.zeros(fleet.num_envs, np.int64)  # 0 where the player is player one, 1 where the opponent is
        self._returns_two = np.zeros(fleet.num_envs)

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Assign sides, and notify players with state per episode."""
        for policy in self._policies.values():
            policy.begin(rows)
        self._sides[rows] = ~self._games.is_left[self.schedule.episodes[rows]]
        self._returns_two[rows] = 0

    def options(self, rows: NDArray[np.int64]) -> list[Mapping[str, Any] | None]:
        """Return the reset options that assign sides and the first move."""
        if self._game is None:
            return [None] * len(rows)
        numbers, deals = self.schedule.episodes[rows], dict[tuple[bool, bool], Mapping[str, Any] | None]()
        row_options: list[Mapping[str, Any] | None] = []
        for deal in zip(self._games.is_left[numbers].tolist(), self._games.is_starting[numbers].tolist(), strict=True):
            if deal not in deals:
                is_left, is_starting = deal
                players: Any = self._scripts if is_left else self._scripts[::-1]
                deals[deal] = self._game.deal(players, 1 if is_left == is_starting else 2)
            row_options.append(deals[deal])
        return row_options

    def act(self, observations: Any, rows: NDArray[np.int64]) -> Any:
        """Return the actions of the players on both sides."""
        if self._game is None:
            return self._policies[0].act(observations, rows)
        actions = idle_actions(self.fleet.single_action_space, self.fleet.num_envs)
        for number, policy in self._policies.items():
            side = self._sides ^ number
            seen = map_arrays(observations, functools.partial(_take, self._every, side))
            chosen = check_actions(policy.act(seen, rows), len(rows), self._game, "a player")
            actions[rows, side[rows]] = chosen
        return actions[rows]

    def on_step(self, rewards: NDArray[np.float64], infos: dict[str, Any], rows: NDArray[np.int64]) -> None:
        """Add the rewards of the second side."""
        if self._game is not None:
            self._returns_two[rows] += infos.get("reward_two", 0.0)  # absent if all sub-environments were rebuilt

    def note(
        self, rows: NDArray[np.int64], truncated: NDArray[np.bool_], find: Callable[[str], NDArray[Any] | None]
    ) -> None:
        """Write the results of games."""
        numbers, is_first = self.schedule.episodes[rows], self._sides[rows] == _ONE
        winners = find("winner")
        if winners is not None:
            self._games.outcomes[numbers] = np.where(is_first, winners, -winners)
        self._games.returns[numbers] = np.where(is_first, self.returns[rows], self._returns_two[rows])
        self._games.lengths[numbers] = self.lengths[rows]


def _take(rows: NDArray[np.int64], side: NDArray[np.int64], array: NDArray[Any]) -> NDArray[Any]:
    return array[rows, side]
