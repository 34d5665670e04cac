"""Tiles of products of float32 matrices, as explicit vector code for the processor at hand.

A tile of the result stays in registers while the loop runs over what is summed; the right matrix lies in panels of two
vectors, one after another (Goto and van de Geijn 2008, doi:10.1145/1356052.1356053).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from envfleet.kernels.numba_private import cgutils
from envfleet.kernels.rollouts.vectors import LANES, VECTOR, fused, spread, word

TILE_ROWS = 8 if LANES == 16 else 6  # two vectors of sums for each leave registers for the factors
TILE_COLUMNS = 2 * LANES


@intrinsic
def write_tile(context, left, apart, along, panel, result):  # type: ignore[no-untyped-def]  # numba reads the signature
    """Multiply the first `TILE_ROWS` rows of `left` by a panel, `(inner, TILE_COLUMNS)`.

    Elements of `left` lie `apart` from row to row and `along` from column to column.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, apart, along, _, _ = arguments
        left, panel, result = (context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 3, 4))

        def vector_at(array: Any, row: Any, lane: int) -> Any:
            place = builder.add(builder.mul(row, builder.extract_value(array.strides, 0)), word(4 * lane))
            return cgutils.pointer_add(builder, array.data, place, VECTOR.as_pointer())

        places = [(row, lane) for row in range(TILE_ROWS) for lane in (0, LANES)]
        sums = {place: cgutils.alloca_once(builder, VECTOR) for place in places}
        for one in sums.values():
            builder.store(ir.Constant(VECTOR, [0.0] * LANES), one)
        with cgutils.for_range(builder, builder.extract_value(panel.shape, 0)) as loop:
            given = {lane: builder.load(vector_at(panel, loop.index, lane), align=4) for lane in (0, LANES)}
            start = builder.mul(loop.index, along)
            factors = [
                spread(builder, left.data, builder.add(builder.mul(word(row), apart), start))
                for row in range(TILE_ROWS)
            ]
            for (row, lane), one in sums.items():
                builder.store(fused(builder, factors[row], given[lane], builder.load(one)), one)
        for (row, lane), one in sums.items():
            builder.store(builder.load(one), vector_at(result, word(row), lane), align=4)
        return context.get_dummy_value()

    return types.void(left, types.intp, types.intp, panel, result), generate
