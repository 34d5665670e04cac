"""Conversion of actions in the host's memory to arrays for compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.nested import map_arrays
from envfleet.kernels.kernel import ArraySpec, KernelSpec


def convert_actions(spec: KernelSpec, actions: Any, leading: tuple[int, ...]) -> NDArray[Any]:
    """Return actions as a contiguous array of the action space's dtype, without checking that they are in the space.

    Args:
        spec: The kernel.
        actions: Array, list or tensor on the host.
        leading: Leading dimensions, `(num_envs,)` or `(num_steps, num_envs)`.

    Raises:
        InvalidArgument: Actions are not an array, have another shape or dtype, or an int would wrap around.
    """
    parts, dtype = spec.action.parts, spec.action.dtype
    if not parts:
        return _convert(spec.action, actions, leading, "")
    if isinstance(actions, np.ndarray) and actions.dtype == dtype and actions.shape == leading:
        return np.ascontiguousarray(actions)
    keys = [key for key, _ in parts]
    actual = list(actions) if isinstance(actions, Mapping) else None
    if isinstance(actions, (tuple, list)):
        actual = list(range(len(actions)))
    if actual is None or sorted(actual, key=repr) != sorted(keys, key=repr):
        raise InvalidArgument(
            f"actions are a {type(actions).__name__} of {actual}, expected one array for each of {keys} as in "
            f"{spec.action.space}: pass what action_space.sample() returns"
        )
    packed = np.zeros(leading, dtype)
    for name, (key, part) in zip(dtype.names or (), parts, strict=True):
        packed[name] = _convert(part, actions[key], leading, f"[{key!r}]")
    return packed


def batch_of_one(spec: KernelSpec, action: Any) -> Any:
    """Return one action with a leading dimension of 1."""
    if not spec.action.parts:
        return as_array(action)[np.newaxis]
    return map_arrays(action, lambda part: as_array(part)[np.newaxis])


def _convert(form: ArraySpec, actions: Any, leading: tuple[int, ...], part: str) -> NDArray[Any]:
    array, dtype, shape = as_array(actions), form.dtype, (*leading, *form.shape)
    if array.shape != shape:
        each = "one action per sub-environment" if len(leading) == 1 else "(T, N, …), one per step and sub-environment"
        raise InvalidArgument(f"actions{part} have shape {array.shape}, expected {shape}: {each}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgument(
            f"actions{part} have dtype {array.dtype}, expected {dtype}: convert them with "
            f"actions{part}.astype(np.{dtype})"
        )
    converted = np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED"])
    if dtype.kind in "iu" and not np.array_equal(converted, array):  # a value that wrapped around may look valid
        differs = (converted != array).reshape(int(np.prod(leading)), -1).any(axis=1)
        refuse_action(form, array, leading, int(np.argmax(differs)))
    return converted


def as_array(actions: Any) -> NDArray[Any]:
    """Return actions as an array of any shape and dtype.

    Raises:
        InvalidArgument: NumPy cannot convert them, such as rows of different lengths or a tensor on another device.
    """
    try:
        return np.asarray(actions)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"actions of type {type(actions).__name__} cannot be converted to an array ({error}): pass an array on the "
            "host, such as torch's actions.detach().cpu().numpy()"
        ) from error


def refuse_action(form: ArraySpec, actions: NDArray[Any], leading: tuple[int, ...], place: int) -> NoReturn:
    """Raise an error that names the action that is not in the space.

    Args:
        form: Array form of one action.
        actions: All actions.
        leading: Leading dimensions, `(num_envs,)` or `(num_steps, num_envs)`.
        place: Flat index of the invalid action over the leading dimensions.

    Raises:
        InvalidArgument: Always.
    """
    *steps, row = (int(index) for index in np.unravel_index(place, leading))
    when = f"at step {steps[0]} " if steps else ""
    raise InvalidArgument(
        f"{when}the action of sub-environment {row} is {actions[(*steps, row)]!s}, which is not in "
        f"{form.space}; nothing was stepped"
    )
