"""Availability of CUDA for kernels, and streams."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import types
from typing import Any

from envfleet.errors import InvalidArgument

_ADVICE = "pip install 'envfleet[cuda]' on a machine with an NVIDIA GPU and its driver, or leave out device='cuda'"


def import_cuda() -> Any:
    """Return the module `numba.cuda` of numba-cuda.

    Raises:
        InvalidArgument: numba-cuda is not installed.
    """
    if importlib.util.find_spec("numba_cuda") is None:
        raise InvalidArgument(f"device='cuda' requires numba-cuda, which is not installed: {_ADVICE}")
    return importlib.import_module("numba.cuda")


def cuda_target() -> types.ModuleType:
    """Import the compiler of kernels, `numba_cuda`.

    Raises:
        InvalidArgument: numba-cuda is not installed, or its simulator is switched on.
    """
    import_cuda()
    try:
        return importlib.import_module("envfleet.kernels.cuda.numba_cuda")
    except ImportError as error:
        if not importlib.import_module("numba").config.ENABLE_CUDASIM:
            raise
        raise InvalidArgument(
            "NUMBA_ENABLE_CUDASIM=1 replaces numba-cuda's compiler by a simulator, which does not support kernels "
            f"({error}): unset it to use a GPU, or leave out device='cuda'"
        ) from error


_LEGACY_STREAM = 1  # number of the default stream in __cuda_array_interface__


@dataclasses.dataclass(frozen=True)
class Stream:
    """CUDA stream of a fleet; work runs in the order of the calls.

    Args:
        handle: CUDA's handle; 0 for the default stream.
    """

    handle: int

    @property
    def number(self) -> int:
        """Number of the stream in `__cuda_array_interface__`."""
        return self.handle or _LEGACY_STREAM

    @functools.cached_property
    def of_numba(self) -> Any:
        """Stream for numba's functions."""
        return import_cuda().external_stream(self.handle) if self.handle else 0

    def follow(self, other: int | None) -> None:
        """Wait for the work of another stream, if it is another one."""
        if other not in {None, self.number}:
            import_cuda().external_stream(other).synchronize()


def require_cuda() -> None:
    """Check that a device is available, or numba's simulator (`NUMBA_ENABLE_CUDASIM=1`).

    Raises:
        InvalidArgument: CUDA, a device or numba-cuda is missing; the message says which.
    """
    cuda = import_cuda()
    if importlib.import_module("numba").config.ENABLE_CUDASIM:
        return
    try:
        devices = len(cuda.gpus)
    except cuda.CudaSupportError as error:
        reason = " ".join(str(error).split()).removeprefix("Error at driver init: ")
        raise InvalidArgument(f"device='cuda', but CUDA does not start ({reason.rstrip(' :')}): {_ADVICE}") from error
    if devices == 0:
        raise InvalidArgument(f"device='cuda', but the CUDA driver reports no device: {_ADVICE}")
