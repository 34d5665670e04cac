"""Layout of a fully connected network's numbers in memory, as compiled code reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 64
"""Rows of a block. Shorter blocks are evaluated as a whole; the results beyond their rows are not read."""


def sizes_of(layers: Sequence[tuple[Any, Any]]) -> tuple[int, ...]:
    """Return the number of inputs of the first layer, then the number of outputs of each."""
    return (*(int(w.shape[1]) for w, _ in layers[:1]), *(int(w.shape[0]) for w, _ in layers))


def padded(count: int) -> int:
    """Round a number of outputs up to a multiple of 4, which GPUs load by one instruction."""
    return -(-count // 4) * 4


def flatten(layers: Sequence[tuple[Any, Any]]) -> NDArray[np.float32]:
    """Join the numbers of layers: for each its biases, then the weights of one input after the other.

    Biases and the weights of an input have a number for each output, and zeros up to `padded`.
    """
    blocks = [np.zeros(0, np.float32)]
    for w, b in layers:
        block = np.zeros((w.shape[1] + 1, padded(len(b))), np.float32)
        block[0, : len(b)], block[1:, : len(b)] = b, w.T
        blocks.append(block.ravel())
    return np.concatenate(blocks)


def layers_of(sizes: tuple[int, ...], activation: str, start: int = 0) -> Iterator[tuple[int, int, int, str]]:
    """Yield inputs, outputs, offset in the joined numbers, and activation of each layer, starting at `start`."""
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        yield inputs, outputs, start, activation if k < len(sizes) - 2 else ""
        start += (inputs + 1) * padded(outputs)


def num_weights(sizes: tuple[int, ...]) -> int:
    """Return how many numbers `flatten` joins for layers of these sizes."""
    return sum((inputs + 1) * padded(outputs) for inputs, outputs in itertools.pairwise(sizes))
