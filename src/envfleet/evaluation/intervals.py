"""Confidence intervals of means and of shares."""

from __future__ import annotations

import math
import statistics

import numpy as np
from numpy.typing import ArrayLike

_Z_95 = 1.959963984540054  # 97.5 % quantile of the standard normal distribution


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson 1927, "Probable inference, the law of succession", equation 4).

    Args:
        successes: Number of successful trials.
        trials: Number of trials; 0 gives the interval (0, 1).

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
    share, square = successes / trials, _Z_95**2 / trials
    middle = (share + square / 2) / (1 + square)
    reach = _Z_95 / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share))


def student(values: ArrayLike) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent values by Student's t distribution (Student 1908).

    Args:
        values: Values, float `(n,)`.

    Returns:
        Lower and upper bound; NaN with fewer than two values.

    Examples:
        >>> [round(bound, 3) for bound in student([9.0, 10.0, 11.0, 12.0, 13.0])]
        [9.037, 12.963]
    """
    array = np.asarray(values, np.float64)
    count = len(array)
    if count < 2:
        return math.nan, math.nan
    reach = t_quantile(0.975, count - 1) * float(array.std(ddof=1)) / math.sqrt(count)
    return float(array.mean()) - reach, float(array.mean()) + reach


def t_quantile(share: float, freedom: int) -> float:
    """Return a quantile of Student's t distribution.

    Closed forms for one and two degrees of freedom, else Abramowitz and Stegun 1964, equation 26.7.5, whose error at
    97.5 % is 0.12 % with three degrees of freedom and below 0.03 % with more.

    Args:
        share: Share, from 0 to 1, exclusive.
        freedom: Degrees of freedom, at least 1.
    """
    if freedom == 1:
        return math.tan(math.pi * (share - 0.5))
    if freedom == 2:
        return (2 * share - 1) * math.sqrt(2 / (4 * share * (1 - share)))
    z = statistics.NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92_160,
    )
    return z + math.fsum(term / float(freedom) ** power for power, term in enumerate(terms, start=1))
