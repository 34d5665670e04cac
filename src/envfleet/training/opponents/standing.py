"""Where the learner stands among scripted players and its own snapshots, by games that were played to find out."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from envfleet.envs.games import Game, known_games
from envfleet.training.config.opponents import SCRIPT
from envfleet.training.evaluation.evaluation import Evaluation
from envfleet.training.evaluation.ratings import Rating, rate
from envfleet.training.opponents.pool import SnapshotPool

LEARNER = "learner"


def rate_learner(
    evaluations: Mapping[str, Evaluation], pool: SnapshotPool, anchors: Mapping[str, float]
) -> dict[str, Rating]:
    """Rate the learner as it is, and the snapshots that it played against.

    The learner of a later evaluation is another player, so its rating comes from these games alone. Snapshots stay as
    they are: theirs become surer with every evaluation, and are kept in the pool.

    Args:
        evaluations: Of the learner, by opponent: scripted players, names of snapshots, …
        pool: Of the snapshots.
        anchors: Fixed ratings of opponents by name.

    Returns:
        Ratings of `"learner"` and of those snapshots, by name.
    """
    names = [*evaluations]
    turns = itertools.zip_longest(*(evaluation.outcomes for evaluation in evaluations.values()))
    results = (
        (LEARNER, name, outcome)
        for turn in turns
        for name, outcome in zip(names, turn, strict=True)
        if outcome is not None  # its games are over
    )
    snapshots = {one.name: one for one in pool.snapshots}
    before = {name: one.rating for name, one in snapshots.items()}
    ratings = {rating.name: rating for rating in rate([LEARNER, *names], results, anchors, before)}
    for name in ratings.keys() & snapshots.keys():
        snapshots[name].rating = ratings[name]
    return {name: rating for name, rating in ratings.items() if name == LEARNER or name in snapshots}


def anchors_among(opponents: Collection[str]) -> dict[str, float]:
    """Return the fixed ratings of those opponents that have one, by their short names; for figures and reports."""
    short = {opponent.removeprefix(SCRIPT) for opponent in opponents}
    known = [Game.anchors, *(game.anchors for game in known_games())]
    return {name: mu for anchors in known for name, mu in anchors.items() if name in short}
