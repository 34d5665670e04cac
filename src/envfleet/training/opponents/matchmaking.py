"""Which of several opponents is drawn, by how the learner has done against each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from envfleet.training.config.opponents import Matchmaking

_MEMORY = 0.95  # of a win rate, per game
_FLOOR = 0.01  # of a weight, so that even an opponent that always loses is met now and then


def chances(win_rates: Sequence[float], matchmaking: Matchmaking) -> NDArray[np.float64]:
    """Return the chance of each opponent, the oldest first.

    Args:
        win_rates: The learner's running scores p against them, at least one.
        matchmaking: `"uniform"`; `"latest"`: only the newest; `"prioritised"`: by p (1 - p), those it neither always
            beats nor never; `"hardest"`: by (1 - p)^2 (both: Vinyals et al. 2019, doi:10.1038/s41586-019-1724-z,
            "prioritised fictitious self-play").

    Examples:
        >>> chances([0.9, 0.5, 0.1], "prioritised").round(2)
        array([0.22, 0.57, 0.22])
        >>> chances([0.9, 0.5, 0.1], "hardest").round(2)
        array([0.02, 0.24, 0.75])
    """
    rates = np.asarray(win_rates, np.float64)
    match matchmaking:
        case "uniform":
            weights = np.ones(len(rates))
        case "latest":
            weights = np.zeros(len(rates))
            weights[-1] = 1.0
        case "prioritised":
            weights = _FLOOR + rates * (1 - rates)
        case "hardest":
            weights = _FLOOR + (1 - rates) ** 2
    spread: NDArray[np.float64] = weights / weights.sum()
    return spread


def move_rate(rate: float, scores: NDArray[np.float64]) -> float:
    """Return a running score after more games, 1 for a win, 0.5 for a draw, 0 for a loss, in their order.

    >>> move_rate(0.5, np.array([1.0]))
    0.525
    """
    for score in scores.tolist():
        rate = _MEMORY * rate + (1 - _MEMORY) * score
    return rate
