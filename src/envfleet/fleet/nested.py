"""Operations on nested batches, such as those of `Dict` and `Tuple` spaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_arrays(value: Any, function: Callable[..., Any], *others: Any) -> Any:
    """Apply a function to every array of a nested batch, with the arrays at the same position of `others`."""
    if isinstance(value, dict):
        return {key: map_arrays(part, function, *(other[key] for other in others)) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_arrays(part, function, *parts) for part, *parts in zip(value, *others, strict=True))
    return function(value, *others)
