"""Parameters as a person gives them, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import KernelSpec


def check_params(
    spec: KernelSpec, num_envs: int, values: Mapping[str, Any], *, only_given: bool = False
) -> dict[str, NDArray[Any]]:
    """Parameters by name, each `(1, …)` for all or `(num_envs, …)`.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        values: What is given: one value for all, or one per sub-environment.
        only_given: Leave out the others, rather than take their defaults.

    Raises:
        InvalidArgument: A name that is no parameter, values of a wrong shape or type, or that the kernel cannot use.
    """
    unknown = sorted(set(values) - set(spec.params.names))
    if unknown:
        known = ", ".join(spec.params.names) or "none"
        raise InvalidArgument(f"{spec.name} has no parameter {unknown[0]!r}; its parameters are: {known}")
    defaults = {} if only_given else spec.params.defaults
    checked = {name: _check_one(spec, num_envs, name, value) for name, value in {**defaults, **values}.items()}
    spec.kernel.check_params(checked)
    return checked


def merge_params(
    spec: KernelSpec,
    num_envs: int,
    present: Mapping[str, NDArray[Any]],
    values: Mapping[str, Any],
    rows: NDArray[np.int64] | None,
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
        return {**present, **check_params(spec, num_envs, values, only_given=True)}
    merged = dict(present)
    for name, changed in check_params(spec, len(rows), values, only_given=True).items():
        whole = np.broadcast_to(merged[name], (num_envs, *merged[name].shape[1:])).copy()
        whole[rows] = changed
        merged[name] = whole
    return merged


def _check_one(spec: KernelSpec, num_envs: int, name: str, value: Any) -> NDArray[Any]:
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
