"""Fixed-shape leaves of a space: checks of values, writing them to arrays, and error messages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import EnvfleetError, InvalidArgument, ObservationError

ArraySpace: TypeAlias = spaces.Box | spaces.Discrete[Any] | spaces.MultiDiscrete | spaces.MultiBinary
"""Spaces of arrays with one shape and dtype."""


class Range:
    """Range of each number of a discrete value.

    Args:
        low: Minima, of the shape of one value, or broadcast to it.
        count: Numbers of allowed integers, of the same shape.
        dtype: Integer dtype of the values.
    """

    def __init__(self, low: Any, count: Any, dtype: np.dtype[Any]) -> None:
        self._low = np.asarray(low, dtype)
        self._unsigned = np.dtype(dtype.str.replace("i", "u"))
        self._count = np.asarray(count, self._unsigned)
        self._is_from_zero = not self._low.any()

    def _inside(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        # One comparison for both ends: what lies below, counted from the least, is very large without a sign.
        distance = array if self._is_from_zero else array - self._low
        inside: NDArray[np.bool_] = distance.view(self._unsigned) < self._count
        return inside

    def holds(self, array: NDArray[Any]) -> bool:
        """Return whether all values of `array`, of the range's dtype and any leading dimensions, are in range."""
        return bool(np.logical_and.reduce(self._inside(array), axis=None))

    def rows_outside(self, array: NDArray[Any]) -> list[int]:
        """Return the rows of `array`, `(n, *shape)`, that are out of range."""
        rows: list[int] = np.flatnonzero(~self._inside(array).reshape(len(array), -1).all(axis=1)).tolist()
        return rows

    def __str__(self) -> str:
        return f"{self._low} to {self._low + (self._count - 1).astype(self._low.dtype)}"


def range_of(space: ArraySpace) -> Range | None:
    """Return the range of a discrete space; `None` for a `Box`, because environments clip to its bounds."""
    if isinstance(space, spaces.Discrete):
        return Range(space.start, space.n, np.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return Range(space.start, space.nvec, np.dtype(space.dtype))
    if isinstance(space, spaces.MultiBinary):
        return Range(0, 2, np.dtype(space.dtype))
    return None


Path = tuple[Any, ...]


def label(name: str, path: Path) -> str:
    """Name a part of a nested value.

    >>> label("observation", ("camera", 1))
    'observation["camera"][1]'
    """
    return name + "".join(f'["{key}"]' if isinstance(key, str) else f"[{key!r}]" for key in path)


@dataclasses.dataclass(frozen=True)
class Wording:
    """Words of the error message for a value that does not match its space.

    Attributes:
        error: Class of the error.
        value: Name of the value.
        space: Name of its space.
        advice: Advice to the user.
        tuple_advice: Advice where a tuple is expected.
    """

    error: type[EnvfleetError]
    value: str
    space: str
    advice: str
    tuple_advice: str


_RETURN_MATCHING = "return observations that match observation_space from reset() and step()"
OBSERVATION = Wording(ObservationError, "observation", "observation_space", _RETURN_MATCHING, _RETURN_MATCHING)
ACTIONS = Wording(
    InvalidArgument,
    "actions",
    "action_space",
    "pass one row per sub-environment",
    "pass one batched value per part; tuple(zip(*actions)) converts a list of one tuple per sub-environment",
)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A part of a space with one shape and one dtype.

    Attributes:
        path: Keys and indices that lead to it from the space; `()` is the space itself.
        shape: Shape of one value.
        dtype: Dtype of the values.
        space: Space of the values; its bounds are checked.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    space: ArraySpace = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return f"{label('', self.path)} {self.shape} {self.dtype}".lstrip()

    @functools.cached_property
    def allowed(self) -> Range | None:
        """Allowed range, if values are checked."""
        return range_of(self.space)

    def holds(self, array: NDArray[Any]) -> bool:
        """Return whether a batch of values, of the right shape and dtype, is free of NaN and in range."""
        if self.allowed is not None:
            return self.allowed.holds(array)
        return not (self.dtype.kind in "fc" and has_nan(array))

    @functools.cached_property
    def castable(self) -> frozenset[np.dtype[Any]]:
        """Common dtypes that can be cast to this one: same kind, so float64 -> float32, never float -> int."""
        return frozenset(np.dtype(code) for code in "?bhilqBHILQefdg" if np.can_cast(code, self.dtype, "same_kind"))


_UNTYPED = (int, list, tuple)
MISFIT = (TypeError, ValueError, NotImplementedError)
"""Errors of assigning to a buffer: the value is not a buffer, or differs in type or length."""

_minimum_of = np.minimum.reduce


def has_nan(array: NDArray[Any]) -> bool:
    """Return whether an array of floats contains NaN.

    The minimum is NaN if any value is; it needs no temporary, unlike `isnan`, and cannot overflow and warn, unlike a
    dot product.
    """
    if not array.size:
        return False
    smallest = _minimum_of(array, axis=None)
    return bool(smallest != smallest)  # noqa: PLR0124  only NaN differs from itself; `isnan` takes three times as long


def write_values(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], None]:
    """Return `write(row, value)` for the array of one leaf, specialized for its shape and dtype."""
    if leaf.shape:
        return _write_1d(leaf, array) if len(leaf.shape) == 1 else _write_nd(leaf, array)
    if leaf.dtype.kind in "iu" and leaf.dtype.isnative:
        return _write_integer(leaf, array)
    return _write_slowly(leaf, array)


def _write_slowly(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], None]:
    """Accept anything that `numpy.asarray` converts; raise the full error message."""

    def write(row: int, value: Any) -> None:
        array[row] = fit(value, leaf, OBSERVATION)

    return write


def _write_integer(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], None]:
    # A memoryview of integers takes whatever is an exact integer in range, and nothing else, faster than an ndarray.
    view, write_slowly = memoryview(cast(Any, array)), _write_slowly(leaf, array)

    def write(row: int, value: Any) -> None:
        try:
            view[row] = value
        except (TypeError, ValueError):
            write_slowly(row, value)

    return write


def _write_nd(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], None]:
    rows, shape, castable, ndarray = list(array), leaf.shape, leaf.castable, np.ndarray
    write_slowly = _write_slowly(leaf, array)

    def write(row: int, value: Any) -> None:
        if type(value) is ndarray and value.shape == shape and value.dtype in castable:
            rows[row][...] = value
        else:
            write_slowly(row, value)

    return write


def _write_1d(leaf: Leaf, array: NDArray[Any]) -> Callable[[int, Any], None]:
    # Between buffers of one format and one length, assignment checks both in C: 100 ns less than `_write_nd`.
    buffers, write_other = row_buffers(leaf, array), _write_nd(leaf, array)
    if buffers is None:
        return write_other

    def write(row: int, value: Any) -> None:
        try:
            buffers[row][:] = value
        except MISFIT:
            write_other(row, value)

    return write


def row_buffers(leaf: Leaf, array: NDArray[Any]) -> list[memoryview] | None:
    """Return one buffer per row of a leaf's array, if values can be assigned directly.

    Assignment checks type and length; it raises one of `MISFIT` for values that `write` has to handle.
    """
    if len(leaf.shape) != 1 or leaf.dtype.itemsize == 1:  # bytes are a buffer of single bytes, but no observation
        return None
    rows: Any = array  # numpy does not type its arrays as buffers
    return [memoryview(row) for row in rows]


def fit(value: Any, leaf: Leaf, wording: Wording, n: int | None = None) -> NDArray[Any]:
    """Return a value as an array that can be stored in a leaf, without a copy where possible.

    Args:
        value: Value to convert.
        leaf: Leaf of the value's space.
        wording: Words of the error message.
        n: Number of rows of a batched value, which is then of the leaf's dtype, without NaN, and in range; `None` for
            a single value, of any dtype that casts.

    Raises:
        EnvfleetError: The value does not match the leaf; an instance of `wording.error`.
    """
    array = value if type(value) is np.ndarray else _as_array(value, leaf, wording)
    shape = leaf.shape if n is None else (n, *leaf.shape)
    may_cast = array.dtype in leaf.castable or np.can_cast(array.dtype, leaf.dtype, "same_kind")
    if array.shape != shape or not may_cast:
        raise wording.error(_explain_misfit(array, value, shape, leaf, wording))
    if n is None:
        return array
    if array.dtype is not leaf.dtype:
        array = array.astype(leaf.dtype)
    if not leaf.holds(array):
        raise wording.error(_explain_values(array, leaf, wording))
    return array


def _explain_values(array: NDArray[Any], leaf: Leaf, wording: Wording) -> str:
    where = label(wording.value, leaf.path)
    if leaf.allowed is None:
        rows = np.flatnonzero(np.isnan(array.reshape(len(array), -1)).any(axis=1))
        return (
            f"{where} has NaN in rows {rows.tolist()}, expected numbers: find the source of the first NaN, often a "
            "too high learning rate or a division by zero"
        )
    outside = leaf.allowed.rows_outside(array)
    more = f" (and rows {outside[1:9]})" if len(outside) > 1 else ""
    return (
        f"{where} has {array[outside[0]]} in row {outside[0]}{more}, expected {leaf.allowed} as in "
        f"{label(wording.space, leaf.path)}: pass values of the space; nothing was stepped"
    )


def _as_array(value: Any, leaf: Leaf, wording: Wording) -> NDArray[Any]:
    try:
        array = np.asarray(value)
        is_free = not array.size or (array.dtype.kind == "i" and leaf.dtype.kind in "iu")
        if is_free and isinstance(value, _UNTYPED):
            # Python's ints and empty lists lack a dtype, so any ints in range are accepted.
            return np.asarray(value, dtype=leaf.dtype)
    except Exception as error:  # whatever `__array__` of a stranger's type raises
        tensor = "; for a torch tensor pass .detach().cpu().numpy()" if hasattr(value, "detach") else ""
        raise wording.error(
            f"{label(wording.value, leaf.path)} = {_shortened(value)} does not convert to an array "
            f"({type(error).__name__}: {error}), expected shape {leaf.shape} and dtype {leaf.dtype} for each "
            f"sub-environment as in {label(wording.space, leaf.path)}: {wording.advice}{tensor}"
        ) from error
    return array


def _explain_misfit(array: NDArray[Any], value: Any, shape: tuple[int, ...], leaf: Leaf, wording: Wording) -> str:
    where, space = label(wording.value, leaf.path), label(wording.space, leaf.path)
    if array.dtype.kind not in "biufc":
        what = f"is {_shortened(value)} ({type(value).__name__})"
        if value is None or isinstance(value, np.ndarray):
            what = "is None" if value is None else f"has dtype {array.dtype}"
        return f"{where} {what}, expected numbers of dtype {leaf.dtype} = {space}.dtype: {wording.advice}"
    if array.shape != shape:
        meaning = f"{space}.shape" if shape == leaf.shape else f"(n, *{space}.shape)"
        return f"{where} has shape {array.shape}, expected {shape} = {meaning}: {wording.advice}"
    name = "bool" if leaf.dtype.kind == "b" else f"np.{leaf.dtype.name}"
    return (
        f"{where} has dtype {array.dtype}, expected {leaf.dtype} = {space}.dtype, and a cast could change values: "
        f"if that is intended, convert with .astype({name})"
    )


def _shortened(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
