"""Checks of arguments; every message has the invalid value, what is accepted and what to do."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument

Seeds: TypeAlias = int | list[int | None] | None
"""Seeds as engines receive them: an int for `seed + index`, one entry per row, or `None` for no new seeds."""


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Check that a value is one of `choices`."""
    if value not in choices:
        raise InvalidArgument(f"{name}={value!r}: pass one of {', '.join(repr(choice) for choice in choices)}")


def check_whole(name: str, value: Any, least: int, most: int | None = None, *, most_name: str = "") -> int:
    """Check a whole number of any integer type, including NumPy's, and return it as an int."""
    largest = f"{most_name}={most}" if most_name else most
    expected = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {largest}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name}={value!r} (type {type(value).__name__}): pass {expected}") from error
    if number < least or (most is not None and number > most):
        raise InvalidArgument(f"{name}={number}: pass {expected}")
    return number


def check_flag(name: str, value: Any) -> None:
    """Check that a value is `True` or `False`."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidArgument(f"{name}={value!r} (type {type(value).__name__}): pass True or False")


def check_seconds(name: str, value: Any, *, is_positive: bool = True) -> None:
    """Check that a value is a finite number of seconds, above 0 if it `is_positive`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float, np.integer, np.floating))
        or not (0 if is_positive else -math.inf) < value < math.inf
    ):
        raise InvalidArgument(f"{name}={value!r}: pass a number of seconds{' above 0' * is_positive}")


def check_name(call: str, name: Any) -> None:
    """Check the name of an attribute of sub-environments that was passed to `call`."""
    if not isinstance(name, str):
        raise InvalidArgument(f"{call} got the name {name!r} (type {type(name).__name__}): pass a str")


def check_values(values: Any, num_envs: int) -> None:
    """Check values of an attribute: a list or tuple with one for each sub-environment, or one value for all."""
    if isinstance(values, (list, tuple)) and len(values) != num_envs:
        raise InvalidArgument(
            f"Values must be a list or tuple with length equal to the number of environments. Got `{len(values)}` "
            f"values for {num_envs} environments. Pass one for each, or one value for all."
        )


def check_seeds(seed: Any, count: int, *, one_for_all: bool = True, per: str = "num_envs") -> Seeds:
    """Check seeds for `count` sub-environments.

    Args:
        seed: Argument of the caller.
        count: Number of sub-environments to reset.
        one_for_all: If True, one int is accepted, and sub-environment `index` gets `seed + index`.
        per: Name of the expected number of entries, for messages.
    """
    name = "seed" if one_for_all else "seeds"
    if seed is None:
        return None
    if one_for_all and isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if seed < 0:
            raise InvalidArgument(f"{name}={seed}: pass an int of 0 or more")
        return int(seed)
    if not isinstance(seed, (Sequence, np.ndarray)) or isinstance(seed, (str, bytes)):
        raise InvalidArgument(f"{name}={seed!r}: pass None, {'an int, ' * one_for_all}or one seed for each")
    if len(seed) != count:
        raise InvalidArgument(
            f"{name} has {len(seed)} entries, expected one for each of {per} ({count}): "
            "pass one int or None per sub-environment"
        )
    if any(one is not None and (not isinstance(one, (int, np.integer)) or one < 0) for one in seed):
        raise InvalidArgument(f"{name}={seed}: pass ints of 0 or more, or None")
    return [None if one is None else int(one) for one in seed]


def check_options(options: Any, count: int | None = None, name: str = "options") -> None:
    """Check options for a reset: `None`, one dict, or with `count` a sequence of one dict or `None` per row."""
    if count is not None and isinstance(options, (list, tuple, np.ndarray)):
        if len(options) != count:
            raise InvalidArgument(
                f"{name} has {len(options)} entries, expected one for each of {count}: pass one dict for all, or a "
                "dict or None for each"
            )
        for one in options:
            check_options(one, name=f"an entry of {name}")
    elif options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(
            f"{name}={options!r} (type {type(options).__name__}), expected a dict: pass one for all, or None"
        )


def check_mask(mask: Any, num_envs: int) -> NDArray[np.int64]:
    """Check a `reset_mask` and return the rows that it selects, int64, at least one."""
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        actual = f"dtype {mask.dtype}" if isinstance(mask, np.ndarray) else f"a {type(mask).__name__}"
        raise InvalidArgument(f"reset_mask is {actual}, expected a numpy array of bool: np.array(mask, dtype=bool)")
    if mask.shape != (num_envs,):
        raise InvalidArgument(
            f"reset_mask has shape {mask.shape}, expected (num_envs,) = ({num_envs},): pass one bool for each"
        )
    if not mask.any():
        raise InvalidArgument("reset_mask selects no sub-environment: set at least one entry, or do not reset")
    return np.flatnonzero(mask)


def check_rows(indices: Sequence[int] | NDArray[np.integer[Any]], num_envs: int) -> NDArray[np.int64]:
    """Check indices of sub-environments, at least one and each once, and return them as int64."""
    rows = np.asarray(indices)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise InvalidArgument(f"indices={indices!r}: pass a non-empty list of ints; for a mask, np.flatnonzero(mask)")
    if rows.min() < 0 or rows.max() >= num_envs:
        raise InvalidArgument(
            f"indices={rows}, expected numbers from 0 to {num_envs - 1} (num_envs={num_envs}): name sub-environments "
            "that exist; negative indices do not count from the end"
        )
    if len(np.unique(rows)) < len(rows):
        raise InvalidArgument(f"indices={rows} names a sub-environment twice: name each once")
    return rows.astype(np.int64)


def check_reward_shape(reward: Any, shape: tuple[int, ...]) -> None:
    """Check the shape of a vector reward, because NumPy would broadcast other shapes.

    Raises:
        InvalidArgument: `reward` has another shape.
    """
    actual_shape = np.shape(reward)
    if actual_shape != shape:
        raise InvalidArgument(
            f"step() returned the reward {reward!r:.100} of shape {actual_shape}, expected shape {shape} as in "
            "reward_space: return such a vector, or, if a wrapper changes rewards, define its reward_space "
            "(a Box of shape () for numbers)"
        )
