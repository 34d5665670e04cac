"""DLPack capsules against NumPy's, on memory of the host: the protocol is the same."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from envfleet.kernels.cuda import dlpack


class Lender:
    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    def __dlpack__(self, **_options: Any) -> Any:
        array = self.array
        strides = tuple(stride // array.itemsize for stride in array.strides)
        device = self.__dlpack_device__()
        return dlpack.make_capsule(self, array.ctypes.data, array.shape, strides, array.dtype, device)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (1, 5)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numpy_takes_what_is_lent(dtype: Any, shape: tuple[int, ...], order: Any) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype, order=order)
    taken = np.from_dlpack(Lender(array))
    assert taken.dtype == array.dtype
    assert (taken.ctypes.data, taken.strides) == (array.ctypes.data, array.strides)
    np.testing.assert_array_equal(taken, array)
    del taken


def test_what_is_lent_lives_as_long_as_it_is_used_and_no_longer() -> None:
    gc.collect()
    before = len(dlpack._lent)
    taken = np.from_dlpack(Lender(np.arange(4.0)))
    gc.collect()
    assert taken.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert len(dlpack._lent) == before + 1
    del taken
    untaken = Lender(np.arange(4.0)).__dlpack__()
    assert len(dlpack._lent) == before + 1
    del untaken
    assert len(dlpack._lent) == before
