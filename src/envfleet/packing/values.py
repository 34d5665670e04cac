"""Values and arrays as MessagePack bytes: what a remote fleet and its service say to each other. Nothing is pickled.

Numbers, texts, bytes, lists, maps and `None` are MessagePack's own. An array is an extension of type 1: one byte with
the length of its dtype's name, the name (`<f4`), one byte with the number of dimensions, eight bytes for each length
(little endian), zeros up to a multiple of 16, then its elements in C order. So a decoder need not copy them.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from envfleet.errors import WireError

MEDIA_TYPE: Final = "application/msgpack"
ARRAY: Final = 1
_KINDS = "biuf"
_MAX_DIMENSIONS = 16
_ALIGNMENT = 16


def pack(value: Any) -> bytes:
    """Encode a value.

    Args:
        value: `None`, bools, numbers, texts, bytes, lists, tuples, dicts with text keys, NumPy scalars and arrays of
            bools and numbers, nested as you like. Tuples come back as lists, scalars as Python's.

    Raises:
        WireError: It holds something else.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_encode, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the value cannot be sent: {error}") from error
    return packed


def shrink(array: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in the fewest bytes that hold them all; whoever knows their space gives the dtype back."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    lowest, highest = int(array.min()), int(array.max())
    smallest = np.min_scalar_type(highest if lowest >= 0 else min(lowest, ~highest))
    return array.astype(smallest) if smallest.itemsize < array.itemsize else array


def unpack(body: bytes | bytearray | memoryview) -> Any:
    """Decode what `pack` made.

    Returns:
        The value. Arrays are read-only views of memory of their own, in this machine's byte order or little endian.

    Raises:
        WireError: The bytes are something else.
    """
    try:
        return msgpack.unpackb(body, ext_hook=_decode, raw=False, strict_map_key=True)
    except WireError:
        raise
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(
            f"the body is not MessagePack as expected: {str(error)[:200] or type(error).__name__}"
        ) from error


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(ARRAY, _array_bytes(value))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither a number, a text, a list, a dict nor an array of numbers")


def _array_bytes(array: NDArray[Any]) -> bytes:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of dtype {array.dtype}: only bools and numbers are sent as arrays")
    dtype = array.dtype.newbyteorder("<")
    name = dtype.str.encode()
    header = struct.pack(f"<B{len(name)}sB{array.ndim}Q", len(name), name, array.ndim, *array.shape)
    padding = bytes(-len(header) % _ALIGNMENT)
    return b"".join((header, padding, np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8).data))


def _decode(code: int, data: bytes) -> Any:
    if code != ARRAY:
        raise WireError(f"extension type {code} is not known, expected {ARRAY} (an array)")
    try:
        name_bytes = data[0]
        dtype = np.dtype(data[1 : 1 + name_bytes].decode("ascii"))
        num_dimensions = data[1 + name_bytes]
        if dtype.kind not in _KINDS or dtype.names is not None or num_dimensions > _MAX_DIMENSIONS:
            raise WireError(f"an array of dtype {dtype} and {num_dimensions} dimensions is not accepted")
        shape = struct.unpack_from(f"<{num_dimensions}Q", data, 2 + name_bytes)
    except (IndexError, struct.error, TypeError, ValueError, SyntaxError) as error:
        raise WireError(f"the header of an array cannot be read: {error}") from error
    first = -(-(2 + name_bytes + 8 * num_dimensions) // _ALIGNMENT) * _ALIGNMENT
    expected = first + math.prod(shape) * dtype.itemsize
    if expected != len(data):
        raise WireError(f"an array {shape} of {dtype} has {len(data)} bytes, expected {expected}")
    return np.frombuffer(data, dtype, offset=first).reshape(shape)
