"""DLPack capsules, made without another library.

Source: the DLPack specification, version 0.8 (`DLManagedTensor`).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
_NAME = b"dltensor"
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))

_lent: dict[int, tuple[Any, ...]] = {}
"""What consumers hold: by address of the managed tensor, all that must live as long."""


@_Deleter
def _release(managed: Any) -> None:
    """Release what a consumer is done with, on whatever thread."""
    _lent.pop(ctypes.addressof(managed.contents), None)


@_Destructor
def _drop(capsule: int) -> None:
    """Drop a capsule that is collected; if nobody took what is in it, nobody will."""
    if _is_valid(capsule, _NAME):
        _lent.pop(_pointer(capsule, _NAME), None)


def make_capsule(
    owner: Any,
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
) -> Any:
    """Make a capsule for memory.

    Args:
        owner: Is kept alive while anybody uses the memory.
        address: Where it begins.
        shape: Of the array.
        strides: Elements from one entry to the next, along each axis.
        dtype: Of the array: integers, floats or bools.
        device: Type and number.
    """
    extents = (ctypes.c_int64 * len(shape))(*shape)
    distances = (ctypes.c_int64 * len(shape))(*strides)
    tensor = _Tensor(address, *device, len(shape), _CODES[dtype.kind], 8 * dtype.itemsize, 1, extents, distances, 0)
    managed = _Managed(tensor, None, _release)
    place = ctypes.addressof(managed)
    _lent[place] = (managed, extents, distances, owner)
    return _new(place, _NAME, _drop)
