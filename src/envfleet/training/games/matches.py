"""Many games between two players, each game from its own seed.

How many run at once changes how long it takes and nothing else: games are seeded one by one, and policies see each at
its own place in batches of one size (`envfleet.training.games.seating`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.games import Game, known_game
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice
from envfleet.sources import names_kernel
from envfleet.training.config.phases import DEFAULT_GAME
from envfleet.training.games.players import Player, Seated, seat_player
from envfleet.training.games.seating import SeatedPolicy, Seating

_ONE, _TWO = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rink:
    """Where games are played.

    Attributes:
        game: Which.
        engine: One of the game's; `None` for the first.
        mode: One of the game's; `""` for the first.
        settings: The game's, as in `environment.kwargs` of a configuration.
        num_envs: Games at once, at most.
        backend: Of the fleet, if the engine is not compiled: `"serial"`, `"thread"`, `"process"`, `"auto"`.
        workers: Threads or processes of the fleet; its own choice by default.
    """

    game: Game = dataclasses.field(default_factory=lambda: known_game(DEFAULT_GAME))
    engine: str | None = None
    mode: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_envs: int = 1024
    backend: Literal["auto", "serial", "thread", "process"] = "serial"
    workers: int | None = None

    def __post_init__(self) -> None:
        self.game.source(self.engine)
        if not self.mode and self.game.modes:
            object.__setattr__(self, "mode", self.game.modes[0])
        if self.mode and not self.game.modes:
            raise InvalidArgument(f"mode={self.mode!r}, but {self.game.name!r} has no modes: leave it out")
        if self.mode:
            check_choice("mode", self.mode, self.game.modes)

    def open(self, num_envs: int) -> Any:
        """Make a fleet of games for two players."""
        source = self.game.source(self.engine)
        backend = "kernel" if names_kernel(source) else self.backend
        arguments = self.game.arguments(self.mode, self.settings)
        make: Any = envfleet.make
        return make(source, num_envs, backend=backend, workers=self.workers, **arguments)


@dataclasses.dataclass(frozen=True, eq=False)
class Games:
    """What came of G games, as columns, in order of their numbers.

    Attributes:
        seeds: Of each, uint64 `(G,)`.
        is_left: Whether the player had the first of the game's two seats, bool `(G,)`.
        is_starting: Whether the player had the first move, in games where that is dealt, bool `(G,)`.
        outcomes: 1 where the player won, -1 where the opponent did, 0 for a draw, int64 `(G,)`.
        returns: Sum of the player's rewards, float64 `(G,)`.
        opponent_returns: Likewise the opponent's.
        lengths: Steps, int64 `(G,)`.
    """

    seeds: NDArray[np.uint64]
    is_left: NDArray[np.bool_]
    is_starting: NDArray[np.bool_]
    outcomes: NDArray[np.int64]
    returns: NDArray[np.float64]
    opponent_returns: NDArray[np.float64]
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

    Raises:
        InvalidArgument: There is no such player, side or engine.
    """
    rink = rink or Rink()
    ready = [one if isinstance(one, Seated) else seat_player(one, game=rink.game) for one in (player, opponent)]
    seating, plan = Seating(games, rink.num_envs), plan_games(rink.game, games, seed, side)
    with rink.open(seating.num_envs) as fleet:
        _Table(fleet, rink.game, seating, plan, ready).play()
    return plan


def plan_games(game: Game, games: int, seed: int = 0, side: str = "both") -> Games:
    """Settle seeds, sides and starters of games that are not played yet; arguments are those of `play`."""
    check_choice("side", side, (*game.seats, "both"))
    numbers = np.arange(games)
    return Games(
        seeds=np.random.SeedSequence(seed).generate_state(games, np.uint64) >> np.uint64(1),
        is_left=numbers % 2 == 0 if side == "both" else np.full(games, side == game.seats[0]),
        is_starting=numbers // 2 % 2 == 0,
        outcomes=np.zeros(games, np.int64),
        returns=np.zeros(games),
        opponent_returns=np.zeros(games),
        lengths=np.zeros(games, np.int64),
    )


def deal(game: Game, scripts: Sequence[int], is_left: bool, is_starting: bool) -> dict[str, Any] | None:
    """Return the options with which a game is reset.

    Args:
        game: Which.
        scripts: Of the player and the opponent: numbers of scripted players, else 0.
        is_left: Whether the player is player one.
        is_starting: Whether the player has the first move.
    """
    one, two = scripts if is_left else reversed(scripts)
    return game.deal((one, two), 1 if is_left == is_starting else 2)


class _Table:
    """Games under way; it writes what comes of them into `games`."""

    def __init__(self, fleet: Any, game: Game, seating: Seating, games: Games, players: list[Seated]) -> None:
        self._fleet, self._game, self._seating, self._games = fleet, game, seating, games
        self._scripts = [player.script for player in players]
        self._policies = [None if player.policy is None else SeatedPolicy(player.policy, seating) for player in players]
        self._every = np.arange(seating.num_envs)
        self._seats = np.zeros(seating.num_envs, np.int64)  # 0 where the player is player one, 1 where the opponent is
        self._actions = np.zeros(fleet.action_space.shape, fleet.action_space.dtype)
        self._returns = np.zeros((seating.num_envs, 2))  # of player one and two
        self._lengths = np.zeros(seating.num_envs, np.int64)

    def play(self) -> None:
        observations = self._fleet.reset()[0]
        observations = self._begin(self._seating.seat(self._every), observations)
        while len(self._seating.rows):
            self._act(observations)
            observations, rewards, terminated, truncated, infos = self._fleet.step(self._actions)
            self._returns[:, _ONE] += rewards
            self._returns[:, _TWO] += infos["reward_two"]
            self._lengths += 1
            ended = np.flatnonzero((terminated | truncated) & (self._seating.games >= 0))
            if len(ended):
                self._note(ended, np.asarray(infos["winner"])[ended])
                observations = self._begin(self._seating.seat(ended), observations)

    def _begin(self, rows: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[Any]:
        """Begin games in these sub-environments; returns all observations, the first ones of those games included."""
        numbers = self._seating.games[rows]
        is_left, is_starting = self._games.is_left[numbers], self._games.is_starting[numbers]
        self._seats[rows] = ~is_left
        self._returns[rows], self._lengths[rows] = 0, 0
        for left, starting in itertools.product((True, False), repeat=2):
            chosen = (is_left == left) & (is_starting == starting)
            if chosen.any():
                options = deal(self._game, self._scripts, left, starting)
                seeds = [int(seed) for seed in self._games.seeds[numbers[chosen]]]
                begun = self._fleet.reset_envs(rows[chosen], seeds, options)[0]
                observations[rows[chosen]] = begun
        return observations

    def _act(self, observations: NDArray[Any]) -> None:
        for number, policy in enumerate(self._policies):
            if policy is not None:
                side = self._seats ^ number
                self._actions[self._every, side] = self._checked(policy.act(observations[self._every, side]))

    def _note(self, rows: NDArray[np.int64], winners: NDArray[Any]) -> None:
        numbers, seats = self._seating.games[rows], self._seats[rows]
        self._games.outcomes[numbers] = np.where(seats == _ONE, winners, -winners)
        self._games.returns[numbers] = self._returns[rows, seats]
        self._games.opponent_returns[numbers] = self._returns[rows, 1 - seats]
        self._games.lengths[numbers] = self._lengths[rows]

    def _checked(self, actions: NDArray[Any]) -> NDArray[Any]:
        expected = self._actions.shape[2:]
        if actions.shape[1:] != expected:
            shown = ", ".join(map(str, ("N", *expected)))
            raise InvalidArgument(
                f"a player's actions have shape {actions.shape}, expected ({shown}): pass an agent whose actions are "
                f"in {self._game.action_space}"
            )
        return actions
