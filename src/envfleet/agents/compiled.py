"""Networks of dense layers compiled by numba: forward and backward passes, and Adam.

With batches of 256 rows, the overhead of torch's operations takes longer than the matrix products. Here all parameters
of a network lie in one buffer, products are SciPy's BLAS by `np.dot`, and everything else is plain loops. Arrays are
float32 in C order. Without numba, agents use torch, and no function of this module may be called.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.native.compiling import compile_function, compile_part, is_available

if is_available():
    from envfleet.native import vectors

F32 = NDArray[np.float32]

LINEAR, RELU, TANH = range(3)
"""Activations of a layer."""


compiled = functools.partial(compile_function, files=(Path(__file__),))
compiled_without_gil = functools.partial(compiled, releases_gil=True)
part = compile_part


if is_available():
    _P, _Q = (tuple(np.float32(factor) for factor in factors) for factors in (vectors.TANH_P, vectors.TANH_Q))
    _MAX = np.float32(vectors.TANH_MOST)


class AdamStep(NamedTuple):
    """Buffers and settings of one step of Adam.

    Attributes:
        values: Parameters of one or more networks, `(P,)`.
        gradients: Gradients of the parameters, `(P,)`.
        means: Running means of the gradients, `(P,)`.
        squares: Running means of the squared gradients, `(P,)`.
        layers: Layers of E networks, int64 `(E, L, 5)`: number of inputs, number of outputs, offset of the weight
            (shape `(outputs, inputs)`) in the buffers, offset of the bias, and `LINEAR`, `RELU` or `TANH`.
        steps: Number of steps including this one.
        learning_rate: Learning rate of this step.
        epsilon: Constant that Adam adds to the denominator.
        max_norm: Maximum norm of the gradients, which are scaled down to it; 0 for no limit.
    """

    values: F32
    gradients: F32
    means: F32
    squares: F32
    layers: NDArray[np.int64]
    steps: int
    learning_rate: float
    epsilon: float
    max_norm: float


class Workspace(NamedTuple):
    """Memory for the intermediate results of updates.

    Attributes:
        passes: Outputs of all layers in three forward passes, `(3, rows * outputs of all layers)`.
        gradients: Gradients of the outputs of two adjacent layers, `(2, rows * widest layer)`.
    """

    passes: F32
    gradients: F32


# ---------------------------------------------------------------------- acting


_BLOCK_ROWS = 4
"""Rows that `act` takes at a time: each weight is read once for all of them, and their sums stay in registers."""


@compiled
def act(values: F32, layers: NDArray[np.int64], rows: F32) -> F32:
    """Return the outputs of a network, where the outputs of a row do not depend on the other rows.

    BLAS adds the terms of a row in an order that depends on the number of rows. This pass takes `_BLOCK_ROWS` rows at a
    time, also where fewer are left, so an agent acts the same for one sub-environment as for a thousand.

    Args:
        values: Parameters, `(P,)`.
        layers: Layers as in `AdamStep`, `(L, 5)`.
        rows: Inputs, `(N, inputs)`.

    Returns:
        Outputs, `(N, outputs)`.
    """
    outputs = np.empty((len(rows), layers[-1, 1]), np.float32)
    widest = max(rows.shape[1], layers[:, 1].max())
    memory = np.zeros((2, _BLOCK_ROWS * widest), np.float32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = _matrix(memory[1], 0, _BLOCK_ROWS, rows.shape[1])
        _copy_columns(rows[start : start + _BLOCK_ROWS], block, 0)
        for number in range(layers.shape[0]):
            num_inputs, num_outputs, weight, bias, activation = layers[number]
            results = _matrix(memory[number % 2], 0, _BLOCK_ROWS, num_outputs)
            _multiply_block(block, _matrix(values, weight, num_outputs, num_inputs), results)
            _activate(results, values[bias : bias + num_outputs], activation)
            block = results
        _copy_columns(block[: len(rows) - start], outputs[start:], 0)
    return outputs


@part
def _multiply_block(block: F32, weights: F32, results: F32) -> None:
    """Multiply `_BLOCK_ROWS` rows by the weights of a layer, `(outputs, inputs)`, two outputs at a time."""
    row_0, row_1, row_2, row_3 = block[0], block[1], block[2], block[3]
    for output in range(0, len(weights), 2):
        other = min(output + 1, len(weights) - 1)  # the same one, if their number is odd
        one, two = weights[output], weights[other]
        a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = np.float32(0)
        for k in range(len(one)):
            a0 += row_0[k] * one[k]
            a1 += row_1[k] * one[k]
            a2 += row_2[k] * one[k]
            a3 += row_3[k] * one[k]
            b0 += row_0[k] * two[k]
            b1 += row_1[k] * two[k]
            b2 += row_2[k] * two[k]
            b3 += row_3[k] * two[k]
        results[0, output], results[1, output], results[2, output], results[3, output] = a0, a1, a2, a3
        results[0, other], results[1, other], results[2, other], results[3, other] = b0, b1, b2, b3


# ---------------------------------------------------------------------- passes


@part
def _matrix(buffer: F32, offset: int, rows: int, columns: int) -> F32:
    """Return a part of a buffer as a matrix."""
    return buffer[offset : offset + rows * columns].reshape(rows, columns)


@part
def forward(values: F32, layers: NDArray[np.int64], rows: F32, results: F32) -> F32:
    """Pass rows through a network.

    Args:
        values: Parameters, `(P,)`.
        layers: Layers as in `AdamStep`, `(L, 5)`.
        rows: Inputs, `(N, inputs)`.
        results: Buffer for the outputs of all layers, one layer after another.

    Returns:
        Outputs of the last layer, `(N, outputs)`, a view of `results`.
    """
    inputs, count, offset = rows, rows.shape[0], 0
    for number in range(layers.shape[0]):
        num_inputs, num_outputs, weight, bias, activation = layers[number]
        outputs = _matrix(results, offset, count, num_outputs)
        offset += count * num_outputs
        np.dot(inputs, _matrix(values, weight, num_outputs, num_inputs).T, outputs)
        _activate(outputs, values[bias : bias + num_outputs], activation)
        inputs = outputs
    return inputs


@compiled_without_gil
def outputs_of(values: F32, layers: NDArray[np.int64], rows: F32) -> F32:
    """Return the outputs of a network, `(N, outputs)`; see `forward`."""
    outputs, part_rows = np.empty((len(rows), layers[-1, 1]), np.float32), min(len(rows), 1024)  # stay in the cache
    memory = np.empty(part_rows * layers[:, 1].sum(), np.float32)
    for start in range(0, len(rows), 1024):
        _copy_columns(forward(values, layers, rows[start : start + 1024], memory), outputs[start:], 0)
    return outputs


@part
def tanh(value: np.float32) -> np.float32:
    """Return the hyperbolic tangent, to 4e-7; loops over it are vectorized."""
    value = _MAX if value > _MAX else -_MAX if value < -_MAX else value  # noqa: FURB136 (max drops NaN)
    square = value * value
    above = ((_P[3] * square + _P[2]) * square + _P[1]) * square + _P[0]
    below = (((_Q[4] * square + _Q[3]) * square + _Q[2]) * square + _Q[1]) * square + _Q[0]
    return value * above / below


@part
def _activate(outputs: F32, biases: F32, activation: int) -> None:
    """Add biases to the outputs of a layer and apply its activation, in place."""
    for row in range(outputs.shape[0]):
        for column in range(outputs.shape[1]):
            outputs[row, column] += biases[column]
            if activation == RELU:
                outputs[row, column] *= np.float32(outputs[row, column] > 0)  # vectorized, unlike a branch
            elif activation == TANH:
                outputs[row, column] = tanh(outputs[row, column])


@part
def _differentiate(gradients: F32, outputs: F32, activation: int) -> None:
    """Turn gradients of the outputs of a layer into those before its activation, in place."""
    if activation == RELU:
        for place in range(gradients.size):
            gradients[place] *= np.float32(outputs[place] > 0)
    elif activation == TANH:
        for place in range(gradients.size):
            gradients[place] *= np.float32(1) - outputs[place] * outputs[place]


@part
def backward(
    values: F32, layers: NDArray[np.int64], rows: F32, work: Workspace, turn: int, of_outputs: F32, gradients: F32,
    of_rows: F32,
) -> None:  # fmt: skip
    """Pass gradients back through a network, after `forward`.

    Args:
        values: Parameters, as in `forward`.
        layers: Layers, as in `forward`.
        rows: Inputs, as in `forward`.
        work: Workspace; `passes[turn]` are the outputs of all layers.
        turn: Number of the forward pass.
        of_outputs: Gradients of the outputs, `(N, outputs)`.
        gradients: Buffer for the gradients of the parameters, at their offsets; empty if they are not needed.
        of_rows: Buffer for the gradients of the last columns of `rows`, `(N, columns)`; empty if they are not needed.
    """
    count, offset, results = rows.shape[0], 0, work.passes[turn]
    for number in range(layers.shape[0] - 1):
        offset += count * layers[number, 1]
    for number in range(layers.shape[0] - 1, -1, -1):
        num_inputs, num_outputs, weight, bias, _ = layers[number]
        offset -= count * num_inputs * (number > 0)
        inputs = _matrix(results, offset, count, num_inputs) if number else rows
        if gradients.size:
            np.dot(of_outputs.T, inputs, _matrix(gradients, weight, num_outputs, num_inputs))
            _sum_rows(of_outputs, gradients[bias : bias + num_outputs])
        if number == 0 and of_rows.size == 0:
            return
        of_inputs = _matrix(work.gradients[number % 2], 0, count, num_inputs)
        np.dot(of_outputs, _matrix(values, weight, num_outputs, num_inputs), of_inputs)
        if number:
            _differentiate(of_inputs.ravel(), inputs.ravel(), layers[number - 1, 4])
            of_outputs = of_inputs
        else:
            _copy_columns(of_inputs[:, num_inputs - of_rows.shape[1] :], of_rows, 0)


@part
def _sum_rows(rows: F32, sums: F32) -> None:
    sums.fill(0)
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            sums[column] += rows[row, column]


# ---------------------------------------------------------------------- steps


@part
def take_step(step: AdamStep) -> None:
    """Take a step of Adam."""
    values, gradients, means, squares, _, steps, learning_rate, _, max_norm = step
    scale = np.float32(1)
    if max_norm > 0:
        total = np.float32(0)
        for number in range(gradients.size):
            total += gradients[number] * gradients[number]
        scale = np.float32(min(max_norm / (math.sqrt(total) + 1e-6), 1.0))
    rate = np.float32(learning_rate / (1 - 0.9**steps))
    unbiased = np.float32(1 / math.sqrt(1 - 0.999**steps))
    tenth, kept, new = np.float32(0.1), np.float32(0.999), np.float32(0.001)
    epsilon = np.float32(step.epsilon)
    for number in range(values.size):
        gradient = gradients[number] * scale
        mean = means[number] + tenth * (gradient - means[number])
        square = kept * squares[number] + new * gradient * gradient
        means[number], squares[number] = mean, square
        values[number] -= rate * mean / (np.sqrt(square) * unbiased + epsilon)


@part
def soft_update(targets: F32, values: F32, tau: float) -> None:
    """Move targets toward values by the share `tau`."""
    share = np.float32(tau)
    for number in range(targets.size):
        targets[number] += share * (values[number] - targets[number])


# ---------------------------------------------------------------------- critics


@part
def join(observations: F32, actions: F32) -> F32:
    """Return the inputs of critics: observations and actions side by side."""
    count, first, size = observations.shape[0], observations.shape[1], actions.shape[1]
    inputs = np.empty((count, first + size), np.float32)
    _copy_columns(observations, inputs, 0)
    _copy_columns(actions, inputs, first)
    return inputs


@part
def _copy_columns(source: F32, target: F32, first: int) -> None:
    """Copy columns to those of the target from `first` on; numba compiles an assignment of slices for five seconds."""
    for row in range(source.shape[0]):
        for column in range(source.shape[1]):
            target[row, first + column] = source[row, column]


@part
def min_values(values: F32, layers: NDArray[np.int64], inputs: F32, work: Workspace) -> F32:
    """Return the smaller one of the values of two critics, `(N,)`."""
    first = forward(values, layers[0], inputs, work.passes[0]).copy()
    second = forward(values, layers[1], inputs, work.passes[0])
    smaller = np.empty(len(inputs), np.float32)
    for row in range(len(inputs)):
        smaller[row] = min(first[row, 0], second[row, 0])
    return smaller


@part
def fit_critics(critics: AdamStep, inputs: F32, targets: F32, work: Workspace) -> tuple[float, float]:
    """Fit two critics to targets, `(N,)`; return the mean squared error and the mean value."""
    count, squares, total = len(inputs), 0.0, 0.0
    of_values = np.empty((count, 1), np.float32)
    for number in range(2):
        layers = critics.layers[number]
        values = forward(critics.values, layers, inputs, work.passes[0])
        for row in range(count):
            error = values[row, 0] - targets[row]
            squares += error * error
            total += values[row, 0]
            of_values[row, 0] = error / count
        backward(critics.values, layers, inputs, work, 0, of_values, critics.gradients, of_values[:0])
    take_step(critics)
    return squares / (2 * count), total / (2 * count)
