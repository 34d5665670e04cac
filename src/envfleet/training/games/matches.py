"""Many games between two players, each game from its own seed.

How many run at once changes how long it takes and nothing else: games are seeded one by one, and policies see each at
its own place in batches of one size. For a matrix product may round a row differently in a batch of another size, or at
another place in it, and a game of a few hundred steps can turn out otherwise for that. So policies are asked in blocks,
and the place of a game in its block follows from its number alone.
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
    OwnPlayer,
    Player,
    Policy,
    Seated,
    check_actions,
    idle_actions,
    seat_player,
)
from envfleet.training.phases import DEFAULT_GAME

_ONE, _TWO = 0, 1
BLOCK_ROWS = 128
MOST_STEPS = 30_000
"""Steps after which a game is cut, so that an evaluation ends though a game does not; Atari's have 27,000 at most."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rink:
    """Where games are played.

    Attributes:
        game: Which.
        engine: One of the game's; `None` for the first.
        mode: One of the game's; `""` for the first.
        settings: The game's, as in `environment.kwargs` of a configuration.
        num_envs: Games at once, at most.
        options: Of `envfleet.make`, where games are not compiled.
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
        """Make a fleet of games for two players."""
        arguments = self.game.arguments(self.mode, self.settings)
        return open_fleet(self.game.source(self.engine), num_envs, self.options, **arguments)


def open_fleet(env: Any, num_envs: int, options: Mapping[str, Any] | None = None, **env_kwargs: Any) -> Fleet:
    """Make a fleet to play whole games in: compiled if it can be, else by options; without them in this process."""
    if names_kernel(env):
        return envfleet.make(env, num_envs, backend="kernel", **env_kwargs)
    chosen = {"backend": "serial", "num_envs": num_envs, "workers": 1, **(options or {})}
    fitting = {name: min(chosen[name], num_envs) for name in ("num_envs", "workers")}
    return envfleet.make(env, **{**chosen, **fitting}, **env_kwargs)


@dataclasses.dataclass(frozen=True, eq=False)
class Games:
    """What came of G games, as columns, in order of their numbers.

    Attributes:
        seeds: Of each, uint64 `(G,)`.
        is_left: Whether the player had the first of the game's two seats, bool `(G,)`.
        is_starting: Whether the player had the first move, in games where that is dealt, bool `(G,)`.
        outcomes: 1 where the player won, -1 where the opponent did, 0 for a draw, int64 `(G,)`.
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
    player: Player | Seated,
    opponent: Player | Seated,
    games: int,
    *,
    seed: int = 0,
    side: str = "both",
    rink: Rink | None = None,
    fleet: Fleet | None = None,
) -> Games:
    """Play games between two players, without exploration.

    Args:
        player: A name that the game knows, `"random"`, `"my_package:MyOpponent"`, the path of a checkpoint, or anything
            with `act_batch`.
        opponent: Likewise.
        games: How many.
        seed: All games derive theirs from it; the first ones are the same for any number of games.
        side: Where the player sits, one of the game's seats; with `"both"` even games in the first, odd ones in the
            second. Players take turns in beginning: of four games in a row each player begins two.
        rink: Where.
        fleet: Fleet from `rink.open`, which stays open; by default one is opened and closed.

    Raises:
        InvalidArgument: There is no such player, side or engine.
    """
    rink = rink or Rink()
    ready = [seat_player(one, game=rink.game, seed=2 * seed + k) for k, one in enumerate((player, opponent))]
    plan = plan_games(rink.game, games, seed, side)
    with contextlib.nullcontext(fleet) if fleet else rink.open(min(games, rink.num_envs)) as opened:
        Table(opened, plan, ready, rink.game).play_all()
    return plan


def plan_games(game: Game, games: int, seed: int = 0, side: str = "both") -> Games:
    """Settle seeds, sides and starters of games that are not played yet; arguments are those of `play`."""
    check_choice("side", side, (*game.seats, "both"))
    check_whole("games", games, 1)
    numbers = np.arange(games)
    seeds = np.random.SeedSequence(seed).generate_state(games, np.uint64) >> np.uint64(1)
    is_left = numbers % 2 == 0 if side == "both" else np.full(games, side == game.seats[0])
    return _planned(seeds, is_left, numbers // 2 % 2 == 0)


def plan_episodes(episodes: int, seed: int = 0) -> Games:
    """Settle the seeds of episodes for one that are not played yet."""
    check_whole("episodes", episodes, 1)
    every = np.ones(episodes, np.bool_)
    return _planned(np.random.SeedSequence(seed).generate_state(episodes).astype(np.uint64), every, every)


def _planned(seeds: NDArray[np.uint64], is_left: NDArray[np.bool_], is_starting: NDArray[np.bool_]) -> Games:
    outcomes, lengths = np.zeros((2, len(seeds)), np.int64)
    return Games(seeds, is_left, is_starting, outcomes, np.zeros(len(seeds)), lengths)


class Seating:
    """Gives every sub-environment its games, one after the other.

    Which sub-environment plays a game is settled beforehand and not by who is free first, so that short games are not
    counted more often than long ones.

    Args:
        num_games: Numbered from 0.
        num_envs: Sub-environments; a multiple of 128 shares the games out most evenly.

    Attributes:
        games: Number of the game that each one plays, int64 `(num_envs,)`; -1 where there is none left.
        places: Of that game in batches, int64 `(num_envs,)`; of the last one where there is none left.

    Examples:
        >>> seating = Seating(num_games=5, num_envs=2)
        >>> seating.seat(np.array([0, 1])), seating.games
        (array([0, 1]), array([0, 1]))
        >>> seating.seat(np.array([1])), seating.games
        (array([1]), array([0, 3]))
    """

    def __init__(self, num_games: int, num_envs: int) -> None:
        self.num_places = -(-num_envs // BLOCK_ROWS) * BLOCK_ROWS
        # No two sub-environments share a place, so that no two running games do.
        owners = np.arange(num_games) % self.num_places % num_envs
        self._order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[self._order], np.arange(num_envs + 1))
        self._next, self._ends = bounds[:-1].copy(), bounds[1:]
        self.games: NDArray[np.int64] = np.full(num_envs, -1, np.int64)
        self.places = np.arange(num_envs)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sub-environments that play."""
        return np.flatnonzero(self.games >= 0)

    def seat(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give these sub-environments, whose games are over, their next ones.

        Returns:
            Those of them that got one.
        """
        seated: NDArray[np.int64] = rows[self._next[rows] < self._ends[rows]]
        self.games[rows] = -1
        self.games[seated] = self._order[self._next[seated]]
        self._next[seated] += 1
        self.places[seated] = self.games[seated] % self.num_places
        return seated


class SeatedPolicy:
    """A policy that sees every game at the game's own place.

    Args:
        policy: Acts without exploration.
        seating: Of the games.
        unpacked: From packed observations to those that the policy gets.
    """

    def __init__(self, policy: Policy, seating: Seating, unpacked: Callable[[NDArray[Any]], Any]) -> None:
        self._policy, self._seating, self._unpacked = policy, seating, unpacked
        self._inputs: NDArray[Any] | None = None

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Choose actions for all sub-environments.

        Args:
            observations: `(num_envs, …)`.

        Returns:
            `(num_envs, …)`, also where no game is left, as those sub-environments step on.
        """
        seating, places = self._seating, self._seating.places
        if self._inputs is None:
            # Places without a game hold an observation of the space, which zeros may not be.
            self._inputs = np.repeat(observations[:1], seating.num_places, axis=0)
        self._inputs[places] = observations
        blocks, chosen = self._inputs.reshape(-1, BLOCK_ROWS, *observations.shape[1:]), list[NDArray[Any]]()
        for number, block in enumerate(blocks):
            numbers = np.arange(BLOCK_ROWS) + number * BLOCK_ROWS
            more: Any = {"env_indices": numbers} if isinstance(self._policy, OwnPlayer) else {}
            chosen.append(np.asarray(self._policy.act_batch(self._unpacked(block), deterministic=True, **more)))
        return np.concatenate(chosen)[places]

    def begin(self, rows: NDArray[np.int64]) -> None:
        """Tell a player of a class of the user's own that games begin in these sub-environments."""
        if isinstance(self._policy, OwnPlayer):
            self._policy.begin_episodes(self._seating.places[rows])


class Table:
    """Games under way; it writes what comes of them into `games`.

    Args:
        fleet: Where they are played, one per sub-environment at a time.
        games: As planned.
        players: The player and its opponent; where nobody plays against it, the player alone.
        game: What is played; `None` for environments for one.

    Attributes:
        seating: Of the games.
        returns: Of the running games, of player one and two, float64 `(N, 2)`.
        lengths: Of the running games, int64 `(N,)`.
    """

    def __init__(self, fleet: Fleet, games: Games, players: Sequence[Seated], game: Game | None) -> None:
        if game is None:
            found = fleet.single_observation_space, fleet.single_action_space
            check_spaces(spaces_of(players[0].policy), "the agent", found, "the environment")
        self._fleet, self._games, self._game = fleet, games, game
        self.seating = Seating(len(games), fleet.num_envs)
        self._scripts = [player.script for player in players]
        acting = {number: player.policy for number, player in enumerate(players) if player.policy is not None}
        self._packing = packing = Packing(fleet.single_observation_space)
        self._policies = {k: SeatedPolicy(policy, self.seating, packing.unpacked) for k, policy in acting.items()}
        self._every = np.arange(fleet.num_envs)
        self._seats = np.zeros(fleet.num_envs, np.int64)  # 0 where the player is player one, 1 where the opponent is
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
            Sub-environments whose games ended in this step; none after some have begun.
        """
        observations = self._begin(self._every, self._packing.pack(self._fleet.reset()[0]))
        while len(self.seating.rows):
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
        is_endless = (self.lengths >= MOST_STEPS) & ~(terminated | truncated) & (self.seating.games >= 0)
        if is_endless.any():
            warnings.warn(
                f"a game had no end after {MOST_STEPS:,} steps and was cut there: give the environment a time limit",
                RuntimeWarning,
                stacklevel=2,
            )
        ended = np.flatnonzero((terminated | truncated | is_endless) & (self.seating.games >= 0))
        if self._game is not None:
            self.returns[:, _TWO] += infos.get("reward_two", 0.0)  # there are none if all had to be made anew
        if len(ended):
            self._note(ended, np.asarray(infos.get("winner", np.zeros(len(rewards))))[ended])
        return self._packing.pack(observed), ended

    def _begin(self, rows: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[Any]:
        """Begin the next games in these sub-environments; returns all observations, also the first ones of those."""
        rows = self.seating.seat(rows)
        for policy in self._policies.values():
            policy.begin(rows)
        numbers = self.seating.games[rows]
        deals = np.stack((self._games.is_left[numbers], self._games.is_starting[numbers]), axis=1)
        self._seats[rows], self.returns[rows], self.lengths[rows] = ~deals[:, 0], 0, 0
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
                side = self._seats ^ number
                chosen = policy.act(observations[self._every, side])
                self._actions[self._every, side] = check_actions(chosen, len(chosen), self._game, "a player")

    def _note(self, rows: NDArray[np.int64], winners: NDArray[Any]) -> None:
        numbers, seats = self.seating.games[rows], self._seats[rows]
        self._games.outcomes[numbers] = np.where(seats == _ONE, winners, -winners)
        self._games.returns[numbers] = self.returns[rows, seats]
        self._games.lengths[numbers] = self.lengths[rows]
