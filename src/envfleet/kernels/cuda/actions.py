"""Actions on their way to the device: those of the host are checked here, those of the device by the device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import Stream
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec, choice_limits


class Actions:
    """Takes the actions of a step.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        stream: On which they are read.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, stream: Stream) -> None:
        self._spec, self._stream = spec, stream
        self._dtype, self._shape = spec.action.dtype, (num_envs, *spec.action.shape)

    def take(self, actions: Any) -> tuple[int, Any] | NDArray[Any]:
        """Return where actions lie on the device and what keeps them there, or the host's array, checked for upload.

        Args:
            actions: An array on the device (`__cuda_array_interface__`) of the action space's dtype, or an
                array, list or tensor of the host.

        Raises:
            InvalidArgument: Another shape, dtype or layout; on the host also an action that is not in the space.
        """
        interface = getattr(actions, "__cuda_array_interface__", None)
        if interface is not None:
            return self._take_interface(actions, interface)
        return self._take_host(actions)

    def _take_interface(self, actions: Any, interface: dict[str, Any]) -> tuple[int, Any]:
        shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
        packed = tuple(dtype.itemsize * int(np.prod(shape[k + 1 :], dtype=np.int64)) for k in range(len(shape)))
        strides = interface.get("strides")
        self._check_form(shape, dtype, is_contiguous=strides is None or tuple(strides) == packed)
        self._stream.follow(interface.get("stream"))
        return int(interface["data"][0]), actions

    def _check_form(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, is_contiguous: bool) -> None:
        if shape != self._shape:
            raise InvalidArgument(f"actions have shape {shape}, expected {self._shape}: one action per sub-environment")
        if dtype != self._dtype:
            raise InvalidArgument(
                f"actions on the device have dtype {dtype}, expected {self._dtype}: convert them there, as with "
                f"torch's actions.to(torch.{self._dtype})"
            )
        if not is_contiguous:
            raise InvalidArgument("actions on the device are not contiguous: pass actions.contiguous()")

    def _take_host(self, actions: Any) -> NDArray[Any]:
        array = convert_actions(self._spec, actions, self._shape[:1])
        wrong = self._find_wrong(array)
        if wrong.any():
            refuse_action(self._spec, array, int(np.argmax(wrong.reshape(len(array), -1).any(axis=1))))
        return array

    def _find_wrong(self, array: NDArray[Any]) -> NDArray[np.bool_]:
        limits = choice_limits(self._spec.action_space)
        if limits is None:
            return np.asarray(np.isnan(array), np.bool_)
        low, high = (bound.reshape(self._spec.action.shape) for bound in limits)
        return np.asarray((array < low) | (array >= high), np.bool_)
