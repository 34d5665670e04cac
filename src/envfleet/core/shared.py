"""Read-only data that all sub-environments see, held in memory once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.layout import BlockLayout
from envfleet.core.memory import SharedBlock
from envfleet.errors import InvalidArgument


class SharedArrays:
    """Named read-only arrays, in shared memory where worker processes need them.

    Attributes:
        arrays: Read-only views by name.
        layout: How they lie in the block, or `None` if they stay in this process.
        fd: Descriptor of the block, or `None`.
    """

    def __init__(
        self, arrays: Mapping[str, NDArray[Any]], layout: BlockLayout | None = None, block: SharedBlock | None = None
    ) -> None:
        self.layout, self._block = layout, block
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, array in arrays.items():
            view = array.view()
            view.flags.writeable = False
            self.arrays[name] = view

    @property
    def fd(self) -> int | None:
        """Descriptor of the block, or `None` if there is none."""
        return None if self._block is None else self._block.fd

    @classmethod
    def local(cls, data: Mapping[str, Any] | None) -> SharedArrays:
        """Share within this process: no copy of what is an array already.

        Raises:
            InvalidArgument: A value is no array of numbers.
        """
        arrays = {}
        for name, value in (data or {}).items():
            array = np.asarray(value)
            if array.dtype.hasobject:
                raise InvalidArgument(
                    f"shared[{name!r}] is {type(value).__name__}, expected an array of numbers: "
                    "pass large arrays in `shared` and everything else as an argument of the environment"
                )
            arrays[name] = array
        return cls(arrays)

    def to_processes(self) -> SharedArrays:
        """Copy into shared memory, once for all worker processes; nothing to do if there is no data."""
        if not self.arrays:
            return self
        layout = BlockLayout({name: (array.shape, array.dtype) for name, array in self.arrays.items()})
        block = SharedBlock.create(layout.size_bytes, label="envfleet-shared")
        views = layout.views(block.buffer)
        for name, array in self.arrays.items():
            views[name][...] = array
        return SharedArrays(views, layout, block)

    @classmethod
    def attach(cls, fd: int, layout: BlockLayout) -> SharedArrays:
        """Map what `to_processes` made, in a worker."""
        block = SharedBlock.attach(fd, layout.size_bytes)
        return cls(layout.views(block.buffer), layout, block)

    def close(self) -> None:
        """Let go of the block."""
        if self._block is not None:
            self._block.close()
