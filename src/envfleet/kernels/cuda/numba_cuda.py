"""Compiler of user functions for CUDA: the intrinsics, decorators and contexts that numba-cuda needs.

Imported when the first kernel is compiled for CUDA, since it imports numba-cuda. Compilation replaces some of its
functions and contexts (`translating`), since numba-cuda lacks options for them.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, extending, types
from numba.cuda.core.errors import NumbaPerformanceWarning, TypingError
from numba.cuda.cudadrv import driver, nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import intrinsic
from numba.cuda.np.numpy_support import as_dtype, from_dtype

from envfleet.native import views
from envfleet.native.jitting import FunctionTree
from envfleet.native.rng import RNG_DTYPE
from envfleet.native.rules import follow_rules, make_read_only

_MOST_SUMS = 32  # outputs of a layer that a thread sums in registers
_RECORD_ALIGNMENT = 16  # bytes; LLVM does not align untyped memory, and devices reject unaligned access

kernel = cuda.jit(cache=True)
"""Decorator of functions that are launched."""

make_function = FunctionTree(cuda.jit(device=True))
"""Decorator of user functions and everything that they call."""

views.add_clip(extending, types)
_generator = views.make_generator_type(
    extending, types, extending.core_models.RecordModel, from_dtype(RNG_DTYPE), make_function
)
as_generator = views.make_generator_cast(intrinsic, _generator)
new_record = functools.partial(
    views.make_new_record, intrinsic, cgutils.alloca_once, from_dtype, alignment=_RECORD_ALIGNMENT
)
row_view = functools.partial(views.make_row_view, intrinsic, types)
# The address space is global, so that loads and stores do not determine it at run time.
array_at = functools.partial(views.make_array_at, intrinsic, types, from_dtype, nvvm.ADDRSPACE_GLOBAL)
read_only = make_read_only(intrinsic, types)
interleaved_row_view = functools.partial(views.make_row_view, intrinsic, types, is_interleaved=True)


def row_copy(length: int, *, is_read: bool) -> Any:
    """Return an intrinsic `(elements, row, own)` that copies an interleaved row to the thread's memory, or back."""

    @intrinsic
    def copy(_context: Any, elements: Any, row: Any, own: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            lane = context.make_array(elements)(context, builder, args[0])
            here = context.make_array(own)(context, builder, args[2]).data if isinstance(own, types.Array) else args[2]
            here = builder.bitcast(here, lane.data.type)
            with cgutils.for_range(builder, context.get_constant(types.intp, length)) as loop:
                far = builder.gep(lane.data, [builder.add(args[1], builder.mul(loop.index, lane.nitems))])
                near = builder.gep(here, [loop.index])
                source, target = (far, near) if is_read else (near, far)
                builder.store(builder.load(source), target)
            return context.get_dummy_value()

        return types.void(elements, types.intp, own), generate

    return copy


def dense(inputs: int, outputs: int, place: int) -> Any:
    """Return an intrinsic `(weights, x, first, step, y)` that evaluates a layer from elements of `x` to `y`.

    Args:
        inputs: Number of inputs.
        outputs: Number of outputs, a multiple of 4: four neighboring weights are loaded by one instruction.
        place: Offset in `weights` of the biases, which each input's weights follow.
    """
    four = ir.VectorType(ir.FloatType(), 4)

    @intrinsic
    def multiply(_context: Any, weights: Any, x: Any, _first: Any, _step: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            arrays = ((weights, args[0]), (x, args[1]), (y, args[4]))
            numbers, values, results = (
                context.make_array(kind)(context, builder, value).data for kind, value in arrays
            )
            whole = functools.partial(context.get_constant, types.intp)

            def weights_of(row: Any, low: int, count: int) -> Iterator[Any]:
                for start in range(place + low, place + low + count, 4):
                    at = builder.gep(numbers, [builder.add(whole(start), builder.mul(row, whole(outputs)))])
                    loaded = builder.load(builder.bitcast(at, four.as_pointer()), align=16)
                    yield from (builder.extract_element(loaded, whole(k)) for k in range(4))

            for low in range(0, outputs, _MOST_SUMS):
                count = min(_MOST_SUMS, outputs - low)
                sums = [cgutils.alloca_once_value(builder, bias) for bias in weights_of(whole(0), low, count)]
                with cgutils.for_range(builder, whole(inputs)) as loop:
                    at = builder.gep(values, [builder.add(args[2], builder.mul(loop.index, args[3]))])
                    value = context.cast(builder, context.unpack_value(builder, x.dtype, at), x.dtype, types.float32)
                    row = builder.add(loop.index, whole(1))
                    for weight, total in zip(weights_of(row, low, count), sums, strict=True):
                        builder.store(builder.fma(weight, value, builder.load(total)), total)
                for k, total in enumerate(sums):
                    builder.store(builder.load(total), builder.gep(results, [whole(low + k)]))
            return context.get_dummy_value()

        return types.void(weights, x, types.intp, types.intp, y), generate

    return multiply


def address_of(array: Any) -> int:
    """Return the address of a device array, or of one that is mapped to the device."""
    return int(array.device_ctypes_pointer.value)


def clear(memory: Any, stream: Any) -> None:
    """Set device memory to 0, in the order of the stream."""
    driver.device_memset(memory, 0, memory.size, stream)


def launcher(entry: Any, blocks: int, threads: int, stream: Any) -> Any:
    """Return the launcher of an entry point, without numba's warning about few blocks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return entry[blocks, threads, stream]


_compile_ir = nvvm.compile_ir
_compiling = threading.Lock()


@functools.cache
def _ruled_contexts() -> tuple[Any, Any]:
    """Return the typing and target contexts of kernels; other code keeps the compiler's contexts."""
    typing = follow_rules(cuda_target.typing_context, types, as_dtype, TypingError)
    return typing, cuda_target.target_context.subtarget(typing_context=typing, cached_internal_func={})


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Wrap compilation: products and sums are not contracted, and kernels follow the rules.

    Code for the CPU is not contracted either, so both give the same numbers. numba-cuda lacks options for this, so its
    functions and contexts are replaced meanwhile.
    """

    def compile_uncontracted(ir: Any, **options: Any) -> Any:
        return _compile_ir(ir, **options, fma=0)

    with _compiling:
        ruled, original = _ruled_contexts(), (cuda_target.typing_context, cuda_target.target_context)
        cuda_target._typingctx, cuda_target._targetctx = ruled  # noqa: SLF001  # private, but without an alternative
        nvvm.compile_ir = compile_uncontracted
        try:
            yield
        finally:
            nvvm.compile_ir = _compile_ir
            cuda_target._typingctx, cuda_target._targetctx = original  # noqa: SLF001  # see above
