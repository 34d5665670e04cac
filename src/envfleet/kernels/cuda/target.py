"""The compiler for CUDA devices, or what stands in for it under numba's simulator."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from envfleet.kernels.cuda.availability import import_cuda, is_simulated
from envfleet.kernels.kernel import KernelSpec


class Target(Protocol):
    """What generated kernels are made of; the modules `numba_cuda` and `simulated` are such."""

    kernel: Callable[..., Any]

    def make_function(self, function: Any, records: str = "", /) -> Any:
        """Make a function callable in kernels, once for each form of records; see `jitting.FunctionTree`."""

    def new_record(self, dtype: np.dtype[Any], /) -> Any:
        """Make the constructor of a record."""

    def array_at(self, dtype: np.dtype[Any], /) -> Any:
        """Make a function that gives an array at an address."""

    def row_view(self, shape: tuple[int, ...], /) -> Any:
        """Make a function that gives a row of a flat array."""

    def address_of(self, array: Any, /) -> int:
        """Where a device array begins."""

    def launcher(self, entry: Any, blocks: int, threads: int, /) -> Any:
        """What launches an entry point on so many threads."""

    def translating(self, spec: KernelSpec, /) -> AbstractContextManager[None]:
        """Hold around what compiles."""


@functools.cache
def cuda_target() -> Target:
    """The one in use.

    Raises:
        InvalidArgument: What it takes is not installed.
    """
    import_cuda()
    name = "simulated" if is_simulated() else "numba_cuda"
    target: Any = importlib.import_module(f"envfleet.kernels.cuda.{name}")
    return target  # type: ignore[no-any-return]  # a module
