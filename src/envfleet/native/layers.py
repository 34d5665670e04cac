"""Layout of a fully connected network's numbers in memory, as compiled code reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 64
"""Rows of a block; a short one goes through the network as a whole, as what fills it up is never read."""


def sizes_of(layers: Sequence[tuple[Any, Any]]) -> tuple[int, ...]:
    """Width of what the first of some layers takes, then of what each gives."""
    return (*(int(w.shape[1]) for w, _ in layers[:1]), *(int(w.shape[0]) for w, _ in layers))


def padded(count: int) -> int:
    """Return how many numbers there is room for where there are so many: a multiple of 4, which GPUs read at once."""
    return -(-count // 4) * 4


def flatten(layers: Sequence[tuple[Any, Any]]) -> NDArray[np.float32]:
    """Join all numbers of some layers: of each its biases, then the weights of one input after the other.

    Either are numbers for all outputs, and zeros where `padded` has more.
    """
    blocks = [np.zeros(0, np.float32)]
    for w, b in layers:
        block = np.zeros((w.shape[1] + 1, padded(len(b))), np.float32)
        block[0, : len(b)], block[1:, : len(b)] = b, w.T
        blocks.append(block.ravel())
    return np.concatenate(blocks)


def layers_of(sizes: tuple[int, ...], activation: str, start: int = 0) -> Iterator[tuple[int, int, int, str]]:
    """Yield width, number of outputs, place in `inputs` and activation of each layer; the first begins at `start`."""
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        yield inputs, outputs, start, activation if k < len(sizes) - 2 else ""
        start += (inputs + 1) * padded(outputs)


def num_weights(sizes: tuple[int, ...]) -> int:
    """Count the numbers of a network's layers."""
    return sum((inputs + 1) * padded(outputs) for inputs, outputs in itertools.pairwise(sizes))
