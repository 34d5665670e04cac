"""Ratings of frozen players, from games that were played to rate them.

Weng and Lin 2011, "A Bayesian approximation method for online ranking" (Bradley-Terry, full pairs), from `openskill`.
Scripted players are anchors: their ratings stand fixed, so that those of different tournaments can be compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from openskill.models import BradleyTerryFull

from envfleet.envs.games import Game, known_games
from envfleet.training.config.opponents import SCRIPT

_ANCHOR_SIGMA = 0.1
_RANKS = {1: [0.0, 1.0], 0: [0.0, 0.0], -1: [1.0, 0.0]}


@dataclasses.dataclass(frozen=True)
class Rating:
    """How strong a player is.

    Attributes:
        name: Of the player.
        mu: The rating; that of a player of whom nothing is known is 25.
        sigma: Its standard deviation.
        games: It is taken from.
        is_anchor: Whether it stands fixed.
    """

    name: str
    mu: float = 25.0
    sigma: float = 25.0 / 3
    games: int = 0
    is_anchor: bool = False


Result = tuple[str, str, int]
"""A game between two players, by name: 1 if the first won, -1 if the second did, 0 for a draw."""


def rate(
    names: Sequence[str],
    results: Iterable[Result],
    anchors: Mapping[str, float],
    before: Mapping[str, Rating] | None = None,
) -> list[Rating]:
    """Rate players.

    Players do not change between the games, so a rating becomes surer with each. The order of the games matters
    little if those of all pairs take turns.

    Args:
        names: Of the players.
        results: Of their games against each other, in the order in which they count.
        anchors: Fixed ratings by name; those of players that are not among `names` are not looked at.
        before: Ratings from earlier games, by name, which go on from there.

    Returns:
        A rating for each name, in that order.
    """
    model = BradleyTerryFull(tau=0.0)
    known = before or {}
    ratings = {
        name: model.rating(anchors[name], _ANCHOR_SIGMA) if name in anchors else model.rating() for name in names
    }
    ratings |= {name: model.rating(known[name].mu, known[name].sigma) for name in names if name in known}
    counts = {name: known[name].games if name in known else 0 for name in names}
    for one, two, outcome in results:
        rated = model.rate([[ratings[one]], [ratings[two]]], ranks=_RANKS[outcome])
        for name, (rating,) in zip((one, two), rated, strict=True):
            counts[name] += 1
            if name not in anchors:
                ratings[name] = rating
    return [Rating(name, ratings[name].mu, ratings[name].sigma, counts[name], name in anchors) for name in names]


def anchors_among(opponents: Collection[str]) -> dict[str, float]:
    """Return the fixed ratings of those opponents that have one, by their short names; for figures and reports."""
    short = {opponent.removeprefix(SCRIPT) for opponent in opponents}
    known = [Game.anchors, *(game.anchors for game in known_games())]
    return {name: mu for anchors in known for name, mu in anchors.items() if name in short}
