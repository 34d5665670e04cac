"""Many rows through a network, some at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import tree


def in_parts(forward: Callable[[Any], Any], batch: Any, rows_per_pass: int | None) -> Any:
    """Put a batch through a network in parts, whose activations stay in the processor's cache.

    Args:
        forward: Takes a batch, returns tensors with as many rows.
        batch: Tensors of one length, nested.
        rows_per_pass: Of a part; `None` for all.

    Returns:
        What `forward` returns of the whole batch.
    """
    count = len(tree.flatten(batch)[0])
    with memory_as_it_comes():
        if rows_per_pass is None or count <= rows_per_pass:
            return forward(batch)
        parts = [
            forward(tree.map_structure(lambda column: column[start : start + rows_per_pass], batch))  # noqa: B023
            for start in range(0, count, rows_per_pass)
        ]
        return tree.map_structure(lambda *columns: torch.cat(columns), *parts)


@contextlib.contextmanager
def memory_as_it_comes() -> Iterator[None]:
    """Have PyTorch compute into memory without filling it first.

    With a seed RLlib asks PyTorch for deterministic algorithms, which then also fills what it is about to write: a
    tenth of a pass, and of use only to programs that read memory before writing it. Deterministic algorithms stay.
    """
    settings: Any = torch.utils.deterministic
    before, settings.fill_uninitialized_memory = settings.fill_uninitialized_memory, False
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = before
