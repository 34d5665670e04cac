"""Checks on what a person asks of a fleet of a million, without a Python object for each sub-environment."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.checks import check_options, check_seeds, check_whole
from envfleet.kernels.kernel import KernelSpec

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


def check_params(spec: KernelSpec, num_envs: int, values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return parameters by name, each `(1, …)` for all or `(num_envs, …)`.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        values: What is given: one value for all, or one per sub-environment.

    Raises:
        InvalidArgument: A name that is no parameter, values of a wrong shape or type, or that the kernel cannot use.
    """
    unknown = sorted(set(values) - set(spec.params.names))
    if unknown:
        known = ", ".join(spec.params.names) or "none"
        raise InvalidArgument(f"{spec.name} has no parameter {unknown[0]!r}; its parameters are: {known}")
    checked = {name: _check_param(spec, num_envs, name, value) for name, value in values.items()}
    spec.kernel.check_params(checked)
    return checked


def merge_params(
    spec: KernelSpec,
    num_envs: int,
    present: Mapping[str, NDArray[Any]],
    values: Mapping[str, Any],
    rows: NDArray[np.int64] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return the present parameters with some of them changed, in some rows or for all.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        present: What `check_params` returned.
        values: By name, each for all of `rows` or one per row.
        rows: Which; `None` for all.

    Raises:
        InvalidArgument: As in `check_params`.
    """
    if rows is None:
        return {**present, **check_params(spec, num_envs, values)}
    merged = dict(present)
    for name, changed in check_params(spec, len(rows), values).items():
        whole = np.broadcast_to(merged[name], (num_envs, *merged[name].shape[1:])).copy()
        whole[rows] = changed
        merged[name] = whole
    return merged


def _check_param(spec: KernelSpec, num_envs: int, name: str, value: Any) -> NDArray[Any]:
    dtype, shape = spec.params.dtype[name].base, spec.params.dtype[name].shape
    try:
        array = np.asarray(value)
        converted = array.astype(dtype, casting="unsafe" if array.dtype.kind in "iub" else "same_kind")
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}={value!r}: pass {dtype} or an array of it") from error
    if converted.dtype.kind == "f" and np.isnan(converted).any():
        raise InvalidArgument(f"{name}={value!r} has a NaN, expected numbers: {spec.name} would calculate with it")
    if array.dtype.kind in "iu" and not np.array_equal(converted, array):
        raise InvalidArgument(f"{name}={value!r} does not fit into {dtype}: pass a smaller number")
    if converted.shape == shape:
        return converted.reshape(1, *shape)
    if converted.shape in ((num_envs, *shape), (1, *shape)):
        return converted.copy()
    raise InvalidArgument(
        f"{name} has shape {converted.shape}, expected {shape} for all sub-environments or {(num_envs, *shape)}: "
        "pass one value, or one per sub-environment"
    )
