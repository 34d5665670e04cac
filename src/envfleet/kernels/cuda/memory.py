"""Pieces of device memory in which buffers lie one after the other.

A buffer is interleaved: the first elements of all rows, then the second ones, and so on, so that neighboring threads
access neighboring words. The elements of a record are its words. Buffers of large rows are packed: row after row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import OutOfMemory
from envfleet.kernels.buffers import Buffer
from envfleet.kernels.cuda.arrays import DeviceArray, dense_strides
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda

HEADER_BYTES = 128
"""Size of the header of a piece; in pieces that steps write it has the number of ended episodes."""

COUNT_BYTES = 8
"""Size of that number."""

_WORD_BYTES = 8
_ROW_MULTIPLE = 64  # so that every buffer begins at a multiple of 64 bytes, whatever its dtype


def room_for(num_rows: int) -> int:
    """Return the number of rows to allocate."""
    return -(-num_rows // _ROW_MULTIPLE) * _ROW_MULTIPLE


def word_of(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return the widest unsigned integer that divides a record."""
    return np.dtype(f"u{math.gcd(record.itemsize, _WORD_BYTES)}")


class Layout:
    """Layout of buffers in a piece of memory, for any number of rows.

    Args:
        buffers: Buffers in their order.
        packed: Names of the buffers with consecutive rows; others are interleaved.

    Attributes:
        buffers: Buffers by name.
        packed: Names of the buffers with consecutive rows.
        row_bytes: Bytes of a row in all buffers.
    """

    def __init__(self, buffers: Iterable[Buffer], packed: Iterable[str] = ()) -> None:
        self.packed = frozenset(packed)
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self._row_offsets: dict[str, int] = {}
        self.row_bytes = 0
        for name, buffer in self.buffers.items():
            self._row_offsets[name] = self.row_bytes
            self.row_bytes += buffer.dtype.itemsize * buffer.size

    def address(self, name: str, rows: str) -> str:
        """Return the offset of a buffer, in bytes, as source code."""
        return f"{HEADER_BYTES} + {self._row_offsets[name]} * {rows}"

    def element(self, name: str) -> np.dtype[Any]:
        """Return the dtype of a buffer's elements: numbers, words of records, or whole records."""
        dtype = self.buffers[name].dtype
        return word_of(dtype) if dtype.names and name not in self.packed else dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a row, in elements."""
        buffer, element = self.buffers[name], self.element(name)
        return buffer.shape if element == buffer.dtype else (buffer.dtype.itemsize // element.itemsize,)

    def span(self, name: str, room: int) -> slice:
        """Return the bytes of a buffer."""
        buffer = self.buffers[name]
        start = HEADER_BYTES + self._row_offsets[name] * room
        return slice(start, start + buffer.dtype.itemsize * buffer.size * room)


class Piece:
    """Buffers in one piece of device memory; indexing by a name copies a buffer to the host.

    Args:
        stream: Stream on which the memory is read and written.
        layout: Layout of the buffers.
        num_rows: Number of rows.

    Attributes:
        data: Memory, a device array of uint8.
        address: Address of the memory.
        room: Number of allocated rows.
        count: Part of the header with the number of ended episodes.

    Raises:
        OutOfMemory: The device does not have enough memory.
    """

    def __init__(self, stream: Stream, layout: Layout, num_rows: int) -> None:
        self.layout, self.num_rows, self.room = layout, num_rows, room_for(num_rows)
        self._stream = stream
        size_bytes = HEADER_BYTES + layout.row_bytes * self.room
        try:
            self.data = import_cuda().device_array(size_bytes, np.uint8)
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            raise OutOfMemory(
                f"{num_rows} rows need {size_bytes / 1e9:.2f} GB of device memory in one piece, more than there is: "
                "use fewer sub-environments, or fewer steps per rollout"
            ) from error
        self.address, self.count = cuda_target().address_of(self.data), self.data[:COUNT_BYTES]

    def array(self, name: str) -> DeviceArray:
        """Return a buffer as an array on the device, `(num_rows, …)`."""
        layout, element, lengths = self.layout, self.layout.element(name), self.layout.shape(name)
        strides = None
        if name not in layout.packed:
            strides = (element.itemsize, *dense_strides(lengths, element.itemsize * self.room))
        return DeviceArray(
            self.data[layout.span(name, self.room)], (self.num_rows, *lengths), element, self._stream, strides
        )

    def __getitem__(self, name: str) -> NDArray[Any]:
        buffer = self.layout.buffers[name]
        return self.array(name).numpy().view(buffer.dtype).reshape(self.num_rows, *buffer.shape)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Copy a buffer from the host."""
        element = self.layout.element(name)
        flat = np.ascontiguousarray(values, self.layout.buffers[name].dtype).reshape(-1).view(element)
        block = np.zeros((self.room, flat.size // self.num_rows), element)
        block[: self.num_rows] = flat.reshape(self.num_rows, -1)
        block = block if name in self.layout.packed else np.ascontiguousarray(block.T)
        self.data[self.layout.span(name, self.room)].copy_to_device(
            block.reshape(-1).view(np.uint8), stream=self._stream.of_numba
        )
