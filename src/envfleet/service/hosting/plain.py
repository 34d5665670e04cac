"""Infos and spaces as the plain values that a service sends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.remote.codec import KINDS

_ALWAYS = frozenset({"action_mask", "final_obs", "final_info", "episode"})
"""Infos that agents need, or that belong to Gymnasium's interface of vector environments."""


def select_infos(infos: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return the infos of some names with their masks, also within `final_info`, and those that are always sent."""
    return {
        name: select_infos(column, names) if name == "final_info" and isinstance(column, Mapping) else column
        for name, column in infos.items()
        if (plain := name.removeprefix("_")) in names or plain in _ALWAYS
    }


def infos_to_plain(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return infos in Gymnasium's form as values that `pack` takes.

    Columns of numbers, masks among them, and dicts stay what they are. A column of objects becomes `[rows, values]`,
    the rows that have one and a list of them or one array; objects other than numbers, texts and arrays become text,
    and so do integers of more than 64 bits.
    """
    return {name: _column_to_plain(column) for name, column in infos.items()}


def _column_to_plain(column: Any) -> Any:
    if not isinstance(column, np.ndarray):
        return infos_to_plain(column)
    if column.dtype.kind in KINDS:
        return column
    values = column.tolist()
    rows = [row for row, value in enumerate(values) if value is not None]
    return [np.array(rows, np.uint32), _stacked([values[row] for row in rows])]


def _stacked(values: list[Any]) -> Any:
    """Return one array of arrays that are alike, which is shorter; else a list of what can be sent."""
    forms = {(value.shape, value.dtype) if isinstance(value, np.ndarray) else None for value in values}
    form = forms.pop() if len(forms) == 1 else None
    return np.stack(values) if form is not None and form[1].kind in KINDS else _sendable(values)


def _sendable(value: Any) -> Any:
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if value is None or isinstance(value, (float, str, bytes, np.generic)):
        return value
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in KINDS else [_sendable(each) for each in value.tolist()]
    if isinstance(value, Mapping):
        return {str(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sendable(each) for each in value]
    return repr(value)


def space_to_plain(space: gym.Space[Any]) -> dict[str, Any]:
    """Return a space as values that `pack` takes.

    Raises:
        InvalidArgument: The space is not a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple.
    """
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[name, space_to_plain(each)] for name, each in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_plain(each) for each in space.spaces]}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    dtype = np.dtype(space.dtype).str
    if isinstance(space, spaces.Box):
        low, high = _uniform(space.low), _uniform(space.high)
        return {"type": "Box", "low": low, "high": high, "shape": list(space.shape), "dtype": dtype}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start, "dtype": dtype}
    raise InvalidArgument(
        f"a space of type {type(space).__name__} cannot be sent: a service hosts environments of Box, Discrete, "
        "MultiDiscrete, MultiBinary, Dict and Tuple spaces"
    )


def _uniform(bounds: NDArray[Any]) -> Any:
    """Return one number if all are the same."""
    return bounds.flat[0].item() if bounds.size and bool((bounds == bounds.flat[0]).all()) else bounds
