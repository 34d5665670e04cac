"""Many rows through a network, some at a time."""

from __future__ import annotations

from collections.abc import Callable
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
    if rows_per_pass is None or count <= rows_per_pass:
        return forward(batch)
    parts = [
        forward(tree.map_structure(lambda column: column[start : start + rows_per_pass], batch))  # noqa: B023
        for start in range(0, count, rows_per_pass)
    ]
    return tree.map_structure(lambda *columns: torch.cat(columns), *parts)
