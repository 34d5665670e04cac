"""Many games of hockey between two players, each game from its own seed.

How many run at once changes how long it takes and nothing else: games are seeded one by one, and policies see each at
its own place in batches of one size (`envfleet.training.games.seating`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.envs.hockey.constants import Mode
from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_choice
from envfleet.training.games.players import Player, Seated, seat_player
from envfleet.training.games.seating import SeatedPolicy, Seating
from envfleet.training.options import Engine

Side = Literal["left", "right", "both"]

_LEFT, _RIGHT = 0, 1
_BOX2D = "envfleet/Hockey-Two-Box2D-v0"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rink:
    """Where games are played.

    Attributes:
        engine: `"compiled"`, or `"box2d"`, a hundred times slower and the same to the last bit.
        mode: `"NORMAL"`, `"TRAIN_SHOOTING"` or `"TRAIN_DEFENSE"`.
        keep_mode: Whether players can hold the puck.
        num_envs: Games at once, at most.
        backend: Of the fleet that plays on Box2D: `"serial"`, `"thread"`, `"process"`, `"auto"`.
        workers: Threads or processes of the fleet; its own choice by default.
    """

    engine: Engine = "compiled"
    mode: str = "NORMAL"
    keep_mode: bool = True
    num_envs: int = 1024
    backend: Literal["auto", "serial", "thread", "process"] = "serial"
    workers: int | None = None

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, get_args(Engine))
        check_choice("mode", self.mode, tuple(mode.name for mode in Mode))

    def open(self, num_envs: int) -> Any:
        """Make a fleet of games for two players."""
        env, backend = ("envfleet/Hockey-v0", "kernel") if self.engine == "compiled" else (_BOX2D, self.backend)
        mode = int(Mode[self.mode])
        make: Any = envfleet.make
        return make(env, num_envs, backend=backend, workers=self.workers, mode=mode, keep_mode=self.keep_mode)


@dataclasses.dataclass(frozen=True, eq=False)
class Games:
    """What came of G games, as columns, in order of their numbers.

    Attributes:
        seeds: Of each, uint64 `(G,)`.
        is_left: Whether the player had the left goal, bool `(G,)`.
        is_starting: Whether the player had the puck first (in `NORMAL`), bool `(G,)`.
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
    side: Side = "both",
    rink: Rink | None = None,
) -> Games:
    """Play games between two players, without exploration.

    Args:
        player: `"weak"`, `"strong"`, `"champion"`, the path of a checkpoint, or anything with `act_batch`.
        opponent: Likewise.
        games: How many.
        seed: All games derive theirs from it; the first ones are the same for any number of games.
        side: Where the player sits; with `"both"` even games on the left, odd ones on the right. Players take turns
            with the puck: of four games in a row each player starts two.
        rink: Where.

    Raises:
        InvalidArgument: There is no such player, side or engine.
    """
    rink = rink or Rink()
    ready = [one if isinstance(one, Seated) else seat_player(one) for one in (player, opponent)]
    seating, plan = Seating(games, rink.num_envs), plan_games(games, seed, side)
    with rink.open(seating.num_envs) as fleet:
        _Table(fleet, seating, plan, ready).play()
    return plan


def usual_side(mode: str) -> Side:
    """Return where a player sits by default: both sides in turns; in the training modes where one shoots or defends.

    >>> usual_side("NORMAL"), usual_side("TRAIN_DEFENSE")
    ('both', 'left')
    """
    return "both" if mode == Mode.NORMAL.name else "left"


def plan_games(games: int, seed: int = 0, side: Side = "both") -> Games:
    """Settle seeds, sides and starters of games that are not played yet; arguments are those of `play`."""
    check_choice("side", side, get_args(Side))
    numbers = np.arange(games)
    return Games(
        seeds=np.random.SeedSequence(seed).generate_state(games, np.uint64) >> np.uint64(1),
        is_left=numbers % 2 == 0 if side == "both" else np.full(games, side == "left"),
        is_starting=numbers // 2 % 2 == 0,
        outcomes=np.zeros(games, np.int64),
        returns=np.zeros(games),
        opponent_returns=np.zeros(games),
        lengths=np.zeros(games, np.int64),
    )


def table_params(strengths: Sequence[int], is_left: bool, is_starting: bool) -> dict[str, int]:
    """Return what an environment for two has to know of a game.

    Args:
        strengths: Of the player and the opponent: 1 or 2 for scripted players, else 0.
        is_left: Whether the player has the left goal.
        is_starting: Whether the player has the puck first.
    """
    one, two = strengths if is_left else reversed(strengths)
    return {"starter": 1 if is_left == is_starting else 2, "player_one": one, "player_two": two}


class _Table:
    """Games under way; it writes what comes of them into `games`."""

    def __init__(self, fleet: Any, seating: Seating, games: Games, players: list[Seated]) -> None:
        self._fleet, self._seating, self._games = fleet, seating, games
        self._strengths = [player.strength for player in players]
        self._policies = [None if player.policy is None else SeatedPolicy(player.policy, seating) for player in players]
        self._every = np.arange(seating.num_envs)
        self._left = np.zeros(seating.num_envs, np.int64)  # 0 where the player sits on the left, 1 where the opponent
        self._actions = np.zeros((seating.num_envs, 2, 4), np.float32)
        self._returns = np.zeros((seating.num_envs, 2))  # of the left and the right side
        self._lengths = np.zeros(seating.num_envs, np.int64)

    def play(self) -> None:
        observations = self._fleet.reset()[0]
        observations = self._begin(self._seating.seat(self._every), observations)
        while len(self._seating.rows):
            self._act(observations)
            observations, rewards, terminated, truncated, infos = self._fleet.step(self._actions)
            self._returns[:, _LEFT] += rewards
            self._returns[:, _RIGHT] += infos["reward_two"]
            self._lengths += 1
            ended = np.flatnonzero((terminated | truncated) & (self._seating.games >= 0))
            if len(ended):
                self._note(ended, np.asarray(infos["winner"])[ended])
                observations = self._begin(self._seating.seat(ended), observations)

    def _begin(self, rows: NDArray[np.int64], observations: NDArray[Any]) -> NDArray[Any]:
        """Begin games in these sub-environments; returns all observations, the first ones of those games included."""
        numbers = self._seating.games[rows]
        is_left, is_starting = self._games.is_left[numbers], self._games.is_starting[numbers]
        self._left[rows] = ~is_left
        self._returns[rows], self._lengths[rows] = 0, 0
        for left, starting in itertools.product((True, False), repeat=2):
            chosen = (is_left == left) & (is_starting == starting)
            if chosen.any():
                params = table_params(self._strengths, left, starting)
                seeds = [int(seed) for seed in self._games.seeds[numbers[chosen]]]
                begun = self._fleet.reset_envs(rows[chosen], seeds, {"params": params})[0]
                observations[rows[chosen]] = begun
        return observations

    def _act(self, observations: NDArray[Any]) -> None:
        for number, policy in enumerate(self._policies):
            if policy is not None:
                side = self._left ^ number
                self._actions[self._every, side] = _as_actions(policy.act(observations[self._every, side]))

    def _note(self, rows: NDArray[np.int64], winners: NDArray[Any]) -> None:
        numbers, left = self._seating.games[rows], self._left[rows]
        self._games.outcomes[numbers] = np.where(left == 0, winners, -winners)
        self._games.returns[numbers] = self._returns[rows, left]
        self._games.opponent_returns[numbers] = self._returns[rows, 1 - left]
        self._games.lengths[numbers] = self._lengths[rows]


def _as_actions(actions: NDArray[Any]) -> NDArray[Any]:
    if actions.shape[1:] != (4,):
        raise InvalidArgument(
            f"a player's actions have shape {actions.shape}, expected (N, 4): pass an agent whose actions are in "
            "Box(-1, 1, (4,)) or in an ActionTable of hockey"
        )
    return actions
