"""Layers and softmax of a network as LLVM vector code: rows in lanes, sums in registers.

Problem. A network that acts must give the same bits for an observation wherever its row stands and however many rows
there are, and be fast for blocks of rows.

What does not work. BLAS: it adds in another order for other numbers of rows. Loops compiled by numba: LLVM keeps the
sums of a layer in memory.

Solution. A block's numbers lie as `(width, BLOCK_ROWS)`, aligned to 64 bytes. A layer is computed in tiles of a few
outputs and vectors of rows; their sums start with the bias and stay in registers during the loop over the inputs, and
the activation is applied before the only store. Every row takes the same path, so its result does not depend on other
rows, although products and sums are contracted.

What remains. Results differ between processors with and without AVX-512 or FMA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from envfleet.native.layers import BLOCK_ROWS, padded
from envfleet.native.numba_private import cgutils

_IS_WIDE = llvm.get_host_cpu_features().get("avx512f", False)
LANES = 16 if _IS_WIDE else 8
_OUTPUTS, _VECTORS = (4, 4) if _IS_WIDE else (6, 2)  # sums of a tile, which fill the registers

_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
VECTOR, _INTS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INT, LANES)

# tanh(x) = x * P(x * x) / Q(x * x) on |x| <= 8, to 3.8e-7.
TANH_P = (4066341.5, 525601.6875, 11999.875, 46.47190475463867)
TANH_Q = (4066342.0, 1881044.25, 96842.203125, 970.5108032226562, 1.0)
TANH_MOST = 8.0
# Polynomials at Chebyshev nodes: e**r - 1 - r over r**2 on |r| <= ln(2) / 2, to 8e-8 of the result, and
# log(1 + t) - t + t**2 / 2 over t**3 for 1 + t from sqrt(1/2) to sqrt(2), to 3e-7.
_EXP = (0.5, 0.1666666716337204, 0.041666463017463684, 0.00833331048488617, 0.0013933731243014336, 0.000198910798644647)
_LOG = (
    *(0.3333333134651184, -0.2499999701976776, 0.20000715553760529, -0.1666780263185501, 0.14249058067798615),
    *(-0.12425687164068222, 0.11685419827699661, -0.11479733884334564, 0.06971611827611923),
)
_LOG2_E, _LN2_1, _LN2_2 = 1.4426950408889634, 0.693145751953125, 1.428606765330187e-06
_ROUNDER, _LEAST = 12582912.0, -87.0  # 1.5 * 2**23 rounds to an integer; e**-87 is close to the smallest normal number
_HALF_ROOT_BITS, _MANTISSA_BITS = 0x3F3504F3, 23  # of sqrt(1/2)

Code = Any
"""Value in LLVM's intermediate code."""


def dense(inputs: int, outputs: int, place: int, activation: str) -> Any:
    """Make the compiled function `layer(weights, x, y)` of a layer.

    Args:
        inputs: Number of inputs; `x` is `(inputs, BLOCK_ROWS)`.
        outputs: Number of outputs; `y` is `(outputs, BLOCK_ROWS)`.
        place: Offset of the layer in `weights`, which `layers.flatten` joined.
        activation: `"tanh"`, `"relu"` or `""`.
    """

    @intrinsic
    def layer(context, weights, x, y):  # type: ignore[no-untyped-def]  # numba reads the signature
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Code:
            data = [
                context.make_array(t)(context, builder, a).data for t, a in zip(signature.args, arguments, strict=True)
            ]
            form = inputs, outputs, place
            for first, count, step in _spans(outputs):
                turns = word(count // step), word(BLOCK_ROWS // (LANES * _VECTORS))
                with cgutils.for_range(builder, turns[0]) as j, cgutils.for_range(builder, turns[1]) as r:
                    output = builder.add(word(first), builder.mul(j.index, word(step)))
                    row = builder.mul(r.index, word(LANES * _VECTORS))
                    _write_tile(builder, data, form, activation, step, output, row)
            return context.get_dummy_value()

        return types.void(weights, x, y), generate

    return layer


def _spans(outputs: int) -> list[tuple[int, int, int]]:
    """Divide outputs into tiles: start, number of outputs and outputs per tile, of whole tiles and of the rest."""
    whole = outputs - outputs % _OUTPUTS
    return [span for span in ((0, whole, _OUTPUTS), (whole, outputs - whole, outputs - whole)) if span[1]]


def _write_tile(
    builder: Any, data: Sequence[Code], form: tuple[int, int, int], activation: str, count: int, output: Code, row: Code
) -> None:
    """Compute `count` outputs, starting at `output`, of `_VECTORS` vectors of rows, starting at `row`."""
    (weights, x, y), (inputs, outputs, place) = data, form
    sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(_VECTORS)] for _ in range(count)]
    for n, vectors in enumerate(sums):
        bias = spread(builder, weights, builder.add(output, word(place + n)))
        for total in vectors:
            builder.store(bias, total)
    at_once, width = 4 if inputs % 4 == 0 else 1, padded(outputs)
    with cgutils.for_range(builder, word(inputs // at_once)) as turn:
        for part in range(at_once):
            k = builder.add(builder.mul(turn.index, word(at_once)), word(part))
            start = builder.add(builder.mul(k, word(BLOCK_ROWS)), row)
            values = [_load(builder, x, start, v * LANES) for v in range(_VECTORS)]
            first = builder.add(output, builder.mul(k, word(width)))
            for n, vectors in enumerate(sums):
                weight = spread(builder, weights, builder.add(first, word(place + width + n)))
                for total, value in zip(vectors, values, strict=True):
                    builder.store(fused(builder, weight, value, builder.load(total)), total)
    for n, vectors in enumerate(sums):
        start = builder.add(builder.mul(builder.add(output, word(n)), word(BLOCK_ROWS)), row)
        for v, total in enumerate(vectors):
            value = _ACTIVATIONS[activation](builder, builder.load(total))
            _store(builder, value, y, start, v * LANES)


def spread(builder: Any, data: Code, index: Code) -> Code:
    """Load a number into every lane."""
    number = builder.load(builder.gep(data, [index]))
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(_INT, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_INTS, [0] * LANES))


def softmax(choices: int) -> Any:
    """Make the compiled function `sums(y, z)` of a block of logits `y`, `(choices, BLOCK_ROWS)`.

    It writes to `y` the cumulative sums of e**(logit - largest), and to `z` the logarithms of the probabilities.
    """

    @intrinsic
    def sums(context, y, z):  # type: ignore[no-untyped-def]  # numba reads the signature
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Code:
            target, logs = (
                context.make_array(t)(context, builder, a).data for t, a in zip(signature.args, arguments, strict=True)
            )
            with cgutils.for_range(builder, word(BLOCK_ROWS // LANES)) as turn:
                row = builder.mul(turn.index, word(LANES))
                logits = [_load(builder, target, row, j * BLOCK_ROWS) for j in range(choices)]
                largest = logits[0]
                for logit in logits[1:]:
                    largest = builder.select(builder.fcmp_ordered(">", logit, largest), logit, largest)
                total, shifted = _numbers(0.0), [builder.fsub(logit, largest) for logit in logits]
                for j, value in enumerate(shifted):
                    total = builder.fadd(total, _exp(builder, value))
                    _store(builder, total, target, row, j * BLOCK_ROWS)
                log_total = _log(builder, total)
                for j, value in enumerate(shifted):
                    _store(builder, builder.fsub(value, log_total), logs, row, j * BLOCK_ROWS)
            return context.get_dummy_value()

        return types.void(y, z), generate

    return sums


# ---------------------------------------------------------------------- functions of vectors


def _tanh(builder: Any, x: Code) -> Code:
    """Return the hyperbolic tangent, with errors up to 4e-7; NaN for NaN."""
    for sign, bound in (("<", -TANH_MOST), (">", TANH_MOST)):
        x = builder.select(builder.fcmp_ordered(sign, x, _numbers(bound)), _numbers(bound), x)
    z = builder.fmul(x, x)
    above, below = (_polynomial(builder, z, coefficients) for coefficients in (TANH_P, TANH_Q))
    return builder.fdiv(builder.fmul(x, above), below)


def _relu(builder: Any, x: Code) -> Code:
    return builder.select(builder.fcmp_ordered("<", x, _numbers(0.0)), _numbers(0.0), x)


_ACTIVATIONS: dict[str, Callable[[Any, Code], Code]] = {"tanh": _tanh, "relu": _relu, "": lambda _, x: x}


def _exp(builder: Any, x: Code) -> Code:
    """Return e to the power of numbers up to 0."""
    x = builder.select(builder.fcmp_ordered("<", x, _numbers(_LEAST)), _numbers(_LEAST), x)
    shifted = fused(builder, x, _numbers(_LOG2_E), _numbers(_ROUNDER + 127))  # its last bits are the exponent
    doublings = builder.fsub(shifted, _numbers(_ROUNDER + 127))
    r = fused(builder, doublings, _numbers(-_LN2_1), x)
    r = fused(builder, doublings, _numbers(-_LN2_2), r)
    grown = fused(builder, _polynomial(builder, r, _EXP), builder.fmul(r, r), r)
    bits = builder.shl(builder.bitcast(shifted, _INTS), _ints(_MANTISSA_BITS))
    return builder.fmul(builder.fadd(grown, _numbers(1.0)), builder.bitcast(bits, VECTOR))


def _log(builder: Any, x: Code) -> Code:
    """Return the logarithm of positive normal numbers."""
    bits = builder.bitcast(x, _INTS)
    exponent = builder.ashr(builder.sub(bits, _ints(_HALF_ROOT_BITS)), _ints(_MANTISSA_BITS))
    mantissa = builder.bitcast(builder.sub(bits, builder.shl(exponent, _ints(_MANTISSA_BITS))), VECTOR)
    doublings, t = builder.sitofp(exponent, VECTOR), builder.fsub(mantissa, _numbers(1.0))
    z = builder.fmul(t, t)
    bend = builder.fmul(builder.fmul(_polynomial(builder, t, _LOG), t), z)
    bend = fused(builder, z, _numbers(-0.5), fused(builder, doublings, _numbers(_LN2_2), bend))
    return fused(builder, doublings, _numbers(_LN2_1), builder.fadd(t, bend))


def _polynomial(builder: Any, x: Code, coefficients: Sequence[float]) -> Code:
    """Evaluate a polynomial by Horner's scheme; coefficients are in ascending order."""
    value = _numbers(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = fused(builder, value, x, _numbers(coefficient))
    return value


def fused(builder: Any, a: Code, b: Code, c: Code) -> Code:
    """Return `a * b + c`, rounded once if the processor supports it."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [a, b, c])


# ---------------------------------------------------------------------- constants and memory


def _numbers(value: float) -> Code:
    return ir.Constant(VECTOR, [float(np.float32(value))] * LANES)


def _ints(value: int) -> Code:
    return ir.Constant(_INTS, [value] * LANES)


def word(value: int) -> Code:
    """Return a constant of the type of an index."""
    return ir.Constant(cgutils.intp_t, value)


def _load(builder: Any, data: Code, index: Code, more: int) -> Code:
    return builder.load(vector_at(builder, data, index, more), align=4 * LANES)


def _store(builder: Any, value: Code, data: Code, index: Code, more: int) -> None:
    builder.store(value, vector_at(builder, data, index, more), align=4 * LANES)


def vector_at(builder: Any, data: Code, index: Code, more: int) -> Code:
    """Return a pointer to the vector of numbers at an index plus `more`."""
    place = builder.gep(data, [builder.add(index, word(more))])
    return builder.bitcast(place, VECTOR.as_pointer())
