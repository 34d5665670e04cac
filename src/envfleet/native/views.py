"""Extensions of numba for every target: views of rows, records on the stack, draws, and `clip` of numbers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet.native.rng import METHODS, find_method


def make_row_view(intrinsic: Any, types: Any, shape: tuple[int, ...], *, is_interleaved: bool = False) -> Any:
    """Make an intrinsic `(flat, index)` that returns row `index` of a flat array as a view of constant shape.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
        shape: Shape of a row.
        is_interleaved: True if `flat` has the first elements of all rows, and the second ones follow it, and so on.
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
    """Make an intrinsic `(address, size)` that returns the flat array at an address.

    Args:
        intrinsic: The target's decorator.
        types: The target's types.
        from_dtype: The target's function for the type of a dtype.
        address_space: Address space of the memory, in the target's numbers; 0 for any.
        dtype: Dtype of an element.
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
    """Generate an array over memory; data, shape, strides and size are values of the code."""
    array = context.make_array(kind)(context, builder)
    context.populate_array(array, data=data, shape=shape, strides=strides, itemsize=item_bytes, meminfo=None)
    return array._getvalue()  # noqa: SLF001  # as numba does


def make_new_record(
    intrinsic: Any, allocate_once: Any, from_dtype: Any, dtype: np.dtype[Any], alignment: int | None = None
) -> Any:
    """Make an intrinsic without arguments that returns a record on the stack, which LLVM turns into registers.

    Args:
        intrinsic: The target's decorator.
        allocate_once: The target's function for memory on the stack.
        from_dtype: The target's function for the type of a dtype.
        dtype: Dtype of the record.
        alignment: Alignment of the memory, in bytes; by default the target's.
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
    """Make the type of a generator: a record of `RNG_DTYPE` with the methods of `rng`.

    It is a separate type, so that other records with fields such as `normal` keep these.

    Args:
        extending: The target's module of decorators.
        types: The target's types.
        model: The target's data model of records.
        record: The target's type of a record of `RNG_DTYPE`.
        make_function: The target's `FunctionTree`.
        **options: Options of the target's decorators.
    """

    class Generator(types.Record):
        """Record with methods, which numba finds before the fields because this is a subclass."""

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
    """Make an intrinsic `(record)` that returns a record of `RNG_DTYPE` as one of the type `generator`."""

    @intrinsic
    def as_generator(_context: Any, value: Any) -> Any:
        return generator(value), lambda _context, _builder, _signature, args: args[0]

    return as_generator


def clip(a: Any, a_min: Any, a_max: Any, out: Any = None) -> Any:
    """Clip numbers, as `np.clip`, which numba has for arrays only; kernels get this instead."""
    raise NotImplementedError("for compiled code only")


def add_clip(extending: Any, types: Any) -> None:
    """Register `clip` with a target."""

    @extending.overload(clip)
    def choose_clip(a, a_min, a_max, out=None):  # type: ignore[no-untyped-def]  # numba compares the signatures
        if all(isinstance(kind, (types.Number, types.Boolean)) for kind in (a, a_min, a_max)):
            return lambda a, a_min, a_max, out=None: np.minimum(np.maximum(a, a_min), a_max)
        return lambda a, a_min, a_max, out=None: np.clip(a, a_min, a_max, out)
