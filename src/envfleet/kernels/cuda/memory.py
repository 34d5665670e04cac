"""Pieces of device memory in which buffers lie one after the other.

A buffer is interleaved: the first elements of all rows, then the second ones, and so on, so that threads side by side
touch words side by side. The elements of a record are its words. Buffers of large rows are packed: row after row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import OutOfMemory
from envfleet.kernels.buffers import Buffer
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda

HEADER_BYTES = 128
"""What every piece begins with; of the pieces that steps write, the number of ended episodes."""

COUNT_BYTES = 8
"""Of that number."""

SHARED_ROWS = 64
"""Rows there is room for where all sub-environments share one."""

_WORD_BYTES = 8
_ROW_MULTIPLE = 64  # so that every buffer begins at a multiple of 64 bytes, whatever its dtype


def room_for(num_rows: int) -> int:
    """Rows to make room for."""
    return -(-num_rows // _ROW_MULTIPLE) * _ROW_MULTIPLE


def word_of(record: np.dtype[Any]) -> np.dtype[Any]:
    """Return the widest unsigned integer that a record is made of."""
    return np.dtype(f"u{math.gcd(record.itemsize, _WORD_BYTES)}")


def to_rows(elements: NDArray[Any], num_elements: int, num_rows: int, *, is_packed: bool) -> NDArray[Any]:
    """Return the rows of a buffer that was copied to the host, `(num_rows, num_elements)`."""
    if is_packed:
        return elements.reshape(-1, num_elements)[:num_rows]
    return np.ascontiguousarray(elements.reshape(num_elements, -1)[:, :num_rows].T)


class Layout:
    """Where buffers lie in a piece of memory with room for any number of rows.

    Args:
        buffers: In order.
        packed: Names of those whose rows lie one after the other.
    """

    def __init__(self, buffers: Iterable[Buffer], packed: Iterable[str] = ()) -> None:
        self._packed = frozenset(packed)
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self._row_offsets: dict[str, int] = {}
        end = 0
        for name, buffer in self.buffers.items():
            self._row_offsets[name] = end
            end += buffer.dtype.itemsize * buffer.size
        self._row_bytes = end

    def address(self, name: str, rows: str) -> str:
        """Distance of a buffer from the beginning, in bytes, as source code."""
        return f"{HEADER_BYTES} + {self._row_offsets[name]} * {rows}"

    def is_packed(self, name: str) -> bool:
        """Return whether the rows of a buffer lie one after the other."""
        return name in self._packed

    def element(self, name: str) -> np.dtype[Any]:
        """Return the dtype of what a buffer consists of: numbers, words of records, or whole records."""
        dtype = self.buffers[name].dtype
        return word_of(dtype) if dtype.names and name not in self._packed else dtype

    def span_elements(self, name: str) -> int:
        """Return how many elements of a row lie side by side."""
        return self.num_elements(name) if name in self._packed else 1

    def num_elements(self, name: str) -> int:
        """Elements per row."""
        buffer = self.buffers[name]
        return buffer.size * buffer.dtype.itemsize // self.element(name).itemsize

    def span(self, name: str, room: int) -> slice:
        """Bytes of a buffer."""
        buffer = self.buffers[name]
        start = HEADER_BYTES + self._row_offsets[name] * room
        return slice(start, start + buffer.dtype.itemsize * buffer.size * room)

    def size_bytes(self, room: int, before: str | None = None) -> int:
        """Bytes of the whole, or of all that lies before a buffer."""
        return HEADER_BYTES + (self._row_bytes if before is None else self._row_offsets[before]) * room


class Piece:
    """Buffers in one piece of device memory.

    Args:
        stream: On which it is read and written.
        layout: Of the buffers.
        num_rows: Rows of each.
        room: Rows there is room for.
        is_zero: Begin with zeros, rather than anything.
        before: Leave out the buffers from this one on.

    Attributes:
        data: The memory, a device array of uint8.
        address: Where it begins.

    Raises:
        OutOfMemory: The device has not enough.
    """

    def __init__(
        self,
        stream: Stream,
        layout: Layout,
        num_rows: int,
        room: int,
        *,
        is_zero: bool = False,
        before: str | None = None,
    ) -> None:
        cuda = import_cuda()
        self.stream, self.layout, self.num_rows, self.room = stream, layout, num_rows, room
        size_bytes = layout.size_bytes(room, before)
        try:
            self.data = cuda.device_array(size_bytes, np.uint8)
        except Exception as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            raise OutOfMemory(
                f"{num_rows} sub-environments need {size_bytes / 1e9:.2f} GB of device memory in one piece, which "
                "there is not: make fewer"
            ) from error
        self.address = cuda_target().address_of(self.data)
        if is_zero:
            self.data.copy_to_device(np.zeros(size_bytes, np.uint8), stream=stream.of_numba)

    def bytes_of(self, name: str) -> Any:
        """Return the device array of uint8 that holds a buffer."""
        return self.data[self.layout.span(name, self.room)]

    def read(self, name: str) -> NDArray[Any]:
        """Copy a buffer to the host: `(num_rows, …)`."""
        buffer, layout = self.layout.buffers[name], self.layout
        elements = self.bytes_of(name).copy_to_host(stream=self.stream.of_numba).view(layout.element(name))
        rows = to_rows(elements, layout.num_elements(name), self.num_rows, is_packed=layout.is_packed(name))
        return rows.view(buffer.dtype).reshape(self.num_rows, *buffer.shape)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Copy a buffer from the host."""
        element, num_elements = self.layout.element(name), self.layout.num_elements(name)
        block = np.zeros((self.room, num_elements), element)
        rows = np.ascontiguousarray(values, self.layout.buffers[name].dtype).reshape(-1).view(element)
        block[: self.num_rows] = rows.reshape(self.num_rows, num_elements)
        block = block if self.layout.is_packed(name) else np.ascontiguousarray(block.T)
        self.bytes_of(name).copy_to_device(block.reshape(-1).view(np.uint8), stream=self.stream.of_numba)

    def twin(self) -> Piece:
        """Another piece with the same content, on the device."""
        twin = Piece(self.stream, self.layout, self.num_rows, self.room)
        twin.copy_from(self)
        return twin

    def copy_from(self, other: Piece) -> None:
        """Copy another piece of the same form, on the device."""
        self.stream.follow(other.stream.number)
        self.data.copy_to_device(other.data, stream=self.stream.of_numba)


class SavedBuffers(Mapping[str, NDArray[Any]]):
    """Saved buffers by name, which stay on the device; each look copies one to the host. Pickles as a dict of arrays.

    Args:
        piece: Where they lie, not to be written any more.
    """

    def __init__(self, piece: Piece) -> None:
        self.piece = piece

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.piece.layout.buffers:
            raise KeyError(name)
        return self.piece.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.piece.layout.buffers)

    def __len__(self) -> int:
        return len(self.piece.layout.buffers)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
