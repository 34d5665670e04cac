"""Line charts as numbers that a template puts into SVG; colours come from the style sheet."""

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
        title: What is shown.
        unit: Of the values.
        summary: The same in words, for those who do not see it.
        width: Of the box.
        height: Of the box.
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


@dataclasses.dataclass(frozen=True)
class Look:
    """How a chart looks.

    Attributes:
        unit: Of the values.
        x_label: Under the axis.
        size: Width and height of the box.
        is_bars: Whether each point is a bar from zero.
        has_zero: Whether zero is always shown.
    """

    unit: str = ""
    x_label: str = "steps"
    size: tuple[float, float] = (340.0, 140.0)
    is_bars: bool = False
    has_zero: bool = False


class _Plane:
    """Where values are in a chart's box.

    Args:
        size: Width and height of the box.
        across: Ends of the x axis.
        upwards: Ends of the y axis.
    """

    def __init__(self, size: tuple[float, float], across: tuple[float, float], upwards: tuple[float, float]) -> None:
        self.frame = (_LEFT, _TOP, size[0] - _RIGHT, size[1] - _BOTTOM)
        self._across, self._upwards = across, upwards

    def x(self, place: float) -> float:
        low, high = self._across
        return self.frame[0] + (place - low) / (high - low) * (self.frame[2] - self.frame[0])

    def y(self, value: float) -> float:
        low, high = self._upwards
        return self.frame[3] - (value - low) / (high - low) * (self.frame[3] - self.frame[1])

    def line(self, places: list[float], values: list[float]) -> str:
        """Return a path through the points, interrupted where they are not finite."""
        parts, pen = [], "M"
        for place, value in zip(places, values, strict=True):
            if math.isfinite(value):
                parts.append(f"{pen}{self.x(place):.1f} {self.y(value):.1f}")
            pen = "L" if math.isfinite(value) else "M"
        return "".join(parts)

    def bars(self, places: list[float], values: list[float]) -> str:
        """Return a path of bars from zero."""
        pairs = zip(places, values, strict=True)
        zero = f"{self.y(0.0):.1f}"
        return "".join(f"M{self.x(x):.1f} {zero}V{self.y(y):.1f}" for x, y in pairs if math.isfinite(y))

    def dots(self, places: list[float], values: list[float]) -> str:
        """Return a path of points, which round ends make visible."""
        pairs = zip(places, values, strict=True)
        return "".join(f"M{self.x(x):.1f} {self.y(y):.1f}h0" for x, y in pairs if math.isfinite(y))


def draw(
    title: str,
    values: ArrayLike,
    look: Look,
    *,
    at: ArrayLike | None = None,
    marks: Sequence[Mark] = (),
    dots: ArrayLike = (),
) -> Chart:
    """Draw values as a line.

    Args:
        title: What is shown.
        values: Of the line, `(points,)`; gaps where they are not finite.
        look: How it looks.
        at: Places on the x axis, `(points,)`; 1, 2, … if not given.
        marks: Vertical lines.
        dots: Values shown as dots at the same places, `(points,)` or none.
    """
    y, cloud = np.asarray(values, np.float64), np.asarray(dots, np.float64)
    x = np.arange(1.0, len(y) + 1.0) if at is None else np.asarray(at, np.float64)
    low, high, y_ticks = _scale(np.concatenate((y, cloud, [0.0] if look.has_zero else [])), 4)
    right = max(float(x[-1]), 1.0) if len(x) else 1.0
    plane = _Plane(look.size, (0.0, right), (low, high))
    kept, kept_dots = _thin(y), _thin(cloud)
    draw_line = plane.bars if look.is_bars else plane.line
    shown, points = (x[kept_dots], cloud[kept_dots]) if len(cloud) or len(y) > 1 else (x, y)  # one point is no line
    return Chart(
        title=title,
        unit=look.unit,
        summary=_summarise(y),
        width=look.size[0],
        height=look.size[1],
        frame=plane.frame,
        line=draw_line(x[kept].tolist(), y[kept].tolist()),
        dots=plane.dots(shown.tolist(), points.tolist()),
        marks=tuple((plane.x(mark.at), mark.tone) for mark in marks),
        x_ticks=tuple((plane.x(tick), text) for tick, text in _ticks(0.0, right, 4, is_whole=True)),
        y_ticks=tuple((plane.y(tick), text) for tick, text in y_ticks),
        x_label=look.x_label,
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
    kept = {0, len(y) - 1}
    for bucket in np.array_split(np.arange(len(y)), _BUCKETS):
        known = bucket[np.isfinite(y[bucket])]
        kept |= {int(known[np.argmin(y[known])]), int(known[np.argmax(y[known])])} if len(known) else {int(bucket[0])}
    return np.array(sorted(kept))


def _summarise(y: NDArray[np.float64]) -> str:
    finite = y[np.isfinite(y)]
    if not len(finite):
        return "no values"
    ends = f"the first is {finite[0]:.6g}, the last {finite[-1]:.6g}"
    return f"{len(y)} values from {finite.min():.6g} to {finite.max():.6g}; {ends}"
