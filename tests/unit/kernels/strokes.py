"""Helpers of a sample kernel in a separate module."""

from __future__ import annotations

FACTOR = 3.0


def tripled(value: float) -> float:
    return FACTOR * value


def weighted(value: float, weight: float) -> float:
    return tripled(value) * weight
