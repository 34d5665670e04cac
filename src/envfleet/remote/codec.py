"""The bytes that a client and a service exchange: values and arrays, and the checked reading of replies.

Bodies are MessagePack; nothing is pickled. Numbers, texts, bytes, lists, maps and `None` are MessagePack's own. Arrays
are extensions of type 1: one byte with the length of the dtype's name, the name (`<f4`), one byte with the number of
dimensions, eight bytes for each length (little endian), zeros up to a multiple of 16, then the elements in C order, so
that a decoder need not copy them.
"""

from __future__ import annotations

import functools
import math
import re
import struct
import sys
from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import msgpack
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import ObservationError, WireError
from envfleet.fleet.layout import SpaceLayout

MEDIA_TYPE: Final = "application/msgpack"
ARRAY: Final = 1
KINDS: Final = "biuf"
"""Of the dtypes that are sent as arrays."""
_DTYPE = re.compile(rf"[<>|]?[{KINDS}]\d{{1,2}}")
_MAX_DIMENSIONS = 16
_ALIGNMENT = 16


# ------------------------------------------------------------------------------------------------- values and arrays


def pack(value: Any) -> bytes:
    """Encode a value.

    Args:
        value: `None`, bools, numbers, texts, bytes, lists, tuples, dicts with text keys, NumPy scalars and arrays of
            bools and numbers, nested at will. Tuples come back as lists, scalars as Python's.

    Raises:
        WireError: It holds something else.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_encode, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"the value cannot be sent: {error}") from error
    return packed


def unpack(body: bytes | bytearray | memoryview) -> Any:
    """Decode what `pack` made.

    Returns:
        The value. Arrays are read-only views of separate memory, in this machine's byte order or little endian.

    Raises:
        WireError: The bytes are something else.
    """
    try:
        return msgpack.unpackb(body, ext_hook=_decode, raw=False, strict_map_key=True)
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(
            f"the body is not MessagePack as expected: {str(error)[:200] or type(error).__name__}"
        ) from error


def shrink(array: NDArray[Any]) -> NDArray[Any]:
    """Return integers in the fewest bytes that hold them all; the receiver restores the dtype from the space."""
    if array.dtype.kind not in "iu" or not array.size:
        return array
    lowest, highest = int(array.min()), int(array.max())
    smallest = np.min_scalar_type(highest if lowest >= 0 else min(lowest, ~highest))
    return array.astype(smallest) if smallest.itemsize < array.itemsize else array


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgpack.ExtType(ARRAY, _array_bytes(value))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is neither a number, a text, a list, a dict nor an array of numbers")


def _array_bytes(array: NDArray[Any]) -> bytes:
    dtype = array.dtype
    if dtype.kind not in KINDS:
        raise TypeError(f"an array of dtype {dtype}: only bools and numbers are sent as arrays")
    if not dtype.isnative or sys.byteorder == "big":
        array = array.astype(dtype.newbyteorder("<"))
    return b"".join((_array_header(array.dtype.str, array.shape), array.tobytes()))


@functools.lru_cache(256)
def _array_header(dtype: str, shape: tuple[int, ...]) -> bytes:
    name = dtype.encode()
    header = struct.pack(f"<B{len(name)}sB{len(shape)}Q", len(name), name, len(shape), *shape)
    return header + bytes(-len(header) % _ALIGNMENT)


def _decode(code: int, data: bytes) -> Any:
    if code != ARRAY:
        raise WireError(f"extension type {code} is unknown, expected {ARRAY} (an array)")
    try:
        first = _first_element(data[0], data[1 + data[0]])
    except IndexError as error:
        raise WireError(f"the header of an array cannot be read: {error}") from error
    dtype, shape, size_bytes = _read_header(data[:first])
    if first + size_bytes != len(data):
        raise WireError(f"an array {shape} of {dtype} has {len(data)} bytes, expected {first + size_bytes}")
    return np.ndarray(shape, dtype, data, first)


def _first_element(name_bytes: int, num_dimensions: int) -> int:
    return -(-(2 + name_bytes + 8 * num_dimensions) // _ALIGNMENT) * _ALIGNMENT


@functools.lru_cache(256)
def _read_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and bytes of the elements of an array."""
    try:
        name_bytes = header[0]
        name, num_dimensions = header[1 : 1 + name_bytes].decode("ascii"), header[1 + name_bytes]
        if not _DTYPE.fullmatch(name) or num_dimensions > _MAX_DIMENSIONS:
            raise WireError(f"an array of dtype {name} and {num_dimensions} dimensions is not accepted")
        dtype = np.dtype(name)
        shape = struct.unpack_from(f"<{num_dimensions}Q", header, 2 + name_bytes)
    except (struct.error, TypeError, UnicodeDecodeError) as error:
        raise WireError(f"the header of an array cannot be read: {error}") from error
    return dtype, shape, math.prod(shape) * dtype.itemsize


# ------------------------------------------------------------------------------------------------------------- infos


def infos_from_plain(plain: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Return the infos that a service sent in Gymnasium's form; rows without an object hold `None`.

    Raises:
        WireError: It is something else.
    """
    try:
        return {name: _read_column(column, num_envs) for name, column in plain.items()}
    except (AttributeError, TypeError, IndexError, ValueError) as error:
        raise WireError(f"the infos cannot be read: {type(error).__name__}: {error}") from error


def _read_column(column: Any, num_envs: int) -> Any:
    if isinstance(column, np.ndarray):
        if len(column) != num_envs:
            raise ValueError(f"a column has {len(column)} rows, expected {num_envs}")
        return column.copy()
    if isinstance(column, Mapping):
        return infos_from_plain(column, num_envs)
    objects = np.empty(num_envs, object)  # of None
    for row, value in zip(*column, strict=True):
        objects[row] = value
    return objects


# ------------------------------------------------------------------------------------------------------------ spaces


def space_from_plain(plain: Mapping[str, Any]) -> gym.Space[Any]:
    """Return the space that a service described.

    Raises:
        WireError: It is something else.
    """
    try:
        return _read_space(plain)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise WireError(f"the space {plain!r:.200} cannot be read: {type(error).__name__}: {error}") from error


def _read_space(plain: Mapping[str, Any]) -> gym.Space[Any]:
    kind = plain["type"]
    dtype: np.dtype[Any] = np.dtype(plain.get("dtype"))
    if kind == "Dict":
        return spaces.Dict({name: _read_space(each) for name, each in plain["spaces"]})
    if kind == "Tuple":
        return spaces.Tuple([_read_space(each) for each in plain["spaces"]])
    if kind == "Box":
        shape = tuple(plain["shape"])
        low, high = (np.full(shape, plain[side], dtype) for side in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(plain["n"], start=plain["start"], dtype=dtype.type)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(plain["nvec"]), dtype.type, start=np.array(plain["start"]))
    if kind == "MultiBinary":
        shape = tuple(plain["shape"])
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    raise ValueError(f"unknown type of space {kind!r}")


# ----------------------------------------------------------------------------------------------------------- replies


def read_array(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of a reply; read-only.

    Raises:
        WireError: It is missing, or has another shape or dtype.
    """
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        actual = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise WireError(f"{name} are {actual}, expected {dtype} {shape}: the service answered something else")
    return value


def read_leaves(reply: Mapping[str, Any], layout: SpaceLayout, num_rows: int) -> list[NDArray[Any]]:
    """Return the observations of a reply, one array per leaf of their space; read-only.

    Raises:
        WireError: They have another structure, shape or dtype.
    """
    try:
        values = layout.apart(reply.get("observations"))
    except (TypeError, KeyError, IndexError) as error:
        raise WireError(f"observations have another structure than {layout.space}") from error
    return [
        read_array(value, "observations", (num_rows, *leaf.shape), leaf.dtype)
        for value, leaf in zip(values, layout.leaves, strict=True)
    ]


def read_infos(reply: Mapping[str, Any], layout: SpaceLayout, num_rows: int) -> dict[str, Any]:
    """Return the infos of a reply in Gymnasium's form, `final_obs` in that of the observation space.

    Raises:
        WireError: They are something else.
    """
    plain: Any = reply.get("infos")
    infos = infos_from_plain(plain, num_rows)  # refuses what is not a mapping
    if "final_obs" not in infos:
        return infos
    finals = infos["final_obs"]
    try:
        places = np.flatnonzero(infos["_final_obs"])
        rows, values = plain["final_obs"]
        if _is_batch(values, layout, len(places)) and rows.tolist() == places.tolist():
            for place, value in zip(places.tolist(), values.copy(), strict=True):
                finals[place] = value
            return infos
        row = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
        write = layout.writer(row)
        for place in places.tolist():
            write(0, finals[place])
            finals[place] = layout.row(row, [], 0)
    except (ObservationError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"final_obs do not fit {layout.space}: {error}") from error
    return infos


def _is_batch(values: Any, layout: SpaceLayout, num_rows: int) -> bool:
    """Return whether values are arrays of exactly the form of a space, one below the other."""
    if not (layout.is_array and isinstance(values, np.ndarray) and values.ndim > 1):
        return False
    leaf = layout.leaves[0]
    return bool(values.shape == (num_rows, *leaf.shape) and values.dtype == leaf.dtype)
