"""Forward passes of large batches in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import tree


def in_parts(forward: Callable[[Any], Any], batch: Any, rows_per_pass: int | None) -> Any:
    """Pass a batch through a network in parts, so that activations stay in the processor's cache.

    Args:
        forward: Function of a batch that returns tensors with the same number of rows.
        batch: Nested tensors of one length.
        rows_per_pass: Rows of a part; `None` passes the whole batch.

    Returns:
        Result of `forward` for the whole batch.
    """
    count = len(tree.flatten(batch)[0])
    with uninitialized_memory():
        if rows_per_pass is None or count <= rows_per_pass:
            return forward(batch)
        parts = [
            forward(tree.map_structure(lambda column: column[start : start + rows_per_pass], batch))  # noqa: B023
            for start in range(0, count, rows_per_pass)
        ]
        return tree.map_structure(lambda *columns: torch.cat(columns), *parts)


@contextlib.contextmanager
def uninitialized_memory() -> Iterator[None]:
    """Turn off PyTorch's filling of new tensors in a block; deterministic algorithms stay on.

    With a seed, RLlib turns on deterministic algorithms, which also fill every new tensor. That takes a tenth of a pass
    and only matters to programs that read memory before writing it.
    """
    settings: Any = torch.utils.deterministic
    before, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before
