"""Actions in the host's memory, as a person gives them, made what compiled code takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.nested import map_arrays
from envfleet.kernels.kernel import ArraySpec, KernelSpec


def convert_actions(spec: KernelSpec, actions: Any, leading: tuple[int, ...]) -> NDArray[Any]:
    """Actions as a contiguous array of the action space's dtype; whether they are in the space is not checked.

    Args:
        spec: The kernel.
        actions: An array, list or tensor of the host.
        leading: `(num_envs,)`, or `(num_steps, num_envs)`.

    Raises:
        InvalidArgument: No array, another shape or dtype, or an int that would wrap around.
    """
    parts, dtype = spec.action.parts, spec.action.dtype
    if not parts:
        return _convert(spec.action, actions, leading, "")
    if isinstance(actions, np.ndarray) and actions.dtype == dtype and actions.shape == leading:
        return np.ascontiguousarray(actions)
    keys = [key for key, _ in parts]
    found = list(actions) if isinstance(actions, Mapping) else None
    if isinstance(actions, (tuple, list)):
        found = list(range(len(actions)))
    if found is None or sorted(found, key=repr) != sorted(keys, key=repr):
        raise InvalidArgument(
            f"actions are a {type(actions).__name__} of {found}, expected one array for each of {keys} as in "
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
    if dtype.kind in "iu" and not np.array_equal(converted, array):  # what wraps around may look right
        differs = (converted != array).reshape(int(np.prod(leading)), -1).any(axis=1)
        refuse_action(form, array, leading, int(np.argmax(differs)))
    return converted


def as_array(actions: Any) -> NDArray[Any]:
    """Return one action or several as an array of whatever shape and dtype.

    Raises:
        InvalidArgument: NumPy cannot make one, as of rows of different lengths or of a tensor on another device.
    """
    try:
        return np.asarray(actions)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(
            f"actions given as {type(actions).__name__} are no array ({error}): pass an array of the host, as with "
            "torch's actions.detach().cpu().numpy()"
        ) from error


def refuse_action(form: ArraySpec, actions: NDArray[Any], leading: tuple[int, ...], place: int) -> NoReturn:
    """Say which action is not in the space.

    Args:
        form: Of one action.
        actions: All of them.
        leading: `(num_envs,)`, or `(num_steps, num_envs)`.
        place: Which, counted over the leading dimensions.

    Raises:
        InvalidArgument: Always.
    """
    *steps, row = (int(index) for index in np.unravel_index(place, leading))
    when = f"at step {steps[0]} " if steps else ""
    raise InvalidArgument(
        f"{when}the action of sub-environment {row} is {actions[(*steps, row)]!s}, which is not in "
        f"{form.space}; nothing was stepped"
    )
