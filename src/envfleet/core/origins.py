"""Where the running episodes began, in a fleet's shared arrays: there it outlives the worker that knew."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

ORIGIN_BYTES = 1024
"""Room for one origin. That of an episode begun with larger options is not kept."""

ORIGIN_WORDS = 3
"""Words of int64 beside each origin; see `Origins`."""

_START, _BEFORE, _SIZE = range(ORIGIN_WORDS)
_NONE = -1


class Origin(NamedTuple):
    """How an episode began: the seed it was reset with, or else the generator's state just before.

    Attributes:
        seed: Of the reset.
        options: Of the reset.
        rng_state: State of the generator, where the reset had no seed.
        build_seed: Seed that the sub-environment was built with, where that is not the builder's own.
        last_seed: Seed that it was last reset with, in this episode or an earlier one.
    """

    seed: int | None
    options: dict[str, Any] | None
    rng_state: Any
    build_seed: int | None = None
    last_seed: int | None = None


AsTuple: TypeAlias = tuple[int | None, dict[str, Any] | None, Any, int | None, int | None]
"""An `Origin` as a plain tuple, which takes a fraction of the time to make and to pickle."""


class Beginning(NamedTuple):
    """What can be read of the beginning of an episode.

    Attributes:
        start: Group steps of its worker before it.
        before: Steps of its sub-environment before it, less those of the episode that were taken elsewhere.
        origin: How it began; `None` if it goes on from a saved state or does not fit.
    """

    start: int
    before: int
    origin: Origin | None


class Origins:
    """How the running episode of each row began. A worker writes, the fleet reads, also after the worker's death.

    Args:
        words: Per row where the episode began and how many bytes its origin has, `(rows, ORIGIN_WORDS)`.
        slots: Per row the pickled origin, `(rows, ORIGIN_BYTES)`.
    """

    def __init__(self, words: NDArray[np.int64], slots: NDArray[np.uint8]) -> None:
        self._words, self._bytes = words, slots
        lines: Any = words  # numpy does not type its arrays as buffers
        buffers: Any = slots
        self._lines = [memoryview(line) for line in lines]
        self._slots = [memoryview(slot) for slot in buffers]

    def part(self, rows: slice) -> Origins:
        """The same of some rows."""
        return Origins(self._words[rows], self._bytes[rows])

    def clear(self) -> None:
        """Note that no episode has begun in any row."""
        self._words[:, _START] = _NONE

    @property
    def is_empty(self) -> bool:
        """Whether no episode has begun in any row, as far as is written here."""
        return bool((self._words[:, _START] == _NONE).all())

    def oldest(self) -> int:
        """Number of the group step in which the longest of the running episodes began; below 0 if one is unknown."""
        return int(self._words[:, _START].min())

    def write(self, row: int, start: int, before: int, origin: AsTuple | None) -> None:
        """Note how an episode begins; see `Beginning`."""
        line = self._lines[row]
        line[_START] = _NONE  # whoever is killed in the middle leaves nothing that looks whole
        data = b"" if origin is None else _packed(origin)
        self._slots[row][: len(data)] = data
        line[_BEFORE], line[_SIZE], line[_START] = before, len(data), start

    def read(self, row: int) -> Beginning | None:
        """How the episode of `row` began; `None` if none has."""
        line = self._lines[row]
        if line[_START] == _NONE:
            return None
        data = bytes(self._slots[row][: line[_SIZE]])
        try:
            origin = Origin(*pickle.loads(data)) if data else None
        except Exception:  # noqa: BLE001 - native code that crashed may have written anything anywhere before
            origin = None
        return Beginning(line[_START], line[_BEFORE], origin)


def _packed(origin: AsTuple) -> bytes:
    try:
        data = pickle.dumps(origin, protocol=5)
    except Exception:  # noqa: BLE001 - options of any type, each of which may fail in its own way
        return b""
    return data if len(data) <= ORIGIN_BYTES else b""
