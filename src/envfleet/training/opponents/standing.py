"""Where the learner stands among scripted players and its own snapshots, by games that were played to find out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from envfleet.training.evaluation.evaluation import Evaluation
from envfleet.training.evaluation.ratings import ANCHORS, Rating, Result, rate
from envfleet.training.opponents.pool import SnapshotPool

LEARNER = "learner"
STRONG, WEAK = "basic_strong", "basic_weak"
_ANCHORS = {STRONG: ANCHORS["strong"], WEAK: ANCHORS["weak"]}


def rate_learner(evaluations: Mapping[str, Evaluation], pool: SnapshotPool) -> dict[str, Rating]:
    """Rate the learner as it is, and the snapshots that it played against.

    The learner of a later evaluation is another player, so its rating comes from these games alone. Snapshots stay as
    they are: theirs become surer with every evaluation, and are kept in the pool.

    Args:
        evaluations: Of the learner, by opponent: `"basic_strong"`, `"basic_weak"`, names of snapshots.
        pool: Of the snapshots.

    Returns:
        Ratings of `"learner"` and of those snapshots, by name.
    """
    names = [*evaluations]
    turns = itertools.zip_longest(*(evaluation.outcomes for evaluation in evaluations.values()))
    results = (
        Result(LEARNER, name, outcome)
        for turn in turns
        for name, outcome in zip(names, turn, strict=True)
        if outcome is not None  # its games are over
    )
    ratings = rate([LEARNER, *names], results, _ANCHORS, pool.ratings)
    found = {rating.name: rating for rating in ratings if not rating.is_anchor}
    pool.set_ratings(rating for name, rating in found.items() if name != LEARNER)
    return found
