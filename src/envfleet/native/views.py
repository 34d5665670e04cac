"""What compiled code has besides what numba has, the same for every target: views of rows, draws, a few functions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.native.rng import METHODS, find_method


def make_row_view(intrinsic: Any, types: Any, shape: tuple[int, ...], *, is_interleaved: bool = False) -> Any:
    """Make an intrinsic `(flat, index)`: row `index` of a flat array as a view of constant `shape`.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
        shape: Of a row.
        is_interleaved: `flat` holds the first elements of all rows; the second ones lie behind it, and so on.
    """
    size = int(np.prod(shape, dtype=np.int64))

    @intrinsic
    def view(_context: Any, flat: Any, index: Any) -> Any:
        result = types.Array(flat.dtype, len(shape), "A" if is_interleaved and shape else "C")

        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            def constant(value: int) -> Any:
                return context.get_constant(types.intp, value)

            source = context.make_array(flat)(context, builder, args[0])
            item_bytes = context.get_abi_sizeof(context.get_data_type(flat.dtype))
            steps = [constant(item_bytes * int(np.prod(shape[axis + 1 :]))) for axis in range(len(shape))]
            strides = [builder.mul(step, source.nitems) for step in steps] if is_interleaved else steps
            first = args[1] if is_interleaved else builder.mul(args[1], constant(size))
            data, lengths = builder.gep(source.data, [first]), [constant(length) for length in shape]
            return make_array(context, builder, result, data, lengths, strides, constant(item_bytes))

        return result(flat, types.intp), generate

    return view


def make_array_at(intrinsic: Any, types: Any, from_dtype: Any, address_space: int, dtype: np.dtype[Any]) -> Any:
    """Make an intrinsic `(address, size)`: the flat array of `dtype` that lies there.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
        from_dtype: The target's function for the type of a dtype.
        address_space: Of the memory, in the target's numbers; 0 for any.
        dtype: Of an element.
    """
    element = from_dtype(dtype)
    result = types.Array(element, 1, "C")

    @intrinsic
    def view(_context: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data_type = context.get_data_type(element)
            item_bytes = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
            length = context.cast(builder, args[1], signature.args[1], types.intp)
            data = builder.inttoptr(args[0], data_type.as_pointer(address_space))
            data = builder.addrspacecast(data, data_type.as_pointer()) if address_space else data
            return make_array(context, builder, result, data, [length], [item_bytes], item_bytes)

        return result(types.int64, types.int64), generate

    return view


def make_array(
    context: Any, builder: Any, kind: Any, data: Any, shape: Sequence[Any], strides: Sequence[Any], item_bytes: Any
) -> Any:
    """Generate an array of a type over memory; all numbers are values of the code."""
    array = context.make_array(kind)(context, builder)
    context.populate_array(array, data=data, shape=shape, strides=strides, itemsize=item_bytes, meminfo=None)
    return array._getvalue()  # noqa: SLF001  # numba's own way


def make_new_record(
    intrinsic: Any, allocate_once: Any, from_dtype: Any, dtype: np.dtype[Any], alignment: int | None = None
) -> Any:
    """Make an intrinsic without arguments: a record on the stack, for the compiler to turn into registers.

    Args:
        intrinsic: The target's decorator.
        allocate_once: The target's function for memory on the stack.
        from_dtype: The target's function for the type of a dtype.
        dtype: Of the record.
        alignment: Of the memory, in bytes, if not the target's.
    """
    record = from_dtype(dtype if dtype.names else np.dtype([("unused", np.uint8)]))

    @intrinsic
    def allocate(_context: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            memory = allocate_once(builder, context.get_data_type(record))
            memory.align = alignment
            return memory

        return record(), generate

    return allocate


def make_generator_type(extending: Any, types: Any, model: Any, record: Any, make_function: Any, **options: Any) -> Any:
    """Make the type of a generator: a record of `RNG_DTYPE` that has the methods of `rng`.

    It is a type of its own, so that records of other programs with fields such as `normal` keep their fields.

    Args:
        extending: The target's module of decorators.
        types: The target's types.
        model: The target's data model of records.
        record: The target's type of a record of `RNG_DTYPE`.
        make_function: Makes functions for the target.
        **options: Of the target's decorators.
    """

    class Generator(types.Record):
        """A record that has methods; the compiler finds those of a subclass before the fields of a record."""

    extending.register_model(Generator)(model)
    fields = [(name, field._asdict()) for name, field in record.fields.items()]
    generator = Generator(fields, record.size, record.aligned)

    def add(name: str) -> None:
        def choose_draw(rng: Any, *args: Any, **kwargs: Any) -> Any:
            is_int = isinstance(next(iter((*args, *kwargs.values())), None), types.Integer)
            is_many = name == "choice" and isinstance(kwargs.get("size", (*args, None, None)[1]), types.Integer)
            return make_function(find_method(name, is_int=is_int, is_many=is_many)).py_func

        compiled = make_function(METHODS[name]).py_func
        choose_draw.__signature__ = inspect.signature(compiled)  # type: ignore[attr-defined]  # numba compares it
        extending.overload_method(Generator, name, **options)(choose_draw)

    for name in METHODS:
        add(name)

    return generator


def make_generator_cast(intrinsic: Any, generator: Any) -> Any:
    """Make an intrinsic `(record)`: the same record of `RNG_DTYPE` as one of the type `generator`."""

    @intrinsic
    def as_generator(_context: Any, value: Any) -> Any:
        return generator(value), lambda _context, _builder, _signature, args: args[0]

    return as_generator


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> Any:
    """Limit numbers, as `np.clip`, which numba has for arrays only: kernels get this in its place."""
    raise NotImplementedError("for compiled code only")


def add_clip(extending: Any, types: Any) -> None:
    """Teach a target of numba `clip`."""

    @extending.overload(clip)
    def choose_clip(a, a_min, a_max, out=None):  # type: ignore[no-untyped-def]  # numba compares what is annotated
        if all(isinstance(one, (types.Number, types.Boolean)) for one in (a, a_min, a_max)):
            return lambda a, a_min, a_max, out=None: np.minimum(np.maximum(a, a_min), a_max)
        return lambda a, a_min, a_max, out=None: np.clip(a, a_min, a_max, out)
