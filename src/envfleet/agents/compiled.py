"""Passes through networks of dense layers, their gradients and Adam, compiled by numba.

In batches of 256 what surrounds the products of matrices takes longer in torch than the products. Here all parameters
of a network lie in one buffer, and whole updates release the GIL. Functions take arrays of float32 in C order. Where
numba is missing, agents use torch; nothing here may be called then.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.machine import whole_cores
from envfleet.native.compiling import compile_function, compile_part, is_available

if is_available():
    from envfleet.native import vectors
    from envfleet.native.bits import WIDTH, go_back_by_bits
    from envfleet.native.products import multiply

F32 = NDArray[np.float32]

_PART = 1024  # rows, whose way through a network stays in the cache

LINEAR, RELU, TANH = range(3)
"""What a layer does to its products."""


compiled = functools.partial(compile_function, files=(Path(__file__),))
compiled_beside = functools.partial(compiled, releases_gil=True)
part = compile_part


def is_large(rows: int, parameters: int) -> bool:
    """Return whether passing so many rows through so many parameters takes long enough for a second core to help."""
    return rows * parameters >= 15_000_000 and os.name == "posix" and whole_cores() > 1


def call(function: Callable[..., Any], arguments: tuple[Any, ...], *, is_helped: bool) -> Any:
    """Call a compiled function, on two cores if it should be helped."""
    if not is_helped:
        return function(*arguments)
    from envfleet.native.thread import call_helped  # needs POSIX

    return call_helped(function, *arguments)


if is_available():
    _P, _Q = (tuple(np.float32(factor) for factor in factors) for factors in (vectors.TANH_P, vectors.TANH_Q))
    _MOST = np.float32(vectors.TANH_MOST)


class AdamStep(NamedTuple):
    """What a step of Adam reads and changes: one buffer each of what belongs to the parameters of some networks.

    Attributes:
        values: Parameters, `(P,)`.
        gradients: `(P,)`.
        means: Running means of gradients, `(P,)`.
        squares: Of their squares, `(P,)`.
        layers: Of each of E networks, int64 `(E, L, 5)`: inputs, outputs, place of the weight (whose shape is
            `(outputs, inputs)`), place of the bias, and `LINEAR`, `RELU` or `TANH`.
        steps: How many there were, with this one.
        rate: Of learning.
        epsilon: Of Adam.
        max_norm: Gradients that are longer, all taken together, are shortened to it; 0 for never.
    """

    values: F32
    gradients: F32
    means: F32
    squares: F32
    layers: NDArray[np.int64]
    steps: int
    rate: float
    epsilon: float
    max_norm: float


class Workspace(NamedTuple):
    """Memory that updates write to.

    Attributes:
        passes: What the layers of three passes give, `(3, rows * outputs of all layers)`.
        slopes: Gradients on their way back, `(2, rows * widest layer)`.
    """

    passes: F32
    slopes: F32


@part
def matrix(buffer: F32, place: int, rows: int, columns: int) -> F32:
    """Return a part of a buffer as a matrix."""
    return buffer[place : place + rows * columns].reshape(rows, columns)


@part
def forward(values: F32, layers: NDArray[np.int64], rows: F32, results: F32) -> F32:
    """Pass rows through a network.

    Args:
        values: Parameters.
        layers: `(L, 5)`, as in `AdamStep`.
        rows: `(N, inputs)`.
        results: Gets what the layers give, one after another.

    Returns:
        What the last one gives, `(N, outputs)`, a part of `results`.
    """
    given, count, place = rows, rows.shape[0], 0
    for number in range(layers.shape[0]):
        inputs, outputs, weight, bias, activation = layers[number]
        made = matrix(results, place, count, outputs)
        place += count * outputs
        biases = values[bias : bias + outputs]
        multiply(given, matrix(values, weight, outputs, inputs), made, False, True)
        _finish(made, biases, activation)
        given = made
    return given


@part
def tanh(value: np.float32) -> np.float32:
    """Return the hyperbolic tangent to float rounding; loops over it are vectorised."""
    value = _MOST if value > _MOST else -_MOST if value < -_MOST else value  # noqa: FURB136 (max drops NaN)
    square = value * value
    above = ((_P[3] * square + _P[2]) * square + _P[1]) * square + _P[0]
    below = (((_Q[4] * square + _Q[3]) * square + _Q[2]) * square + _Q[1]) * square + _Q[0]
    return value * above / below


@part
def _finish(products: F32, biases: F32, activation: int) -> None:
    """Add a layer's biases to its products, and do to them what the layer does."""
    for row in range(products.shape[0]):
        for column in range(products.shape[1]):
            products[row, column] += biases[column]
            if activation == RELU:
                products[row, column] *= np.float32(products[row, column] > 0)  # is vectorised, a choice is not
            elif activation == TANH:
                products[row, column] = tanh(products[row, column])


@part
def _slope_back(slopes: F32, given: F32, activation: int) -> None:
    """Multiply slopes by those of an activation, whose results are `given`."""
    if activation == RELU:
        for place in range(slopes.size):
            slopes[place] *= np.float32(given[place] > 0)
    elif activation == TANH:
        for place in range(slopes.size):
            slopes[place] *= np.float32(1) - given[place] * given[place]


@compiled
def outputs_of(values: F32, layers: NDArray[np.int64], rows: F32) -> F32:
    """Return what a network gives, `(N, outputs)`; see `forward`."""
    memory = np.empty(min(len(rows), _PART) * layers[:, 1].sum(), np.float32)
    if len(rows) <= _PART:
        return forward(values, layers, rows, memory)
    outputs = np.empty((len(rows), layers[-1, 1]), np.float32)
    for start in range(0, len(rows), _PART):
        _copy_columns(forward(values, layers, rows[start : start + _PART], memory), outputs[start:], 0)
    return outputs


@part
def backward(
    values: F32, layers: NDArray[np.int64], rows: F32, work: Workspace, turn: int, slopes: F32, gradients: F32,
    of_rows: F32,
) -> None:  # fmt: skip
    """Go back through a network, after `forward`.

    Args:
        values: As in `forward`, and the next two.
        layers: As above.
        rows: As above.
        work: Whose `passes[turn]` has what the layers gave.
        turn: Of that pass.
        slopes: Gradients of the outputs, `(N, outputs)`.
        gradients: Gets those of the parameters, at their places; empty if they are not wanted.
        of_rows: Gets those of the last columns of `rows`, `(N, columns)`; empty if they are not wanted.
    """
    count, place, last, results = rows.shape[0], 0, layers.shape[0] - 1, work.passes[turn]
    by_bits = last > 1 and layers[last, 1] == 1 and layers[last - 1, 4] == RELU and layers[last - 1, 0] >= WIDTH
    below_one = last - 1 if by_bits else -1  # the last hidden layer
    units, scales, factors = rows, slopes.ravel(), values
    for number in range(last):
        place += count * layers[number, 1]
    for number in range(last, -1, -1):
        inputs, outputs, weight, bias, _ = layers[number]
        place -= count * inputs * (number > 0)
        given = matrix(results, place, count, inputs) if number else rows
        weights, before = matrix(values, weight, outputs, inputs), matrix(work.slopes[number % 2], 0, count, inputs)
        of_weights = matrix(gradients, weight, outputs * (gradients.size > 0), inputs)  # empty if those are
        of_biases = gradients[bias : bias + outputs]
        if gradients.size and number != below_one:
            multiply(slopes, given, of_weights, True, False)
            _add_up(slopes, of_biases)
        if number == below_one:
            go_back_by_bits(units, scales, factors, given, weights, of_weights, of_biases, before)
        elif number == below_one + 1 > 0:
            units, factors = given, weights.ravel()
            continue
        elif number:
            multiply(slopes, weights, before, False, False)
        elif of_rows.size:
            multiply(slopes, weights[:, inputs - of_rows.shape[1] :], of_rows, False, False)
        if number:
            _slope_back(before.ravel(), given.ravel(), layers[number - 1, 4])
            slopes = before


@part
def _add_up(rows: F32, sums: F32) -> None:
    sums.fill(0)
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            sums[column] += rows[row, column]


@part
def descend(learned: AdamStep) -> None:
    """Take a step of Adam."""
    values, gradients, means, squares, _, steps, rate, _, max_norm = learned
    scale = np.float32(1)
    if max_norm > 0:
        total = np.float32(0)
        for number in range(gradients.size):
            total += gradients[number] * gradients[number]
        scale = np.float32(min(max_norm / (math.sqrt(total) + 1e-6), 1.0))
    step = np.float32(rate / (1 - 0.9**steps))
    spread = np.float32(1 / math.sqrt(1 - 0.999**steps))
    tenth, kept, new = np.float32(0.1), np.float32(0.999), np.float32(0.001)
    epsilon = np.float32(learned.epsilon)
    for number in range(values.size):
        gradient = gradients[number] * scale
        mean = means[number] + tenth * (gradient - means[number])
        square = kept * squares[number] + new * gradient * gradient
        means[number], squares[number] = mean, square
        values[number] -= step * mean / (np.sqrt(square) * spread + epsilon)


@part
def follow(targets: F32, values: F32, tau: float) -> None:
    """Move targets towards values, by a share of the way."""
    share = np.float32(tau)
    for number in range(targets.size):
        targets[number] += share * (values[number] - targets[number])


@compiled
def copy_of(values: F32) -> F32:
    """Return a copy."""
    return values.copy()


@part
def join(observations: F32, actions: F32) -> F32:
    """Return both side by side: what critics read."""
    count, first, size = observations.shape[0], observations.shape[1], actions.shape[1]
    inputs = np.empty((count, first + size), np.float32)
    _copy_columns(observations, inputs, 0)
    _copy_columns(actions, inputs, first)
    return inputs


@part
def _copy_columns(columns: F32, to: F32, first: int) -> None:
    """Copy columns to where the first of them belongs; to compile an assignment of numba's takes five seconds."""
    for row in range(columns.shape[0]):
        for column in range(columns.shape[1]):
            to[row, first + column] = columns[row, column]


@part
def judge(values: F32, layers: NDArray[np.int64], inputs: F32, work: Workspace) -> F32:
    """Return the lesser of what two critics say, `(N,)`."""
    first = forward(values, layers[0], inputs, work.passes[0]).copy()
    second = forward(values, layers[1], inputs, work.passes[0])
    lesser = np.empty(len(inputs), np.float32)
    for row in range(len(inputs)):
        lesser[row] = min(first[row, 0], second[row, 0])
    return lesser


@part
def fit_critics(critics: AdamStep, inputs: F32, goals: F32, work: Workspace) -> tuple[float, float]:
    """Move two critics towards goals, `(N,)`; return the mean square of what was missing, and their mean value."""
    count, missing, value = len(inputs), 0.0, 0.0
    slopes = np.empty((count, 1), np.float32)
    for number in range(2):
        layers = critics.layers[number]
        found = forward(critics.values, layers, inputs, work.passes[0])
        for row in range(count):
            error = found[row, 0] - goals[row]
            missing += error * error
            value += found[row, 0]
            slopes[row, 0] = error / count
        backward(critics.values, layers, inputs, work, 0, slopes, critics.gradients, slopes[:0])
    descend(critics)
    return missing / (2 * count), value / (2 * count)
