"""What travels with an actor call in place of shared memory: rows of arrays, to the worker and back, as bytes.

Ray hands bytes on as they are, in a fraction of the time it takes to pickle a few small arrays. What is large goes as
one array, which is not copied on its way through the object store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arrays import PROGRESS_WORDS, FleetArrays, Outputs, PlaceWord
from envfleet.core.messages import Request, Verb
from envfleet.transports.wire import HEADER, decode_request, encode_request

Which: TypeAlias = slice | list[int]
"""Some rows of a worker's own, or all of them."""

Packed: TypeAlias = bytes | NDArray[np.uint8]

ALL: Which = slice(None)
LARGE_BYTES = 1 << 16
PROGRESS_BYTES = 8 * PROGRESS_WORDS

_HEAD = struct.Struct("<IHH")
"""Number of records, info columns, whether there are last observations."""

_RECORD = struct.Struct("<Iq")
"""Row, and bytes of the encoded reply; -1 for none."""


class Parcel(NamedTuple):
    """What a worker sends back for one request.

    Attributes:
        records: What it completed: (row or `ALL_ROWS`, encoded reply or `None`).
        progress: The worker's progress line.
        num_columns: Info columns among the results.
        has_finals: Whether last observations are among the results.
        results: Of the rows the request concerned; see `take_results`.
    """

    records: list[tuple[int, bytes | None]]
    progress: NDArray[np.int64]
    num_columns: int
    has_finals: bool
    results: memoryview


class Past(NamedTuple):
    """What a worker takes over from the one that was here before.

    Attributes:
        progress: Its progress line.
        observations: For each generation, the observations of its rows, one array per leaf.
    """

    progress: NDArray[np.int64]
    observations: list[list[NDArray[Any]]]


def past_of(arrays: FleetArrays, worker: int) -> Past:
    """What the owner's arrays of a worker's rows hold of its past."""
    return Past(arrays.progress[worker], [out.observations for out in arrays.outputs])


def rows_written(request: Request) -> Which | None:
    """The rows whose results a request writes; `None` for none."""
    verb, payload = request.verb, request.payload
    if verb is Verb.STEP:
        return ALL if payload is None or payload.rows is None else list(payload.rows)
    if verb is Verb.RESET:
        return list(payload.indices)
    if verb is Verb.SET_STATE:
        return [row for row, _ in payload]
    return None


# ------------------------------------------------------------------ to the worker


def encode_call(request: Request, arrays: FleetArrays) -> Packed:
    """A request, and what it needs of the owner's arrays: the actions of a step.

    Raises:
        InvalidArgument: Its payload does not pickle.
    """
    parts = [encode_request(request)]
    if request.verb is Verb.STEP:
        rows = rows_written(request)
        parts += [leaf[rows].tobytes() for leaf in arrays.actions]
    return _packed(parts)


def decode_call(packed: Packed, arrays: FleetArrays) -> Request:
    """Take it apart, and put the actions where the worker's group reads them."""
    data = _view(packed)
    header = HEADER.unpack_from(data)
    start = HEADER.size + header[3]
    request = decode_request(header, bytes(data[HEADER.size : start]))
    rows = rows_written(request)
    if request.verb is Verb.STEP and rows is not None:
        _unpack(data[start:], arrays.actions, rows)
    return request


# ------------------------------------------------------------------ results


def take_results(out: Outputs, rows: Which | None, num_columns: int) -> tuple[list[bytes], bool]:
    """The results of some rows: observations, rewards, flags, info columns, and last observations if episodes ended.

    Returns:
        Their bytes, and whether last observations are among them.
    """
    if rows is None:
        return [], False
    flags = out.flags[:, rows]
    found = [leaf[rows].tobytes() for leaf in out.observations]
    found += [out.rewards[rows].tobytes(), flags.tobytes()]
    found += [column.tobytes() for column in _columns(out, num_columns, rows)]
    has_finals = bool(out.finals) and bool(flags.any())
    if has_finals:
        found += [leaf[rows].tobytes() for leaf in out.finals]
    return found, has_finals


def put_results(out: Outputs, rows: Which, parcel: Parcel) -> None:
    """Put what `take_results` took into the owner's arrays."""
    rest = _unpack(parcel.results, [*out.observations, out.rewards], rows)
    for table in (out.flags, *_columns(out, parcel.num_columns, ALL)):  # their rows are the second dimension
        source = np.frombuffer(rest, table.dtype, table[:, rows].size)
        table[:, rows] = source.reshape(len(table), -1)
        rest = rest[source.nbytes :]
    if parcel.has_finals:
        _unpack(rest, out.finals, rows)


def _columns(out: Outputs, num_columns: int, rows: Which) -> list[NDArray[Any]]:
    if not num_columns or out.info_values is None or out.info_present is None:
        return []
    return [out.info_values[:num_columns, rows], out.info_present[:num_columns, rows]]


def put_progress(line: NDArray[np.int64], news: NDArray[np.int64]) -> None:
    """Update a progress line; its word for interrupts is the owner's own."""
    words = PlaceWord.BUILDING, PlaceWord.TURN, PlaceWord.BUSY_NS, PlaceWord.STEPS, PlaceWord.BEGUN, PlaceWord.ROW
    for word in words:
        line[word] = news[word]


# ------------------------------------------------------------------ bytes


def encode_parcel(
    records: Sequence[tuple[int, bytes | None]],
    progress: NDArray[np.int64],
    num_columns: int,
    taken: tuple[list[bytes], bool],
) -> Packed:
    """Put a parcel together; `taken` is from `take_results`."""
    results, has_finals = taken
    sizes = [_RECORD.pack(row, -1 if reply is None else len(reply)) for row, reply in records]
    replies = [reply for _, reply in records if reply is not None]
    head = _HEAD.pack(len(records), num_columns, has_finals)
    return _packed([head, progress.tobytes(), *sizes, *replies, *results])


def decode_parcel(packed: Packed) -> Parcel:
    """Take a parcel apart; its results are a view."""
    data = _view(packed)
    num_records, num_columns, has_finals = _HEAD.unpack_from(data)
    data = data[_HEAD.size :]
    progress = np.frombuffer(data, np.int64, PROGRESS_WORDS)
    data = data[PROGRESS_BYTES:]
    heads = [_RECORD.unpack_from(data, k * _RECORD.size) for k in range(num_records)]
    data = data[num_records * _RECORD.size :]
    records: list[tuple[int, bytes | None]] = []
    for row, size in heads:
        if size < 0:
            records.append((row, None))
            continue
        records.append((row, bytes(data[:size])))
        data = data[size:]
    return Parcel(records, progress, num_columns, bool(has_finals), data)


def _packed(parts: Iterable[bytes]) -> Packed:
    data = b"".join(parts)
    return data if len(data) < LARGE_BYTES else np.frombuffer(data, np.uint8)


def _view(packed: Packed) -> memoryview:
    data: Any = packed  # numpy does not type its arrays as buffers
    return memoryview(data)


def _unpack(data: memoryview, targets: Iterable[NDArray[Any]], rows: Which) -> memoryview:
    """Fill rows of arrays from bytes, one array after the other; returns what is left of the bytes."""
    for target in targets:
        shape = target.shape if isinstance(rows, slice) else (len(rows), *target.shape[1:])
        source = np.frombuffer(data, target.dtype, int(np.prod(shape, dtype=np.int64)))
        target[rows] = source.reshape(shape)
        data = data[source.nbytes :]
    return data
