"""Checks of seeds, options and parameters, without a Python object for each of a million sub-environments."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import Seeds, check_options, check_whole
from envfleet.kernels.kernel import KernelSpec
from envfleet.options import OPTIONS, advise

LARGEST_SEED = 2**64 - 1


def read_first_seed(seed: int | None, num_envs: int) -> int:
    """Return the seed of the first sub-environment, drawn if it is `None`; those of the others follow it.

    Raises:
        InvalidArgument: The seed is invalid, or too large for the others to be below 2**64.
    """
    if seed is None:
        return secrets.randbits(63)
    return check_whole("seed", seed, 0, LARGEST_SEED + 1 - num_envs, most_name="2**64 - num_envs")


def read_limit(max_episode_steps: Any) -> int | None:
    """Return a time limit, or `None` for -1, as in `gymnasium.make`.

    Raises:
        InvalidArgument: The limit is not an integer of at least 1.
    """
    return None if max_episode_steps in (None, -1) else check_whole("max_episode_steps", max_episode_steps, 1)


def read_seeds(seeds: Seeds, rows: NDArray[np.int64], num_envs: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the seeds of the rows that are reset, and a mask of the rows that have one.

    Raises:
        InvalidArgument: A seed is not below 2**64.
    """
    if seeds is None:
        return np.zeros(len(rows), np.uint64), np.zeros(len(rows), np.bool_)
    if isinstance(seeds, int):
        return np.uint64(read_first_seed(seeds, num_envs)) + rows.astype(np.uint64), np.ones(len(rows), np.bool_)
    if any(seed is not None and seed > LARGEST_SEED for seed in seeds):
        raise InvalidArgument("a seed is 2**64 or more, expected 64 bits: pass smaller seeds")
    return np.array([seed or 0 for seed in seeds], np.uint64), np.array([seed is not None for seed in seeds])


def read_params(options: Any) -> Mapping[str, Any]:
    """Return the parameters in the options of a reset.

    Raises:
        InvalidArgument: The options or the parameters are not a dict, or there are other options.
    """
    check_options(options)
    unknown = set(options or {}) - {"params"}
    if unknown:
        raise InvalidArgument(
            f"options has {min(unknown)!r}, expected 'params', or 'reset_mask' of a fleet: pass values to a kernel's "
            "reset as parameters"
        )
    params = (options or {}).get("params")
    check_options(params, name="options['params']")
    return params or {}


def check_params(spec: KernelSpec, num_envs: int, values: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters by name, each `(1, …)` for all or `(num_envs, …)`.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        values: New values by name: one value for all, or one per sub-environment.
        now: Current values of all parameters, each `(1, …)` or `(num_envs, …)`.

    Raises:
        InvalidArgument: A name is not a parameter, values have a wrong shape or type, or the kernel rejects them.
    """
    unknown = sorted(set(values) - set(spec.params.names))
    if unknown:
        known = ", ".join(spec.params.names) or "none"
        advice = advise(unknown[0], [*spec.params.names, *OPTIONS])
        raise InvalidArgument(f"{spec.name} has no parameter {unknown[0]!r}, its parameters are {known}: {advice}")
    checked = {name: convert_values(spec.params.dtype[name], num_envs, name, value) for name, value in values.items()}
    for name, array in checked.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise InvalidArgument(f"{name}={reprlib.repr(values[name])} has a NaN, expected numbers: pass others")
    spec.kernel.check_params({**now, **checked})
    return checked


def convert_values(field: np.dtype[Any], num_envs: int, name: str, value: Any) -> NDArray[Any]:
    """Return values of a field as a new array, `(1, …)` for all sub-environments or `(num_envs, …)`.

    Args:
        field: Dtype of the field.
        num_envs: Number of sub-environments.
        name: Name of the field.
        value: One value for all sub-environments, or one each.

    Raises:
        InvalidArgument: Values have a wrong shape or type, or are too large for the dtype.
    """
    dtype, shape, argument = field.base, field.shape, f"{name}={reprlib.repr(value)}"
    try:
        array = np.asarray(value)
        with np.errstate(over="ignore"):
            converted = array.astype(dtype, casting="unsafe" if array.dtype.kind in "iub" else "same_kind")
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{argument} cannot be converted to {dtype}: pass {dtype} or an array of it") from error
    lost = converted != array if array.dtype.kind in "iu" else np.isinf(converted) & np.isfinite(array)
    if lost.any():
        raise InvalidArgument(f"{argument} does not fit into {dtype}: pass a smaller number")
    if converted.shape == shape:
        return converted.reshape(1, *shape)
    if converted.shape in ((num_envs, *shape), (1, *shape)):
        return converted
    raise InvalidArgument(
        f"{name} has shape {converted.shape}, expected {shape} for all sub-environments or {(num_envs, *shape)}: "
        "pass one value, or one per sub-environment"
    )
