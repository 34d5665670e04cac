"""Views of rows and limits of numbers for compiled code, the same for every target of numba."""

from __future__ import annotations

from typing import Any

import numpy as np


def make_row_view(intrinsic: Any, types: Any, shape: tuple[int, ...]) -> Any:
    """Make an intrinsic `(flat, index)`: row `index` of a flat array as a view of constant `shape`.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
        shape: Of a row.
    """
    size = int(np.prod(shape, dtype=np.int64))

    @intrinsic  # type: ignore[untyped-decorator]  # numba's
    def view(_context: Any, flat: Any, index: Any) -> Any:
        result = types.Array(flat.dtype, len(shape), "C")

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            def constant(value: int) -> Any:
                return context.get_constant(types.intp, value)

            source = context.make_array(flat)(context, builder, args[0])
            item_bytes = context.get_abi_sizeof(context.get_data_type(flat.dtype))
            strides = [item_bytes * int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
            target = context.make_array(result)(context, builder)
            context.populate_array(
                target,
                data=builder.gep(source.data, [builder.mul(args[1], constant(size))]),
                shape=[constant(length) for length in shape],
                strides=[constant(stride) for stride in strides],
                itemsize=constant(item_bytes),
                meminfo=None,
            )
            return target._getvalue()  # noqa: SLF001  # numba's own way

        return result(flat, types.intp), generate

    return view


def scalar_clip(types: Any, a: Any, a_min: Any, a_max: Any) -> Any:
    """`np.clip` of numbers for a target of numba, whose own is for arrays; `None` where anything else is given."""
    if not all(isinstance(one, (types.Number, types.Boolean)) for one in (a, a_min, a_max)):
        return None
    return lambda a, a_min, a_max: np.minimum(np.maximum(a, a_min), a_max)
