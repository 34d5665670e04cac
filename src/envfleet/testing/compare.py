"""Deep comparison that reports where two values differ, including types and dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """Position at which two values differ.

    Attributes:
        path: Position as an expression, such as `infos["final_info"]["draw"]`.
        expected: Expected value, shortened.
        actual: Actual value, shortened.
    """

    path: str
    expected: str
    actual: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, found {self.actual}"


def mismatches(expected: Any, actual: Any, path: str = "value") -> list[Mismatch]:
    """Return all positions at which `actual` differs from `expected`.

    Arrays must agree in dtype, shape and every bit (NaN equals NaN); containers in type, length and keys; anything
    else in type and by `==`.

    Examples:
        >>> [str(mismatch) for mismatch in mismatches({"a": 1, "b": np.zeros(2)}, {"a": 1.0, "b": np.zeros(2)})]
        ["value['a']: expected int 1, found float 1.0"]
    """
    return list(_walk(expected, actual, path))


def _walk(expected: Any, actual: Any, path: str) -> Iterator[Mismatch]:
    if _form_of(expected) != _form_of(actual):
        yield Mismatch(path, _show(expected), _show(actual))
        return
    parts, others = _parts_of(expected), _parts_of(actual)
    if parts is None or others is None:
        if not _is_same(expected, actual):
            yield Mismatch(path, _show(expected), _show(actual))
        return
    for place in parts | others:
        where = f"{path}{place}"
        if place not in others:
            yield Mismatch(where, _show(parts[place]), "nothing")
        elif place not in parts:
            yield Mismatch(where, "nothing", _show(others[place]))
        else:
            yield from _walk(parts[place], others[place], where)


def _form_of(value: Any) -> Any:
    return (value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value)


def _parts_of(value: Any) -> dict[str, Any] | None:
    """Return the parts of a container by their index expressions; `None` if the value is not a container."""
    if isinstance(value, Mapping) and not isinstance(value, spaces.Space):  # a Dict space is also a Mapping
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return {f"[{place}]": part for place, part in enumerate(value)}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return {f"[{', '.join(map(str, place))}]": part for place, part in np.ndenumerate(value)}
    return {".state": value.bit_generator.state} if isinstance(value, np.random.Generator) else None


def _is_same(expected: Any, actual: Any) -> bool:
    if isinstance(expected, (np.ndarray, float, np.floating)):
        return np.array_equal(expected, actual, equal_nan=np.asarray(expected).dtype.kind in "fc")
    return expected is actual or bool(expected == actual)


def _show(value: Any, limit: int = 160) -> str:
    if isinstance(value, np.ndarray):
        text = f"{value.dtype} array {value.shape} {np.array2string(value, threshold=12, separator=', ')}"
    else:
        text = f"{type(value).__name__} {value!r}"
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
