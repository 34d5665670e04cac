"""Stand-in for `kernels.cuda.numba_cuda` under numba's CUDA simulator, which runs kernels as plain Python."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator.kernelapi import FakeCUDAShared
from numpy.typing import NDArray

from envfleet.native import rng as rng_functions
from envfleet.native.rng import RNG_DTYPE

kernel = cuda.jit


def _shared_array(self: Any, shape: Any, dtype: Any) -> Any:
    """Make a block's array once. The simulator's own looks first and then makes it, so two threads may have two."""
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    return self._allocations.setdefault(place, np.empty(shape, dtype))


FakeCUDAShared.array = _shared_array


class Record:
    """One record of named fields, as in compiled code; a generator's has the draws as methods.

    Args:
        values: Where it lies, `(1,)`.
    """

    __slots__ = ("_values",)
    _values: NDArray[Any]

    def __init__(self, values: NDArray[Any]) -> None:
        object.__setattr__(self, "_values", values)

    def __getattr__(self, name: str) -> Any:
        if name in (self._values.dtype.names or ()):
            if self._values.dtype[name].names:
                return Record(self._values[name])
            value = self._values[name][0]
            return value.item() if isinstance(value, (np.float64, np.int64, np.bool_)) else value
        if self._values.dtype == RNG_DTYPE and name in rng_functions.METHODS:
            return functools.partial(make_function(rng_functions.METHODS[name]), self)
        raise AttributeError(f"a record has no field {name!r}; its fields are: {self._values.dtype.names}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[name][0] = value


class Records:
    """An array of records.

    Args:
        values: Where they lie, `(size,)`.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def __getitem__(self, index: int) -> Record:
        return Record(self._values[index : index + 1])


def make_function(function: Any, _records: str = "") -> Callable[..., Any]:
    """The function as it is; integers wrap around, as in compiled code."""
    plain: FunctionType = getattr(function, "py_func", function)

    @functools.wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with np.errstate(over="ignore"):
            return plain(*args, **kwargs)

    return wrapped


def new_record(dtype: np.dtype[Any]) -> Callable[[], Record]:
    """A function that makes records."""
    return lambda: Record(np.zeros(1, dtype))


def array_at(dtype: np.dtype[Any]) -> Callable[[int, int], Any]:
    """A function `(address, size)`: the flat array of `dtype` that lies there."""

    def view(address: int, size: int) -> Any:
        memory = (ctypes.c_uint8 * (dtype.itemsize * size)).from_address(int(address))
        values: NDArray[Any] = np.frombuffer(memoryview(memory), dtype)
        return Records(values) if dtype.names else values

    return view


def row_view(shape: tuple[int, ...]) -> Callable[[NDArray[Any], int], NDArray[Any]]:
    """A function `(flat, index)`: row `index` of a flat array as an array of `shape`, on the same memory."""
    size = int(np.prod(shape, dtype=np.int64))
    return lambda flat, index: flat[index * size : (index + 1) * size].reshape(shape)


def read_only(value: Any) -> Any:
    """Return the argument: the rules are the compiler's."""
    return value


def as_generator(record: Any) -> Any:
    """Return the argument: such records have the draws as methods."""
    return record


def interleaved_row_view(shape: tuple[int, ...]) -> Callable[[NDArray[Any], int], NDArray[Any]]:
    """The same for interleaved rows."""
    lengths = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]

    def view(flat: NDArray[Any], index: int) -> NDArray[Any]:
        strides = [flat.nbytes * length for length in lengths]
        return np.lib.stride_tricks.as_strided(flat[index:], shape, strides)

    return view


def row_copy(length: int, *, is_read: bool) -> Callable[[NDArray[Any], int, Any], None]:
    """A function `(elements, row, own)` that copies an interleaved row, or copies it back."""
    lane = interleaved_row_view((length,))

    def copy(elements: NDArray[Any], row: int, own: Any) -> None:
        far, near = lane(elements, row), _flat(own, elements)
        source, target = (far, near) if is_read else (near, far)
        target[:] = source

    return copy


def _flat(own: Any, elements: NDArray[Any]) -> NDArray[Any]:
    array: NDArray[Any] = own._values if isinstance(own, Record) else own
    return array.reshape(-1).view(elements.dtype)


def dense(inputs: int, outputs: int, place: int) -> Callable[..., None]:
    """A function `(weights, x, first, step, y)`: a layer without its activation."""

    def multiply(weights: NDArray[Any], x: NDArray[Any], first: int, step: int, y: NDArray[Any]) -> None:
        block = weights[place : place + (inputs + 1) * outputs].reshape(inputs + 1, outputs)
        vector = x.reshape(-1)[first : first + inputs * step : step].astype(np.float32)
        y[:outputs, 0] = block[0] + vector @ block[1:]

    return multiply


def address_of(array: Any) -> int:
    """Return the address of a simulated device array."""
    return int(array.ctypes.data)


def clear(memory: Any, stream: Any) -> None:
    """Set bytes to 0."""
    memory.copy_to_device(np.zeros(memory.size, np.uint8), stream=stream)


def launcher(entry: Any, blocks: int, threads: int, stream: Any) -> Callable[..., None]:
    """Return a launcher with a number of threads; the simulator's own launchers share their configuration."""

    def launch(*args: int) -> None:
        entry[blocks, threads, stream](*args)

    return launch


@contextlib.contextmanager
def translating() -> Iterator[None]:
    """Do nothing: the simulator compiles nothing."""
    yield
