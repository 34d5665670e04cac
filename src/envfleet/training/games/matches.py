"""Many games between two players, each with its own seed.

Problem. The number of simultaneous games must not change their results. A matrix product may round a row differently in
a batch of another size or at another index, and that can change the outcome of a game of a few hundred steps.

Solution. Games are seeded one by one. Policies act on blocks of a fixed number of rows, and the row of a game in its
block depends on the number of the game only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.agents.packing import Packing
from envfleet.envs.games import Game, check_spaces, known_game, spaces_of
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice, check_whole
from envfleet.fleet.fleet import Fleet
from envfleet.sources import names_kernel
from envfleet.training.games.players import (
    LoadedPlayer,
    Player,
    Policy,
    UserPlayer,
    check_actions,
    idle_actions,
    load_player,
)
from envfleet.training.phases import DEFAULT_GAME

_ONE, _TWO = 0, 1
BLOCK_ROWS = 128
MOST_STEPS = 30_000
"""Steps after which a game is cut off, so that every evaluation ends; Atari games have at most 27,000."""


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

    Raises:
        InvalidArgument: Unknown player, side or engine.
    """
    match = match or MatchConfig()
    ready = [load_player(one, game=match.game, seed=2 * seed + k) for k, one in enumerate((player, opponent))]
    plan = plan_games(match.game, games, seed, side)
    with contextlib.nullcontext(fleet) if fleet else match.open(min(games, match.num_envs)) as opened:
        MatchRunner(opened, plan, ready, match.game).play_all()
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


class GameSchedule:
    """Assignment of games to sub-environments.

    Games are assigned in advance instead of to the next free sub-environment, which would bias the results towards
    short games.

    Args:
        num_games: Number of games.
        num_envs: Number of sub-environments; a multiple of 128 distributes the games most evenly.

    Attributes:
        games: Number of the current game, int64 `(num_envs,)`; -1 in idle sub-environments.
        places: Row of the current or last game in batches, int64 `(num_envs,)`.

    Examples:
        >>> schedule = GameSchedule(num_games=5, num_envs=2)
        >>> schedule.assign(np.array([0, 1])), schedule.games
        (array([0, 1]), array([0, 1]))
        >>> schedule.assign(np.array([1])), schedule.games
        (array([1]), array([0, 3]))
    """

    def __init__(self, num_games: int, num_envs: int) -> None:
        self.num_places = -(-num_envs // BLOCK_ROWS) * BLOCK_ROWS
        # Two sub-environments never share a row, so two running games do not either.
        owners = np.arange(num_games) % self.num_places % num_envs
        self._order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[self._order], np.arange(num_envs + 1))
        self._next, self._ends = bounds[:-1].copy(), bounds[1:]
        self.games: NDArray[np.int64] = np.full(num_envs, -1, np.int64)
        self.places = np.arange(num_envs)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sub-environments with a running game."""
        return np.flatnonzero(self.games >= 0)

    def assign(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Assign the next games to sub-environments with finished games.

        Returns:
            Sub-environments that received a game.
        """
        assigned: NDArray[np.int64] = rows[self._next[rows] < self._ends[rows]]
        self.games[rows] = -1
        self.games[assigned] = self._order[self._next[assigned]]
        self._next[assigned] += 1
        self.places[assigned] = self.games[assigned] % self.num_places
        return assigned


class BlockPolicy:
    """Policy that always sees a game in the same row of its batch.

    Args:
        policy: Policy, which acts without exploration.
        schedule: Assignment of games.
        unpacked: Function from packed observations to those of the policy.
    """

    def __init__(self, policy: Policy, schedule: GameSchedule, unpacked: Callable[[NDArray[Any]], Any]) -> None:
        self._policy, self._schedule, self._unpacked = policy, schedule, unpacked
        self._inputs: NDArray[Any] | None = None

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Choose actions for all sub-environments.

        Args:
            observations: `(num_envs, …)`.

        Returns:
            `(num_envs, …)`, including idle sub-environments, which are stepped too.
        """
        schedule, places = self._schedule, self._schedule.places
        if self._inputs is None:
            # Rows without a game need a valid observation of the space; zeros may not be valid.
            self._inputs = np.repeat(observations[:1], schedule.num_places, axis=0)
        self._inputs[places] = observations
        blocks, chosen = self._inputs.reshape(-1, BLOCK_ROWS, *observations.shape[1:]), list[NDArray[Any]]()
        for number, block in enumerate(blocks):
            numbers = np.arange(BLOCK_ROWS) + number * BLOCK_ROWS
            more: Any = {"env_indices": numbers} if isinstance(self._policy, UserPlayer) else {}
            chosen.append(np.asarray(self._policy.act_batch(self._unpacked(block), deterministic=True, **more)))
        return np.concatenate(chosen)[places]

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Notify a player of the user's own class that games begin in these sub-environments."""
        if isinstance(self._policy, UserPlayer):
            self._policy.begin_episodes(self._schedule.places[rows])


class MatchRunner:
    """Runner of games; writes the results into `games`.

    Args:
        fleet: Fleet that the games are played in, one per sub-environment at a time.
        games: Games without results.
        players: Player and opponent; the player alone in single-player environments.
        game: Two-player game; `None` for single-player environments.

    Attributes:
        schedule: Assignment of games.
        returns: Returns of player one and two in the running games, float64 `(N, 2)`.
        lengths: Steps of the running games, int64 `(N,)`.
    """

    def __init__(self, fleet: Fleet, games: Games, players: Sequence[LoadedPlayer], game: Game | None) -> None:
        if game is None:
            env_spaces = fleet.single_observation_space, fleet.single_action_space
            check_spaces(spaces_of(players[0].policy), "the agent", env_spaces, "the environment")
        self._fleet, self._games, self._game = fleet, games, game
        self.schedule = GameSchedule(len(games), fleet.num_envs)
        self._scripts = [player.script for player in players]
        acting = {number: player.policy for number, player in enumerate(players) if player.policy is not None}
        self._packing = packing = Packing(fleet.single_observation_space)
        self._policies = {k: BlockPolicy(policy, self.schedule, packing.unpacked) for k, policy in acting.items()}
        self._every = np.arange(fleet.num_envs)
        self._sides = np.zeros(fleet.num_envs, np.int64)  # 0 where the player is player one, 1 where the opponent is
        self._actions = idle_actions(fleet.single_action_space, fleet.num_envs)
        self.returns = np.zeros((fleet.num_envs, 2))
        self.lengths = np.zeros(fleet.num_envs, np.int64)

    def play_all(self) -> None:
        """Play all games."""
        for _ in self.play():
            pass

    def play(self) -> Iterator[NDArray[np.int64]]:
        """Play all games, step by step.

        Yields:
            Sub-environments with games that ended in this step; empty right after games began.
        """
        observations = self._begin(self._every, self._packing.pack(self._fleet.reset()[0]))
        while len(self.schedule.rows):
            ended = self._every[:0]
            yield ended
            while not len(ended):
                observations, ended = self._step(observations)
                yield ended
            observations = self._begin(ended, observations)

    def _step(self, observations: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        self._act(observations)
        observed, rewards, terminated, truncated, infos = self._fleet.step(self._actions)
        self.returns[:, _ONE] += rewards
        self.lengths += 1
        is_endless = (self.lengths >= MOST_STEPS) & ~(terminated | truncated) & (self.schedule.games >= 0)
        if is_endless.any():
            warnings.warn(
                f"a game had not ended after {MOST_STEPS:,} steps and was cut off: give the environment a time limit",
                RuntimeWarning,
                stacklevel=2,
            )
        ended = np.flatnonzero((terminated | truncated | is_endless) & (self.schedule.games >= 0))
        if self._game is not None:
            self.returns[:, _TWO] += infos.get("reward_two", 0.0)  # absent if all sub-environments were rebuilt
        if len(ended):
            self._note(ended, np.asarray(infos.get("winner", np.zeros(len(rewards))))[ended])
        return self._packing.pack(observed), ended

    def _begin(self, rows: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[Any]:
        """Begin the next games in these sub-environments; return the observations of all sub-environments."""
        rows = self.schedule.assign(rows)
        for policy in self._policies.values():
            policy.begin(rows)
        numbers = self.schedule.games[rows]
        deals = np.stack((self._games.is_left[numbers], self._games.is_starting[numbers]), axis=1)
        self._sides[rows], self.returns[rows], self.lengths[rows] = ~deals[:, 0], 0, 0
        for is_left, is_starting in np.unique(deals, axis=0).tolist():
            chosen = (deals == (is_left, is_starting)).all(axis=1)
            players: Any = self._scripts if is_left else self._scripts[::-1]
            options = None if self._game is None else self._game.deal(players, 1 if is_left == is_starting else 2)
            seeds = [int(seed) for seed in self._games.seeds[numbers[chosen]]]
            observations[rows[chosen]] = self._packing.pack(self._fleet.reset_envs(rows[chosen], seeds, options)[0])
        return observations

    def _act(self, observations: NDArray[Any]) -> None:
        for number, policy in self._policies.items():
            if self._game is None:
                self._actions = policy.act(observations)
            else:
                side = self._sides ^ number
                chosen = policy.act(observations[self._every, side])
                self._actions[self._every, side] = check_actions(chosen, len(chosen), self._game, "a player")

    def _note(self, rows: NDArray[np.int64], winners: NDArray[Any]) -> None:
        numbers, sides = self.schedule.games[rows], self._sides[rows]
        self._games.outcomes[numbers] = np.where(sides == _ONE, winners, -winners)
        self._games.returns[numbers] = self.returns[rows, sides]
        self._games.lengths[numbers] = self.lengths[rows]
