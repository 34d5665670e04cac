"""Checks on what a person asks of a fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument


def check_seeds(seed: int | Sequence[int | None] | None, num_envs: int, offset: int = 0) -> list[int | None]:
    """One seed (or `None`) per sub-environment.

    Args:
        seed: `None`, an int (`seed + offset + i` for sub-environment `i`) or one per sub-environment.
        num_envs: How many.
        offset: Index of the first in the whole fleet.

    Raises:
        InvalidArgument: A sequence of another length, or something that is no seed.
    """
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        if seed < 0:
            raise InvalidArgument(f"seed={seed}: pass an int of 0 or more")
        return [int(seed) + offset + i for i in range(num_envs)]
    return check_each_seed(seed, num_envs, "num_envs", "seed")


def check_each_seed(seeds: Any, count: int, count_name: str, name: str) -> list[int | None]:
    """Seeds that are given one by one.

    Args:
        seeds: A sequence or array of ints or `None`.
        count: How many there must be.
        count_name: What there must be one for each of.
        name: What they were given as.

    Raises:
        InvalidArgument: Another number of them, or something that is no seed.
    """
    if not isinstance(seeds, (Sequence, np.ndarray)) or isinstance(seeds, (str, bytes)):
        one_int = "an int, " if name == "seed" else ""
        raise InvalidArgument(f"{name}={seeds!r}: pass None, {one_int}or one seed per sub-environment")
    if len(seeds) != count:
        raise InvalidArgument(
            f"{name} has {len(seeds)} entries, expected one for each of {count_name} ({count}): "
            "pass one int or None per sub-environment"
        )
    if any(one is not None and (not isinstance(one, (int, np.integer)) or one < 0) for one in seeds):
        raise InvalidArgument(f"{name}={seeds}: pass ints of 0 or more, or None")
    return [None if one is None else int(one) for one in seeds]


def check_options(options: Any, name: str = "options") -> None:
    """Check that what is given for a reset is a dict, or `None`.

    Args:
        options: What is given.
        name: What it was given as.

    Raises:
        InvalidArgument: It is something else.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(f"{name}={options!r} (type {type(options).__name__}), expected a dict: pass one, or None")


def check_mask(mask: Any, num_envs: int) -> NDArray[np.bool_]:
    """A bool array of the right shape with at least one entry set.

    Raises:
        InvalidArgument: It is not.
    """
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        found = f"a {type(mask).__name__}" if not isinstance(mask, np.ndarray) else f"dtype {mask.dtype}"
        raise InvalidArgument(f"reset_mask is {found}, expected a numpy array of bool: np.array(mask, dtype=bool)")
    if mask.shape != (num_envs,):
        raise InvalidArgument(
            f"reset_mask has shape {mask.shape}, expected (num_envs,) = ({num_envs},): "
            "pass one bool per sub-environment"
        )
    if not mask.any():
        raise InvalidArgument("reset_mask selects no sub-environment: set at least one entry, or do not reset")
    return mask


def check_rows(indices: Sequence[int] | NDArray[np.integer[Any]], num_envs: int) -> NDArray[np.int64]:
    """Different indices of sub-environments, at least one.

    Raises:
        InvalidArgument: They are not.
    """
    rows = np.asarray(indices)
    if rows.ndim != 1 or rows.size == 0 or not np.issubdtype(rows.dtype, np.integer):
        raise InvalidArgument(f"indices={indices!r}: pass a non-empty list of ints, or reset_mask for a mask of bools")
    if rows.min() < 0 or rows.max() >= num_envs:
        raise InvalidArgument(
            f"indices={rows}, expected numbers from 0 to {num_envs - 1} (num_envs={num_envs}): pass those of "
            "sub-environments that there are; none counts from the end"
        )
    if len(np.unique(rows)) < len(rows):
        raise InvalidArgument(f"indices={rows} names a sub-environment twice: name each once")
    return rows.astype(np.int64)


def check_indices(indices: Sequence[int] | NDArray[np.integer[Any]], num_envs: int) -> list[int]:
    """The same as a list."""
    chosen: list[int] = check_rows(indices, num_envs).tolist()
    return chosen
