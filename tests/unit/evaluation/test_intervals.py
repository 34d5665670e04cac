"""Confidence intervals against published tables."""

from __future__ import annotations

import math

import pytest

from envfleet.evaluation.intervals import student, t_quantile, wilson

# 97.5 % quantiles of Student's t by degrees of freedom: Abramowitz and Stegun 1964, table 26.10.
QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 29: 2.045, 120: 1.980}


@pytest.mark.parametrize(("freedom", "quantile"), QUANTILES.items())
def test_quantiles_are_those_of_the_table(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=0.0015)


def test_an_interval_of_a_mean_is_students() -> None:
    assert student([9.0, 10.0, 11.0, 12.0, 13.0]) == pytest.approx((9.0368, 12.9632), abs=0.001)
    assert student([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert all(math.isnan(bound) for bound in student([1.0]))


def test_an_interval_of_a_share_is_wilsons() -> None:
    # Brown, Cai, DasGupta 2001: R's binom.confint(3, 10, methods="wilson").
    assert wilson(3, 10) == pytest.approx((0.10779, 0.60322), abs=1e-5)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
