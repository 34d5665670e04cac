"""Checks on what a person asks of a fleet of a million, without a Python object for each sub-environment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_options, check_seeds, check_whole

_TOO_LARGE = 2**64


def read_first_seed(seed: int | None, num_envs: int) -> int:
    """Return the seed of the first of `num_envs` sub-environments, whose others follow it; drawn, if it is `None`.

    Raises:
        InvalidArgument: It is no seed that leaves room for the others below 2**64.
    """
    if seed is None:
        return secrets.randbits(63)
    return check_whole("seed", seed, 0, _TOO_LARGE - num_envs, most_name="2**64 - num_envs")


def read_limit(max_episode_steps: Any) -> int | None:
    """Return a time limit; -1 is none, as in `gymnasium.make`.

    Raises:
        InvalidArgument: It is no whole number of at least 1.
    """
    if max_episode_steps is None or (isinstance(max_episode_steps, (int, np.integer)) and max_episode_steps == -1):
        return None
    return check_whole("max_episode_steps", max_episode_steps, 1)


def check_render_mode(render_mode: str | None) -> None:
    """Check that kernels can be rendered so.

    Raises:
        InvalidArgument: They cannot.
    """
    if render_mode not in (None, "rgb_array"):
        raise InvalidArgument(f"render_mode={render_mode!r}: kernels render as 'rgb_array', or not at all (None)")


def read_seeds(seed: int | Sequence[int | None], num_envs: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return seeds, and which of them are given.

    Raises:
        InvalidArgument: A sequence of another length, or something that is no seed below 2**64.
    """
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        return np.uint64(read_first_seed(int(seed), num_envs)) + np.arange(num_envs, dtype=np.uint64), np.ones(
            num_envs, np.bool_
        )
    seeds: Any = check_seeds(seed, num_envs)
    if any(one is not None and one >= _TOO_LARGE for one in seeds):
        raise InvalidArgument("a seed is 2**64 or more: pass smaller ones; kernels keep seeds in 64 bits")
    values = np.array([0 if one is None else one for one in seeds], np.uint64)
    return values, np.array([one is not None for one in seeds])


def read_params(options: Any) -> Mapping[str, Any]:
    """Return the parameters among the options of a reset.

    Raises:
        InvalidArgument: The options, or the parameters, are no dict, or there are others.
    """
    check_options(options)
    unknown = set(options or {}) - {"params"}
    if unknown:
        raise InvalidArgument(
            f"options has {min(unknown)!r}, expected 'params', or 'reset_mask' of a fleet: a kernel's reset takes no "
            "options of its own, only parameters"
        )
    params = (options or {}).get("params")
    check_options(params, name="options['params']")
    return params or {}
