"""Tiles of products of float32 matrices, as explicit vector code for the processor at hand.

A tile of the result stays in registers while the loop runs over what is summed; the right matrix lies in panels of a
few vectors, one after another (Goto and van de Geijn 2008, doi:10.1145/1356052.1356053).
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from envfleet.kernels.numba_private import cgutils
from envfleet.kernels.rollouts.vectors import LANES, VECTOR, fused, spread, word

TILE_ROWS = 8 if LANES == 16 else 6  # two vectors of sums for each leave registers for the factors
TILE_COLUMNS = 2 * LANES


def _tile_of(vectors: int) -> Any:
    @intrinsic
    def tile(context, left, apart, along, panel, result):  # type: ignore[no-untyped-def]  # numba reads the signature
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, apart, along, _, _ = arguments
            left, panel, result = (
                context.make_array(signature.args[k])(context, builder, arguments[k]) for k in (0, 3, 4)
            )

            def vector_at(array: Any, row: Any, number: int) -> Any:
                bytes_apart = builder.extract_value(array.strides, 0)
                place = builder.add(builder.mul(row, bytes_apart), word(4 * number * LANES))
                return cgutils.pointer_add(builder, array.data, place, VECTOR.as_pointer())

            nothing = ir.Constant(VECTOR, [0.0] * LANES)
            sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(vectors)] for _ in range(TILE_ROWS)]
            for one in itertools.chain(*sums):
                builder.store(nothing, one)
            with cgutils.for_range(builder, builder.extract_value(panel.shape, 0)) as loop:
                k = loop.index
                given = [builder.load(vector_at(panel, k, v), align=4) for v in range(vectors)]
                for row, of_row in enumerate(sums):
                    place = builder.add(builder.mul(word(row), apart), builder.mul(k, along))
                    factor = spread(builder, left.data, place)
                    for one, value in zip(of_row, given, strict=True):
                        builder.store(fused(builder, factor, value, builder.load(one)), one)
            for row, of_row in enumerate(sums):
                for v, one in enumerate(of_row):
                    builder.store(builder.load(one), vector_at(result, word(row), v), align=4)
            return context.get_dummy_value()

        return types.void(left, types.intp, types.intp, panel, result), generate

    return tile


write_tile, write_narrow_tile = _tile_of(2), _tile_of(1)
"""`write_tile(left, apart, along, panel, result)`.

It multiplies the first `TILE_ROWS` rows of `left`, whose elements lie `apart` from row to row and `along` from column
to column, by a panel `(inner, TILE_COLUMNS)`, or `(inner, LANES)` of a narrow tile.
"""
