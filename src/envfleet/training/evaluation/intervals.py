"""How sure a share of won games is."""

from __future__ import annotations

import math

Z_95 = 1.959963984540054
"""Standard deviations that leave out 2.5 % on either side."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, "Probable inference, the law of succession", equation 4).

    Args:
        successes: How many of the trials went well.
        trials: All of them; with none, nothing is known.

    Returns:
        Lower and upper bound, from 0 to 1.

    Examples:
        >>> [round(bound, 4) for bound in wilson(90, 100)]
        [0.8256, 0.9448]
        >>> wilson(0, 0)
        (0.0, 1.0)
    """
    if trials == 0:
        return 0.0, 1.0
    share, square = successes / trials, Z_95**2 / trials
    middle = (share + square / 2) / (1 + square)
    reach = Z_95 / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share))
