"""Whether kernels can run on a CUDA device here, and what to do if not."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import types
from typing import Any

from envfleet.errors import InvalidArgument

_HOW = "pip install 'envfleet[cuda]' on a machine with an NVIDIA GPU and its driver, or leave out device='cuda'"


def import_cuda() -> Any:
    """Return the module `numba.cuda` of numba-cuda.

    Raises:
        InvalidArgument: numba-cuda is not installed.
    """
    if importlib.util.find_spec("numba_cuda") is None:
        raise InvalidArgument(f"device='cuda' needs numba-cuda, which is not installed: {_HOW}")
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
            "NUMBA_ENABLE_CUDASIM=1 replaces numba-cuda's compiler by a simulator, which lacks what kernels need "
            f"({error}): unset it to use a GPU, or leave out device='cuda'"
        ) from error


_LEGACY_STREAM = 1  # CUDA's default stream in the words of __cuda_array_interface__


@dataclasses.dataclass(frozen=True)
class Stream:
    """The CUDA stream of a fleet, on which the order of calls is the order of work.

    Args:
        handle: CUDA's; 0 for the default stream.
    """

    handle: int

    @property
    def number(self) -> int:
        """Its name among libraries that share arrays."""
        return self.handle or _LEGACY_STREAM

    @functools.cached_property
    def of_numba(self) -> Any:
        """What numba takes."""
        return import_cuda().external_stream(self.handle) if self.handle else 0

    def follow(self, other: int | None) -> None:
        """Wait until the work of another stream is through, if there is one."""
        if other not in {None, self.number}:
            import_cuda().external_stream(other).synchronize()


def require_cuda() -> None:
    """Check that there is a device, or numba's simulator (`NUMBA_ENABLE_CUDASIM=1`), which needs none.

    Raises:
        InvalidArgument: There is none, or what it takes is not installed; the message says what was found.
    """
    cuda = import_cuda()
    if importlib.import_module("numba").config.ENABLE_CUDASIM:
        return
    try:
        devices = len(cuda.gpus)
    except cuda.CudaSupportError as error:
        found = " ".join(str(error).split()).removeprefix("Error at driver init: ")
        raise InvalidArgument(f"device='cuda', but CUDA does not start ({found.rstrip(' :')}): {_HOW}") from error
    if devices == 0:
        raise InvalidArgument(f"device='cuda', but the CUDA driver finds no device: {_HOW}")
