"""Environment that returns every kind of info: `InfoEnv`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from envfleet.testing.envs import CountingEnv


def _numbers(index: int, count: int) -> dict[str, Any]:
    return {
        "int": count,
        "float": count + 0.5,
        "bool": count % 2 == 0,
        "float32": np.float32(count),
        "int8": np.int8(index),
        "array": np.full((2, 2), count, np.float32),
    }


def _objects(index: int, count: int) -> dict[str, Any]:
    return {"text": f"{index}-{count}", "none": None, "list": [count, index], "tuple": (count,), "set": {count}}


def _nested(index: int, count: int) -> dict[str, Any]:
    deep: dict[str, Any] = {"deep": {"count": count, "text": str(count)}, "array": np.arange(3) * count}
    return {"outer": deep} if index % 2 == 0 else {"outer": {"only_odd": index, **deep}, "empty": {}}


def _sparse(index: int, count: int) -> dict[str, Any]:
    info: dict[str, Any] = {"often": count} if (index + count) % 2 else {}
    if (index + count) % 3 == 0:
        info["seldom"] = {"x": np.ones(2) * index}
    return info


def _changing(index: int, count: int) -> dict[str, Any]:
    """Return a key that changes its type with each step, equally in every sub-environment."""
    values: tuple[Any, ...] = (
        index,
        index + 0.5,
        f"text {index}",
        np.full(2, index),
        np.full((3, 1), index, np.float32),
        {"inner": index},
        index % 2 == 0,
        np.int16(index),
    )
    place = count % (len(values) + 1)
    return {} if place == len(values) else {"key": values[place], "other": count}


def _reserved(index: int, count: int) -> dict[Any, Any]:
    """Return keys that vector environments use themselves, and keys that are not strings."""
    return {"episode": {"r": float(index), "l": count, "t": 0.5}, "_under": count, 3: count}


def _mixed(index: int, count: int) -> dict[str, Any]:
    """Return values that Gymnasium truncates or refuses: ints next to floats, and ints too large for int64."""
    is_odd = index % 2 == 1
    return {
        "number": index + 0.25 if is_odd else index,
        "late": count + 0.75 if is_odd and count == 2 else count,
        "precise": 0.1 if is_odd else np.float32(0.1),
        "flag": index if is_odd else count % 2 == 0,
        "kind": f"text {count}" if is_odd and count else index,
        "large": 2**70 + index,
        "growing": 7 ** (30 * count),
    }


def _ragged(index: int, count: int) -> dict[str, Any]:
    """Return arrays with different shapes by sub-environment, which Gymnasium refuses."""
    return {"array": np.full(index + 1, count, np.float32), "kind": [1, 2] if index % 2 else "text"}


def _unpicklable(index: int, count: int) -> dict[str, Any]:
    return {"lock": threading.Lock(), "count": count}


_KINDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "numbers": _numbers,
    "objects": _objects,
    "nested": _nested,
    "sparse": _sparse,
    "changing": _changing,
    "reserved": _reserved,
    "mixed": _mixed,
    "ragged": _ragged,
    "unpicklable": _unpicklable,
}
"""By kind, the function that returns the info of sub-environment `index` at step `count`."""


def make_info(kind: str, index: int, count: int) -> dict[str, Any]:
    """Return the info of sub-environment `index` at step `count`.

    Examples:
        >>> make_info("mixed", 1, 0)["number"], make_info("mixed", 2, 0)["number"]
        (1.25, 2)
    """
    return _KINDS[kind](index, count)


class InfoEnv(CountingEnv):
    """`CountingEnv` that returns `make_info(kind, index, count)`.

    Args:
        kind: `"numbers"`, `"objects"`, `"nested"`, `"sparse"` or `"reserved"`; `"changing"`, which Gymnasium's
            vector environments support only while all sub-environments are at the same step; `"mixed"`, `"ragged"` or
            `"unpicklable"`, which they corrupt or refuse.
        index: Index of the sub-environment, which is part of the values.
        length: Number of steps of an episode.
    """

    def __init__(self, kind: str, index: int = 0, length: int = 5) -> None:
        super().__init__(length)
        self.kind, self.index = kind, index

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        """Return the info of this step."""
        return make_info(self.kind, self.index, self.count)
