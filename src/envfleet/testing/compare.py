"""Deep comparison that says where two values differ, types and dtypes included."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """One place where two values differ.

    Attributes:
        path: Where, as an expression: `infos["final_info"]["draw"]`.
        expected: What was expected, shortened.
        found: What was found, shortened.
    """

    path: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.found}"


def mismatches(expected: Any, found: Any, path: str = "value") -> list[Mismatch]:
    """List every place where `found` differs from `expected`.

    Arrays must agree in dtype, shape and every bit (NaN equals NaN); containers in type, length and keys; anything
    else in type and by `==`.

    Examples:
        >>> [str(mismatch) for mismatch in mismatches({"a": 1, "b": np.zeros(2)}, {"a": 1.0, "b": np.zeros(2)})]
        ["value['a']: expected int 1, found float 1.0"]
    """
    return list(_walk(expected, found, path))


def _walk(expected: Any, found: Any, path: str) -> Iterator[Mismatch]:
    if isinstance(expected, np.ndarray) and isinstance(found, np.ndarray):
        yield from _walk_arrays(expected, found, path)
    elif type(expected) is not type(found):
        yield Mismatch(path, _show(expected), _show(found))
    elif isinstance(expected, Mapping) and not isinstance(expected, spaces.Space):  # a Dict space is a Mapping too
        yield from _walk_mappings(expected, found, path)
    elif isinstance(expected, (tuple, list)):
        if len(expected) != len(found):
            yield Mismatch(path, f"{len(expected)} items", f"{len(found)} items")
        for place, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from _walk(one, other, f"{path}[{place}]")
    elif isinstance(expected, np.random.Generator):
        yield from _walk(expected.bit_generator.state, found.bit_generator.state, f"{path}.state")
    elif not _is_same(expected, found):
        yield Mismatch(path, _show(expected), _show(found))


def _walk_arrays(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any], path: str) -> Iterator[Mismatch]:
    if expected.dtype != found.dtype or expected.shape != found.shape:
        kinds = [f"array of {array.dtype} {array.shape}" for array in (expected, found)]
        yield Mismatch(path, *kinds)
    elif expected.dtype == object:
        for place in np.ndindex(expected.shape):
            where = ", ".join(str(number) for number in place)
            yield from _walk(expected[place], found[place], f"{path}[{where}]")
    elif not np.array_equal(expected, found, equal_nan=expected.dtype.kind in "fc"):
        yield Mismatch(path, _show(expected), _show(found))


def _walk_mappings(expected: Mapping[Any, Any], found: Mapping[Any, Any], path: str) -> Iterator[Mismatch]:
    for key in dict.fromkeys([*expected, *found]):
        where = f"{path}[{key!r}]"
        if key not in found:
            yield Mismatch(where, _show(expected[key]), "nothing")
        elif key not in expected:
            yield Mismatch(where, "nothing", _show(found[key]))
        else:
            yield from _walk(expected[key], found[key], where)


def _is_same(expected: Any, found: Any) -> bool:
    if expected is found:
        return True
    is_nan = isinstance(expected, (float, np.floating)) and bool(np.isnan(expected)) and bool(np.isnan(found))
    return is_nan or bool(expected == found)


def _show(value: Any, limit: int = 160) -> str:
    if isinstance(value, np.ndarray):
        text = f"{value.dtype} array {np.array2string(value, threshold=12, separator=', ')}"
    else:
        text = f"{type(value).__name__} {value!r}"
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
