"""Ratings of frozen players, from games that were played to rate them.

Weng and Lin 2011, "A Bayesian approximation method for online ranking" (Bradley-Terry, full pairs), from `openskill`.
Scripted players are anchors: their ratings stand fixed, so that those of different tournaments can be compared.
"""

from __future__ import annotations

import dataclasses
import itertools
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


def rate(
    names: Iterable[str],
    outcomes: Mapping[tuple[str, str], Sequence[int]],
    anchors: Mapping[str, float],
    before: Mapping[str, Rating] | None = None,
) -> list[Rating]:
    """Rate players.

    Players do not change between the games, so a rating becomes surer with each. The order of the games matters
    little, as pairs take turns.

    Args:
        names: Of the players.
        outcomes: Of the games of pairs of them, by their names: 1 if the first won, -1 if the second did, 0 for a draw.
        anchors: Fixed ratings by name; those of players that are not among `names` are not looked at.
        before: Ratings from earlier games, by name, which go on from there.

    Returns:
        A rating for each name, in that order.
    """
    model = BradleyTerryFull(tau=0.0)
    known = {
        name: Rating(name, anchors[name], _ANCHOR_SIGMA, is_anchor=True) if name in anchors else Rating(name)
        for name in names
    }
    known |= {name: rating for name, rating in (before or {}).items() if name in known}
    for turn in itertools.zip_longest(*outcomes.values()):
        for pair, outcome in zip(outcomes, turn, strict=True):
            if outcome is None:  # its games are over
                continue
            teams = [[model.rating(known[name].mu, known[name].sigma)] for name in pair]
            for name, (found,) in zip(pair, model.rate(teams, ranks=_RANKS[outcome]), strict=True):
                one = known[name]
                mu, sigma = (one.mu, one.sigma) if one.is_anchor else (found.mu, found.sigma)
                known[name] = dataclasses.replace(one, mu=mu, sigma=sigma, games=one.games + 1)
    return [*known.values()]


def anchors_among(opponents: Collection[str]) -> dict[str, float]:
    """Return the fixed ratings of those opponents that have one, by their short names; for figures and reports."""
    short = {opponent.removeprefix(SCRIPT) for opponent in opponents}
    known = [Game.anchors, *(game.anchors for game in known_games())]
    return {name: mu for anchors in known for name, mu in anchors.items() if name in short}
