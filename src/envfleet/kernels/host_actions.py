"""Actions in the host's memory, as a person gives them, made what compiled code takes."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import KernelSpec


def convert_actions(spec: KernelSpec, actions: Any, leading: tuple[int, ...]) -> NDArray[Any]:
    """Actions as a contiguous array of the action space's dtype; whether they are in the space is not checked.

    Args:
        spec: The kernel.
        actions: An array, list or tensor of the host.
        leading: `(num_envs,)`, or `(num_steps, num_envs)`.

    Raises:
        InvalidArgument: No array, another shape or dtype, or an int that would wrap around.
    """
    array = as_array(actions)
    dtype, shape = spec.action.dtype, (*leading, *spec.action.shape)
    if array.shape != shape:
        each = "one action per sub-environment" if len(leading) == 1 else "(T, N, …), one per step and sub-environment"
        raise InvalidArgument(f"actions have shape {array.shape}, expected {shape}: {each}, first dimension first")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise InvalidArgument(
            f"actions have dtype {array.dtype}, expected {dtype}: convert them with actions.astype(np.{dtype})"
        )
    converted = np.require(array, dtype, ["C_CONTIGUOUS", "ALIGNED"])
    if dtype.kind in "iu" and not np.array_equal(converted, array):  # what wraps around may look right
        differs = (converted != array).reshape(int(np.prod(leading)), -1).any(axis=1)
        refuse_action(spec, array, int(np.argmax(differs)))
    return converted


def as_array(actions: Any) -> NDArray[Any]:
    """One action or several as an array of whatever shape and dtype.

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


def refuse_action(spec: KernelSpec, actions: NDArray[Any], place: int) -> NoReturn:
    """Say which action is not in the space.

    Args:
        spec: The kernel.
        actions: All of them, `(num_envs, …)` or `(num_steps, num_envs, …)`.
        place: Which, counted over the leading dimensions.

    Raises:
        InvalidArgument: Always.
    """
    leading = actions.shape[: actions.ndim - len(spec.action.shape)]
    *steps, row = (int(index) for index in np.unravel_index(place, leading))
    when = f"at step {steps[0]} " if steps else ""
    raise InvalidArgument(
        f"{when}the action of sub-environment {row} is {actions[(*steps, row)]!s}, which is not in "
        f"{spec.action_space}; nothing was stepped"
    )
