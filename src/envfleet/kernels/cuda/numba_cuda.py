"""What numba-cuda needs to compile kernels for CUDA devices; imported with the first kernel that is."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda import cgutils, types
from numba.cuda.core.errors import NumbaError, NumbaPerformanceWarning, TypingError
from numba.cuda.cudadrv import nvvm
from numba.cuda.descriptor import cuda_target
from numba.cuda.extending import intrinsic, overload, overload_method
from numba.cuda.np.numpy_support import as_dtype, from_dtype

from envfleet.errors import KernelError
from envfleet.kernels import rng as rng_functions
from envfleet.kernels.assignments import describe_typed_loss
from envfleet.kernels.explaining import explain
from envfleet.kernels.jitting import FunctionTree
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.rng import RNG_DTYPE
from envfleet.kernels.views import make_row_view, scalar_clip

_RECORD_ALIGNMENT = 16  # bytes; LLVM gives memory of unnamed bytes none, and devices refuse unaligned access

kernel = cuda.jit(cache=True)
"""Makes a function one that is launched."""

make_function = FunctionTree(cuda.jit(device=True))
"""Makes a user's function, and all that it calls, compilable."""

_RNG_TYPE = from_dtype(RNG_DTYPE)


def _attach(name: str, function: Callable[..., Any]) -> None:
    """Make `rng.name(...)` call `function(rng, ...)`."""
    compiled = make_function(function)
    of_int = make_function(rng_functions.INT_METHODS.get(name, function))

    def choose(rng: Any, *args: Any, **kwargs: Any) -> Any:
        is_int = isinstance(next(iter((*args, *kwargs.values())), None), types.Integer)
        return None if rng != _RNG_TYPE else of_int.py_func if is_int else compiled.py_func

    choose.__signature__ = inspect.signature(compiled.py_func)  # type: ignore[attr-defined]  # numba compares it
    overload_method(types.Record, name)(choose)


for _name, _function in rng_functions.METHODS.items():
    _attach(_name, _function)


@overload(np.clip)
def _clip(a, a_min, a_max):  # type: ignore[no-untyped-def]  # numba compares what is annotated
    return scalar_clip(types, a, a_min, a_max)


def new_record(dtype: np.dtype[Any]) -> Any:
    """Return an intrinsic without arguments: a record of the thread's own, for the compiler to turn into registers."""
    record = from_dtype(dtype if dtype.names else np.dtype([("unused", np.uint8)]))

    @intrinsic
    def allocate(_context: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
            memory = cgutils.alloca_once(builder, context.get_data_type(record))
            memory.align = _RECORD_ALIGNMENT
            return memory

        return record(), generate

    return allocate


def array_at(dtype: np.dtype[Any]) -> Any:
    """Return an intrinsic `(address, size)`: the flat array of `dtype` that lies there."""
    element = from_dtype(dtype)
    result = types.Array(element, 1, "C")

    @intrinsic
    def view(_context: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data_type = context.get_data_type(element)
            item_bytes = context.get_constant(types.intp, context.get_abi_sizeof(data_type))
            length = context.cast(builder, args[1], signature.args[1], types.intp)
            # By way of the global address space, so that loads and stores need not find out which one it is.
            place = builder.inttoptr(args[0], data_type.as_pointer(nvvm.ADDRSPACE_GLOBAL))
            target = context.make_array(result)(context, builder)
            context.populate_array(
                target,
                data=builder.addrspacecast(place, data_type.as_pointer()),
                shape=[length],
                strides=[item_bytes],
                itemsize=item_bytes,
                meminfo=None,
            )
            return target._getvalue()  # noqa: SLF001  # numba's own way

        return result(types.int64, types.int64), generate

    return view


def row_view(shape: tuple[int, ...]) -> Any:
    """Return an intrinsic `(flat, index)`: see `make_row_view`."""
    return make_row_view(intrinsic, types, shape)


def address_of(array: Any) -> int:
    """Return where a device array, or one that is mapped to the device, begins."""
    return int(array.device_ctypes_pointer.value)


def launcher(entry: Any, blocks: int, threads: int) -> Any:
    """Return what launches an entry point on so many threads; few sub-environments are no mistake to be warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumbaPerformanceWarning)
        return entry[blocks, threads]


_compile_ir = nvvm.compile_ir
_compiling = threading.Lock()


@contextlib.contextmanager
def translating(spec: KernelSpec) -> Iterator[None]:
    """Wrap compilation: products and sums are not contracted, assignments lose nothing, and errors are explained.

    The CPU's compiler does not contract either, so that both give the same numbers. numba-cuda offers no option for
    it and no pass of one's own, but both go through functions that can be stood in for.

    Raises:
        KernelError: From numba's own error.
    """

    def compile_uncontracted(ir: Any, **options: Any) -> Any:
        return _compile_ir(ir, **options, fma=0)

    context = cuda_target.typing_context
    resolve = type(context).resolve_setattr

    def resolve_assignment(record: Any, name: str, value: Any) -> Any:
        loss = describe_typed_loss(types, as_dtype, record, name, value)
        if loss:
            raise TypingError(loss)
        return resolve(context, record, name, value)

    with _compiling:
        nvvm.compile_ir, context.resolve_setattr = compile_uncontracted, resolve_assignment
        try:
            yield
        except NumbaError as error:
            raise KernelError(explain(spec, error)) from error
        finally:
            nvvm.compile_ir = _compile_ir
            del context.resolve_setattr
