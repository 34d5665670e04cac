"""Writer of actions: checks the actions of a call and puts them where the workers read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envfleet import errors
from envfleet.fleet.engine import Rows
from envfleet.fleet.layout import SpaceLayout

_FEW = 4096
"""Actions times sub-environments up to which looking each up beats comparing arrays."""


class ActionWriter:
    """Writer of a fleet's actions.

    Args:
        layout: Layout of one sub-environment's actions.
        arrays: Arrays of the actions, which workers read.
        num_envs: Number of sub-environments.
        is_lenient: True if actions are passed on unchecked, by mail where they do not fit the arrays.
    """

    def __init__(self, layout: SpaceLayout, arrays: Sequence[NDArray[Any]], num_envs: int, *, is_lenient: bool) -> None:
        self._layout, self._arrays, self._num_envs, self._is_lenient = layout, arrays, num_envs, is_lenient
        self._batched_space = batch_space(layout.space, num_envs)
        self._integers, self._are_allowed = _read_integers(layout, arrays)

    def write(self, actions: Any, *, are_checked_later: bool = False) -> tuple[Any, Any] | None:
        """Write actions of all rows.

        Args:
            actions: Actions of all sub-environments, batched.
            are_checked_later: True if the reader of the actions checks their range.

        Returns:
            Action leaves that are objects, and actions that fit no array, to send by mail; usually `None`.

        Raises:
            InvalidArgument: The actions are invalid.
        """
        if self._integers is not None and type(actions) is np.ndarray:
            try:
                self._integers[:] = actions  # checks type and shape in C
                if are_checked_later or self._are_allowed():
                    return None
            except (TypeError, ValueError):
                pass
        if self._is_lenient:
            return self._write_unchecked(actions)
        leaves, objects = self._layout.unbatch(actions, self._num_envs)
        for target, leaf in zip(self._arrays, leaves, strict=True):
            target[...] = leaf
        return (objects, None) if objects else None

    def _write_unchecked(self, actions: Any) -> tuple[Any, Any] | None:
        arrays = self._arrays
        form = getattr(actions, "dtype", None), getattr(actions, "shape", None)
        if self._layout.is_array and type(actions) is np.ndarray and form == (arrays[0].dtype, arrays[0].shape):
            arrays[0][...] = actions
            return None
        try:
            values = list(iterate(self._batched_space, actions))
        except TypeError as error:
            raise errors.ActionsNotBatched(
                f"actions={actions!r:.100}: pass one for each of the {self._num_envs} sub-environments, batched"
            ) from error
        if len(values) != self._num_envs:
            raise errors.InvalidArgument(f"{len(values)} actions were given, expected one for each of {self._num_envs}")
        return (), values

    def write_rows(self, actions: Any, rows: Rows) -> list[list[Any]]:
        """Write actions of some rows; return the action leaves that are objects."""
        leaves, objects = self._layout.unbatch(actions, len(rows))
        for target, leaf in zip(self._arrays, leaves, strict=True):
            target[rows] = leaf
        return objects


def _read_integers(layout: SpaceLayout, arrays: Sequence[NDArray[Any]]) -> tuple[Any, Callable[[], bool]]:
    """Return a fast way to take one integer per row.

    Returns:
        The one array as a buffer, to which assignment checks type and shape in C, and a check of whether what it holds
        is in the space; `None` unless actions are such integers.
    """
    if not layout.is_array or arrays[0].ndim != 1 or arrays[0].dtype.kind not in "iu":
        return None, lambda: False
    array: Any = arrays[0]
    integers, space = memoryview(array), layout.space
    if not isinstance(space, gym.spaces.Discrete) or len(integers) * int(space.n) > _FEW:
        return integers, lambda: layout.leaves[0].holds(array)
    allowed = frozenset(range(int(space.start), int(space.start) + int(space.n)))
    return integers, functools.partial(allowed.issuperset, integers)  # for few, a tenth of the time of comparing arrays
