"""Line charts as numbers for a template of SVG; the style sheet has the colours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hosting import Mark

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 8.0, 8.0, 22.0
_BUCKETS = 160
"""Lines with more points than two of each are thinned to their extremes."""


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart. Positions are in units of its `viewBox`, y downwards.

    Attributes:
        title: Title of the chart.
        unit: Unit of the values.
        summary: The chart in words, for screen readers.
        width: Width of the box.
        height: Height of the box.
        frame: `(left, top, right, bottom)` of the plot in it.
        line: Path of the line.
        dots: Path of faint dots under it; empty for none.
        marks: `(x, tone)` of vertical lines.
        x_ticks: `(x, text)`.
        y_ticks: `(y, text)`.
        x_label: Under the axis.
    """

    title: str
    unit: str
    summary: str
    width: float
    height: float
    frame: tuple[float, float, float, float]
    line: str
    dots: str
    marks: tuple[tuple[float, str], ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    x_label: str


def draw(
    title: str,
    values: ArrayLike,
    *,
    unit: str = "",
    x_label: str = "steps",
    size: tuple[float, float] = (340.0, 140.0),
    at: ArrayLike | None = None,
    marks: Sequence[Mark] = (),
    dots: ArrayLike = (),
) -> Chart:
    """Draw values as a line.

    Args:
        title: Title of the chart.
        values: Values of the line, `(points,)`; gaps where they are not finite.
        unit: Unit of the values.
        x_label: Under the axis.
        size: Width and height of the box.
        at: Places on the x axis, `(points,)`; 1, 2, … if not given.
        marks: Vertical lines.
        dots: Values shown as dots at the same places, `(points,)` or none.
    """
    y, cloud = np.asarray(values, np.float64), np.asarray(dots, np.float64)
    x = np.arange(1.0, len(y) + 1.0) if at is None else np.asarray(at, np.float64)
    low, high, y_ticks = _scale(np.concatenate((y, cloud)), 4)
    end = max(float(x[-1]), 1.0) if len(x) else 1.0
    left, top, right, bottom = _LEFT, _TOP, size[0] - _RIGHT, size[1] - _BOTTOM

    def across(place: float) -> float:
        return left + place / end * (right - left)

    def down(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    def points(places: NDArray[np.float64], heights: NDArray[np.float64]) -> list[str]:
        pairs = zip(places.tolist(), heights.tolist(), strict=True)
        return [f"{across(place):.1f} {down(height):.1f}" if math.isfinite(height) else "" for place, height in pairs]

    indices, dot_indices = _thin(y), _thin(cloud)
    line = points(x[indices], y[indices])
    faint = points(x[dot_indices], cloud[dot_indices]) if len(cloud) or len(y) > 1 else line  # a line needs two points
    return Chart(
        title=title,
        unit=unit,
        summary=_summarise(y),
        width=size[0],
        height=size[1],
        frame=(left, top, right, bottom),
        line="".join(
            f"{'L' if before else 'M'}{point}" for before, point in zip(["", *line], line, strict=False) if point
        ),
        dots="".join(f"M{point}h0" for point in faint if point),  # which round ends make visible
        marks=tuple((across(mark.at), mark.tone) for mark in marks),
        x_ticks=tuple((across(tick), text) for tick, text in _ticks(0.0, end, 4, is_whole=True)),
        y_ticks=tuple((down(tick), text) for tick, text in y_ticks),
        x_label=x_label,
    )


def _scale(values: NDArray[np.float64], count: int) -> tuple[float, float, list[tuple[float, str]]]:
    """Lower and upper end of an axis that shows all values, and its ticks."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1.0):
        half = 0.05 * abs(low) or 0.5
        low, high = low - half, high + half
    margin = 0.05 * (high - low)
    low, high = low - margin, high + margin
    return low, high, _ticks(low, high, count)


def _ticks(low: float, high: float, count: int, *, is_whole: bool = False) -> list[tuple[float, str]]:
    """Round numbers from `low` to `high`, about `count` of them, and as text."""
    rough = max((high - low) / count, 1.0 if is_whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(number * step, _text(number * step, step)) for number in range(first, last + 1)]


def _text(value: float, step: float) -> str:
    """Return a tick's number with as many digits as its axis needs.

    >>> _text(1_368_500.0, 500.0), _text(-0.5, 0.25), _text(40.0, 20.0)
    ('1,368.5k', '−0.50', '40')
    """
    suffix = ""
    if abs(value) >= 1e5:
        value, step, suffix = value / 1e3, step / 1e3, "k"
    decimals = min(6, max(0, math.ceil(-math.log10(step) - 1e-9)))
    if decimals and round(step, decimals) != step:
        decimals += 1
    return f"{value:,.{decimals}f}{suffix}".replace("-", "−")


def _thin(y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices that show the same line: the lowest and the highest point of each bucket."""
    if len(y) <= 2 * _BUCKETS:
        return np.arange(len(y))
    indices = {0, len(y) - 1}
    for bucket in np.array_split(np.arange(len(y)), _BUCKETS):
        finite = bucket[np.isfinite(y[bucket])]
        extremes = [np.argmin(y[finite]), np.argmax(y[finite])] if len(finite) else []
        indices.update(finite[extremes].tolist() if extremes else [int(bucket[0])])
    return np.array(sorted(indices))


def _summarise(y: NDArray[np.float64]) -> str:
    finite = y[np.isfinite(y)]
    if not len(finite):
        return "no values"
    ends = f"the first is {finite[0]:.6g}, the last {finite[-1]:.6g}"
    return f"{len(y)} values from {finite.min():.6g} to {finite.max():.6g}; {ends}"
