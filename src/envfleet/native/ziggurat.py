"""Tables of the 256 layers under the normal curve from which NumPy's `standard_normal` draws.

The curve f(x) = exp(-x²/2), x ≥ 0, is covered by 255 boxes and a base with the tail, all of one area. From the
outermost edge inwards each edge follows from the one before: f(next) = f(edge) + area / edge. A draw takes a layer from
8 bits and a place in it, one of 2**52, from 52 more; a place below the next edge is inside the curve.

NumPy's tables were made in float64, so the rounding of each operation is part of them. Here logarithms and exponentials
are rounded correctly on every machine; then all 768 numbers equal NumPy's, except one exponential that its tables have
one unit in the last place higher (layer 38).

Source: G. Marsaglia and W. W. Tsang, "The Ziggurat Method for Generating Random Variables" (2000). NumPy fixes the
details.
"""

from __future__ import annotations

import decimal
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

EDGE: Final = 3.654152885361009
"""Start of the tail: r."""

_AREA = 0.004928673233974652
_PLACES = 2.0**52
_DIGITS = 40  # enough to round the 17 that count correctly


def _log(value: float) -> float:
    return float(decimal.Decimal(value).ln())


def _exp(value: float) -> float:
    return float(decimal.Decimal(value).exp())


def _tables() -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]:
    inside = np.zeros(256, np.uint64)
    width, height = np.ones(256), np.ones(256)
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        edge = EDGE
        height[255] = _exp(-0.5 * edge * edge)
        width[255] = edge / _PLACES
        width[0] = _AREA / float(height[255]) / _PLACES
        inside[0] = round(edge * float(height[255]) / _AREA * _PLACES)
        for layer in range(254, 0, -1):
            inner = math.sqrt(-2.0 * _log(_AREA / edge + float(height[layer + 1])))
            inside[layer + 1] = round(inner / edge * _PLACES)
            width[layer] = inner / _PLACES
            height[layer] = _exp(-0.5 * inner * inner)
            if layer == 38:
                height[layer] = np.nextafter(height[layer], 1.0)
            edge = inner
    return inside, width, height


INSIDE, WIDTH, HEIGHT = _tables()
"""By layer: number of places inside the curve (uint64), edge / 2**52, and height of the curve there (float64)."""


# ---------------------------------------------------------------------- exponential

# NumPy's tables of f(x) = exp(-x) were computed with many digits and rounded at the end; numbers of places are even.
# With this edge the innermost box ends at f(0) = 1.

_CLOSING_EDGE = decimal.Decimal("7.69711747013104971404462804801521549911395551")

EXPONENTIAL_EDGE: Final = float(_CLOSING_EDGE)
"""Start of the tail of the exponential distribution."""


def _exponential_tables() -> tuple[NDArray[np.uint64], NDArray[np.float64], NDArray[np.float64]]:
    inside = np.zeros(256, np.uint64)
    width, height = np.ones(256), np.ones(256)
    with decimal.localcontext(decimal.Context(prec=_DIGITS)):
        places, edge, curve = decimal.Decimal(2) ** 53, _CLOSING_EDGE, (-_CLOSING_EDGE).exp()
        area = (edge + 1) * curve
        inside[0] = int(edge * curve / area * places / 2) * 2
        width[0] = area / curve / places
        for layer in range(255, 0, -1):
            width[layer], height[layer] = edge / places, curve
            curve += area / edge
            inner = -curve.ln()
            if layer > 1:
                inside[layer] = int(inner / edge * places / 2) * 2
            edge = inner
    return inside, width, height


EXPONENTIAL_INSIDE, EXPONENTIAL_WIDTH, EXPONENTIAL_HEIGHT = _exponential_tables()
"""Tables of the exponential distribution, with 2**53 places."""
