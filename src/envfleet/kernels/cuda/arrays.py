"""Results that stay on the device, offered to other libraries without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda


class DeviceArray:
    """An array on the device.

    Other libraries take it without a copy: `torch.as_tensor(array, device="cuda")`, `cupy.asarray(array)`.
    `array.numpy()` and `numpy.asarray(array)` copy it to the host. Kernels run on the fleet's stream, by default
    CUDA's, as torch does if not told otherwise; there the order of calls is the order of work.

    If the rows are small (up to 1 KiB), the first elements of all lie side by side, then the second ones, and so on, as
    threads write them. Strides say so, which torch and CuPy understand; for a library that does not, copy it there:
    `torch.as_tensor(array, device="cuda").contiguous()`.

    Args:
        data: Its memory, a device array of uint8.
        shape: Its shape.
        dtype: Its dtype.
        stream: On which it is written.
        room: Rows there is room for, if elements are interleaved; else `None`.

    Attributes:
        shape: As given.
        dtype: As given.
        strides: Bytes from one entry to the next, along each axis.
    """

    __slots__ = ("__weakref__", "_data", "_stream", "dtype", "shape", "strides")

    def __init__(
        self,
        data: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: Stream = Stream(0),  # noqa: B008  # frozen
        room: int | None = None,
    ) -> None:
        self._data, self._stream, self.shape, self.dtype = data, stream, shape, dtype
        lengths = shape[1:]
        first, others = (math.prod(lengths), 1) if room is None else (1, room)
        steps = (first, *(others * math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))))
        self.strides = tuple(step * dtype.itemsize for step in steps)

    @property
    def address(self) -> int:
        """Where it begins on the device."""
        address: int = cuda_target().address_of(self._data)
        return address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The CUDA Array Interface, version 3."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": self.strides,
            "version": 3,
            "stream": self._stream.number,
        }

    def numpy(self) -> NDArray[Any]:
        """Copy it to the host, which waits until it is ready."""
        elements = self._data.copy_to_host(stream=self._stream.of_numba).view(self.dtype)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, self.shape, self.strides))

    def head(self, count: int) -> NDArray[Any]:
        """Copy its first entries to the host, `(count,)`, if it has one axis."""
        data = self._data[: count * self.dtype.itemsize].copy_to_host(stream=self._stream.of_numba)
        entries: NDArray[Any] = data.view(self.dtype)
        return entries

    def take(self, rows: NDArray[np.integer[Any]], axis: int = 0) -> DeviceArray:
        """Return some of its rows, as another array on the device, in C order.

        Args:
            rows: Which.
            axis: 0.

        Raises:
            IndexError: There is no such row.
        """
        from envfleet.kernels.cuda.gather import BLOCK_THREADS, gather  # needs numba

        cuda, target, stream = import_cuda(), cuda_target(), self._stream.of_numba
        taken = cuda.to_device(np.arange(len(self), dtype=np.int64)[rows], stream=stream)
        shape, size = (len(rows), *self.shape[1:]), math.prod(self.shape[1:])
        data = cuda.device_array(len(rows) * size * self.dtype.itemsize, np.uint8)
        addresses = target.address_of(data), self.address, target.address_of(taken)
        launch = target.launcher(gather, -(-len(rows) * size // BLOCK_THREADS), BLOCK_THREADS, stream)
        launch(*addresses, len(rows), size, self.dtype.itemsize, self.strides[0], self.strides[-1])
        return DeviceArray(data, shape, self.dtype, self._stream)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Copy it to the host, for `numpy.asarray`."""
        if copy is False:
            raise ValueError("an array on a CUDA device becomes a NumPy array by a copy only: leave out copy=False")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        """Part of it, on the host."""
        return self.numpy()[key]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{list(self.shape)} on the device>"
