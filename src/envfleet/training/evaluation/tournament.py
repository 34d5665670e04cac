"""Everybody against everybody: checkpoints and the scripted players, sides swapped, with ratings."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.agents import load_agent
from envfleet.errors import InvalidArgument
from envfleet.training.evaluation.evaluation import Score
from envfleet.training.evaluation.ratings import Rating, rate
from envfleet.training.folder import agents_in
from envfleet.training.games.matches import Rink, play
from envfleet.training.games.players import Player, seat_player

Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Tournament:
    """What came of a tournament; players stand in the order of their ratings, best first.

    Attributes:
        ratings: Of the K players.
        wins: Games that the player of the row won against that of the column, int64 `(K, K)`.
        draws: Likewise games drawn.
        games: Of each pair.
    """

    ratings: tuple[Rating, ...]
    wins: NDArray[np.int64]
    draws: NDArray[np.int64]
    games: int

    @property
    def names(self) -> tuple[str, ...]:
        """Of the players."""
        return tuple(rating.name for rating in self.ratings)

    def score(self, row: int) -> Score:
        """Return all games of a player."""
        return Score(int(self.wins[row].sum()), int(self.draws[row].sum()), int(self.wins[:, row].sum()))


def find_checkpoints(folder: str | Path, observation_space: spaces.Space[Any]) -> dict[str, Path]:
    """Find the checkpoints of players in a folder of files, of a run or of several runs.

    Args:
        folder: Which.
        observation_space: Of the environment that they are to play; agents that see something else are left out.

    Returns:
        Their files by name: the path within the folder, as far as it tells them apart.

    Raises:
        InvalidArgument: There is no checkpoint of such a player, or a file there that is none.
    """
    shape = observation_space.shape
    files = sorted(agents_in(Path(folder)).items())
    players = {name: path for name, path in files if load_agent(path, num_envs=1).observation_space.shape == shape}
    if not players:
        raise InvalidArgument(
            f"no checkpoint in {folder} is of an agent that sees observations of shape {shape}: pass "
            "another folder, or the environment in which they were trained"
        )
    return players


def run_tournament(
    players: Mapping[str, Player],
    *,
    games: int = 100,
    seed: int = 0,
    rink: Rink | None = None,
    progress: Progress | None = None,
) -> Tournament:
    """Let every player meet every other, half of the games on either side.

    Args:
        players: By name; the scripted ones stand fixed in the ratings.
        games: Of each pair.
        seed: Of the games; all pairs meet the same starts.
        rink: Where.
        progress: Told, before each pairing, which it is and the share of pairings played.

    Raises:
        InvalidArgument: There are fewer than two players, one of them is none, or a name belongs to a scripted player.
    """
    if len(players) < 2:
        raise InvalidArgument(f"a tournament of {len(players)} players, expected 2 or more: add some")
    rink = rink or Rink()
    for name in rink.game.anchors.keys() & players.keys():
        if players[name] != name:
            raise InvalidArgument(f"a player is called {name!r} and is not the scripted one: give it another name")
    names = [*players]
    seated = [seat_player(player, name, game=rink.game) for name, player in players.items()]
    pairs = [*itertools.combinations(range(len(names)), 2)]
    wins, draws = np.zeros((2, len(names), len(names)), np.int64)
    outcomes: dict[tuple[str, str], list[int]] = {}
    for number, (one, two) in enumerate(pairs):
        if progress:
            progress(f"{names[one]} against {names[two]}", number / len(pairs))
        played = play(seated[one], seated[two], games, seed=seed, rink=rink).outcomes.tolist()
        wins[one, two], wins[two, one] = played.count(1), played.count(-1)
        draws[one, two] = draws[two, one] = played.count(0)
        outcomes[names[one], names[two]] = played
    ratings = rate(names, outcomes, rink.game.anchors)
    order = sorted(range(len(names)), key=lambda row: -ratings[row].mu)
    place = np.ix_(order, order)
    return Tournament(tuple(ratings[row] for row in order), wins[place], draws[place], games)
