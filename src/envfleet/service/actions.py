"""Actions of environments that are no kernels: those outside a discrete space are refused before a step."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envfleet.errors import InvalidArgument


def refuse_outside(space: gym.Space[Any], actions: Any, rows: Any = None) -> None:
    """Check actions against the bounds of discrete spaces, also within `Dict` and `Tuple`.

    Args:
        space: Of one sub-environment.
        actions: One for each row, of the space's structure. Other shapes than the space's are left to the fleet.
        rows: Of which sub-environments, `(count,)`; of all, if not given.

    Raises:
        InvalidArgument: One is not in the space.
    """
    if isinstance(space, spaces.Dict):
        for name, each in space.spaces.items():
            refuse_outside(each, actions[name], rows)
        return
    if isinstance(space, spaces.Tuple):
        for each, part in zip(space.spaces, actions, strict=True):
            refuse_outside(each, part, rows)
        return
    bounds = _bounds(space)
    array = np.asarray(actions)
    if bounds is None or array.ndim == 0 or array.shape[1:] != space.shape:
        return
    low, high = bounds
    is_outside = ((array < low) | (array > high)).any(axis=tuple(range(1, array.ndim)))
    if is_outside.any():
        place = int(np.argmax(is_outside))
        row = place if rows is None or len(rows) != len(array) else int(rows[place])
        given, lowest, highest = (np.asarray(each).tolist() for each in (array[place], low, high))
        raise InvalidArgument(
            f"the action of sub-environment {row} is {given}, which is not in {space}: pass {lowest} to {highest}; "
            "nothing was stepped"
        )


def _bounds(space: gym.Space[Any]) -> tuple[Any, Any] | None:
    """The least and the greatest value of a discrete space; `None` for other spaces."""
    if isinstance(space, spaces.Discrete):
        low, count = int(space.start), int(space.n)
        return low, low + count - 1
    if isinstance(space, spaces.MultiDiscrete):
        lows = np.asarray(space.start, np.int64)
        return lows, lows + np.asarray(space.nvec, np.int64) - 1
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    return None
