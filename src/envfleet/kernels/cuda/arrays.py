"""Results that stay on the device, offered to other libraries without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.cuda.availability import cuda_target, import_cuda, is_simulated
from envfleet.kernels.cuda.dlpack import CPU, CUDA, make_capsule

_LEGACY_STREAM = 1  # CUDA's default stream in the words of __cuda_array_interface__ and DLPack


class DeviceArray:
    """An array on the device.

    Other libraries take it without a copy: `torch.as_tensor(array, device="cuda")`, `torch.from_dlpack(array)`,
    `cupy.asarray(array)`. `array.numpy()` and `numpy.asarray(array)` copy it to the host. Kernels run on CUDA's default
    stream, as torch does if not told otherwise; there the order of calls is the order of work.

    Args:
        data: Its memory, a device array of uint8.
        shape: Its shape.
        dtype: Its dtype.
    """

    __slots__ = ("__weakref__", "_data", "dtype", "shape")

    def __init__(self, data: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._data = data
        self.shape, self.dtype = shape, dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.size * self.dtype.itemsize

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
            "strides": None,
            "version": 3,
            "stream": _LEGACY_STREAM,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's name of the device: its type and number."""
        return (CPU, 0) if is_simulated() else (CUDA, int(import_cuda().get_current_device().id))

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a DLPack capsule; work on another stream than the default one waits until this array is ready.

        Args:
            stream: The consumer's.
            max_version: The newest version that the consumer knows.
            dl_device: Where it wants the array: `None` or here.
            copy: Not true: it shares this array's memory.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(
                "an array on a CUDA device is lent as it is: leave out copy and dl_device, and copy it then"
            )
        if stream not in {None, -1, 0, _LEGACY_STREAM}:
            import_cuda().synchronize()
        return make_capsule(self, self.address, self.shape, self.dtype, self.__dlpack_device__())

    def numpy(self) -> NDArray[Any]:
        """Copy it to the host, which waits until it is ready."""
        flat: NDArray[Any] = self._data.copy_to_host().view(self.dtype)
        return flat.reshape(self.shape)

    def head(self, count: int) -> NDArray[Any]:
        """Copy its first entries to the host, `(count, …)`."""
        size_bytes = count * (self.nbytes // len(self))
        flat: NDArray[Any] = self._data[:size_bytes].copy_to_host().view(self.dtype)
        return flat.reshape(count, *self.shape[1:])

    def take(self, rows: NDArray[np.integer[Any]], axis: int = 0) -> DeviceArray:
        """Return some of its rows, as another array on the device; by way of the host.

        Args:
            rows: Which.
            axis: 0.
        """
        chosen = np.ascontiguousarray(self.numpy().take(rows, axis=axis))
        data = import_cuda().to_device(chosen.reshape(-1).view(np.uint8))
        return DeviceArray(data, chosen.shape, self.dtype)

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
