"""Arrays on the device, which other libraries use without a copy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda


def dense_strides(shape: tuple[int, ...], item: int) -> tuple[int, ...]:
    """Return the strides of an array in C order, with `item` bytes per element."""
    return tuple(item * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


class DeviceArray:
    """Array on the device.

    Other libraries use it without a copy: `torch.as_tensor(array, device="cuda")`, `cupy.asarray(array)`.
    `array.numpy()` and `numpy.asarray(array)` copy it to the host. Kernels run on the fleet's stream, by default CUDA's
    default stream, which torch also uses; work on a stream runs in the order of the calls.

    If rows are small (up to 1 KiB), memory has the first elements of all rows, then the second ones, and so on, as
    threads write them. The strides describe this, and torch and CuPy support it. For a library that does not, make a
    copy: `torch.as_tensor(array, device="cuda").contiguous()`.

    `array[2]` and `array[1:9:2]` are views on the device; single numbers are copied to the host. All other indices copy
    the whole array to the host first.

    Args:
        data: Memory from the first element on, a device array of uint8.
        shape: Shape of the array.
        dtype: Dtype of an element.
        stream: Stream on which the array is written.
        strides: Bytes between entries along each axis; `None` for C order.
        whole: Array of which this is a view.

    Attributes:
        shape: Shape of the array.
        dtype: Dtype of an element.
        strides: Bytes between entries along each axis.
    """

    __slots__ = ("__weakref__", "_data", "_stream", "_whole", "dtype", "shape", "strides")

    def __init__(
        self,
        data: Any,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        stream: Stream = Stream(0),  # noqa: B008  # frozen
        strides: tuple[int, ...] | None = None,
        whole: DeviceArray | None = None,
    ) -> None:
        self._data, self._stream, self.shape, self.dtype, self._whole = data, stream, shape, dtype, whole
        self.strides = dense_strides(shape, dtype.itemsize) if strides is None else strides

    @property
    def address(self) -> int:
        """Address on the device."""
        return int(cuda_target().address_of(self._data))

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
        """Return a copy on the host; waits until the array is ready."""
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        steps = zip(self.shape, self.strides, strict=True)
        end = self.dtype.itemsize + sum((length - 1) * stride for length, stride in steps)
        elements = self._data[:end].copy_to_host(stream=self._stream.of_numba).view(self.dtype)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(elements, self.shape, self.strides))

    def by_steps(self, num_rows: int) -> DeviceArray:
        """Return a view of shape `(T, num_rows, …)`."""
        shape = (len(self) // num_rows, num_rows, *self.shape[1:])
        strides = (num_rows * self.strides[0], *self.strides)
        return DeviceArray(self._data, shape, self.dtype, self._stream, strides, self)

    def take(self, rows: NDArray[np.integer[Any]], axis: int = 0) -> DeviceArray:
        """Return a copy of the given rows on the device, in C order.

        Args:
            rows: Indices of the rows.
            axis: 0.

        Raises:
            IndexError: A row does not exist.
            InvalidArgument: Elements of a row have several strides, as those of rollouts may.
        """
        from envfleet.kernels.cuda.gather import BLOCK_THREADS, gather  # needs numba

        cuda, target, stream = import_cuda(), cuda_target(), self._stream.of_numba
        shape, size = (len(rows), *self.shape[1:]), math.prod(self.shape[1:])
        data = cuda.device_array(max(1, len(rows) * size * self.dtype.itemsize), np.uint8)
        taken = DeviceArray(data, shape, self.dtype, self._stream)
        gaps = {stride // dense for stride, dense in zip(self.strides[1:], taken.strides[1:], strict=True)}
        if len(gaps) > 1:
            raise InvalidArgument(
                f"take() from strides {self.strides}, expected evenly spaced rows: take from array[t]"
            )
        if len(rows):
            if not -len(self) <= np.min(rows) <= np.max(rows) < len(self):
                raise IndexError(f"rows {np.min(rows)} to {np.max(rows)} of an array of {len(self)} on the device")
            places = cuda.to_device(np.asarray(rows, np.int64) % len(self), stream=stream)
            launch = target.launcher(gather, -(-len(rows) * size // BLOCK_THREADS), BLOCK_THREADS, stream)
            addresses = taken.address, self.address, target.address_of(places)
            launch(*addresses, len(rows), size, self.dtype.itemsize, self.strides[0], self.strides[-1])
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return a copy on the host, for `numpy.asarray`."""
        if copy is False:
            raise ValueError("an array on a CUDA device is always copied to a NumPy array: leave out copy=False")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        """Return a view of entries along the first axis; numbers and other indices are copied to the host."""
        if isinstance(key, slice):
            chosen = range(len(self))[key]
            if chosen.step < 0:
                return self.numpy()[key]
            first, shape = chosen.start, (len(chosen), *self.shape[1:])
            strides = (chosen.step * self.strides[0], *self.strides[1:])
        elif isinstance(key, (int, np.integer)):
            first, shape, strides = range(len(self))[key], self.shape[1:], self.strides[1:]
        else:
            return self.numpy()[key]
        view = DeviceArray(self._data[first * self.strides[0] :], shape, self.dtype, self._stream, strides, self)
        return view if shape else view.numpy()[()]

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{list(self.shape)} on the device>"
