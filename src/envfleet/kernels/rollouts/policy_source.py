"""The source of policies, one function for each kind, and of value functions.

`choose(m, observations, actions, log_probs, generators, inputs, scratch)` writes the actions of `m` rows that lie one
after the other, and their log-probabilities if there are any: flat observations and actions, a generator per row, the
policy's numbers and scratch memory, both float32. Networks go through blocks of rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import KernelSpec, choice_limits
from envfleet.kernels.rollouts.policies import MLP, check_random

BLOCK_ROWS = 64
"""Rows of a block; a short one goes through the network as a whole, as what fills it up is never read."""


@dataclasses.dataclass(frozen=True)
class PolicySource:
    """How a policy is compiled; two that are equal share their machine code.

    Attributes:
        text: Source of `choose`, empty if actions are given.
        scratch_size: Float32 numbers of scratch memory.
        is_drawing: Needs generators.
        is_checked: May choose what is not in the action space.
        reads_state: `choose` takes the states of the rows, too, as its last argument.
    """

    text: str
    scratch_size: int = 0
    is_drawing: bool = False
    is_checked: bool = False
    reads_state: bool = False


GIVEN = PolicySource("")
"""Actions are there already."""


def policy_source(spec: KernelSpec, policy: Any) -> PolicySource:
    """Check a policy, a network or `"random"`, and write its source.

    Raises:
        InvalidArgument: It is neither, or does not fit the kernel's spaces.
    """
    if isinstance(policy, str) and policy == "random":
        check_random(spec)
        return _allowed(spec) if "action_mask" in spec.kernel.info_fields else _random(spec)
    if not isinstance(policy, MLP):
        raise InvalidArgument(f"policy={policy!r}: pass 'random', actions (T, N, …), an MLP, or a callable")
    policy.check(spec)
    text, size = _network_text(spec, policy), _scratch_size(policy.sizes)
    return PolicySource(text, scratch_size=size, is_drawing=policy.is_stochastic, is_checked=True)


def _random(spec: KernelSpec) -> PolicySource:
    space: Any = spec.action_space
    size, limits = spec.action.size, choice_limits(space)
    low, high = (space.low.ravel(), space.high.ravel()) if limits is None else limits
    if limits is None and spec.action.dtype.kind != "f":
        low, high = low.astype(np.int64), high.astype(np.int64) + 1
    draw = "uniform" if low.dtype.kind == "f" else "integers"
    text = f"""
{_bounds(low, high)}


@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch):
    for i in range(m):
        rng = generators[i]
        for k in range({size}):
            actions[i * {size} + k] = rng.{draw}(choice_low[k], choice_high[k])
"""
    return PolicySource(text, is_drawing=True)


def _allowed(spec: KernelSpec) -> PolicySource:
    """Actions that the kernel's mask allows, as `Discrete.sample(mask=...)` draws them; the first if it allows none."""
    space: Any = spec.action_space
    text = f"""
@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch, states):
    for i in range(m):
        mask = states[i].action_mask
        count = 0
        for k in range({int(space.n)}):
            count += mask[k] == 1
        place = generators[i].integers(0, count) if count > 0 else 0
        action = 0
        for k in range({int(space.n)}):
            if mask[k] == 1:
                action = k if place == 0 else action
                place -= 1
        actions[i] = {int(space.start)} + action
"""
    return PolicySource(text, is_drawing=True, reads_state=True)


def _bounds(low: NDArray[Any], high: NDArray[Any]) -> str:
    """Name the bounds of the choices, float64 or int64."""
    return f"choice_low = np.array({low.tolist()})\nchoice_high = np.array({high.tolist()})"


# ---------------------------------------------------------------------- networks


def _scratch_size(sizes: tuple[int, ...]) -> int:
    """Float32 numbers of scratch memory: two activations of the widest layer."""
    return 2 * max(sizes) * BLOCK_ROWS


def _network_text(spec: KernelSpec, policy: MLP) -> str:
    """Write the layers and the `choose` of a network that fits the kernel's spaces."""
    sizes = policy.sizes
    space: Any = spec.action_space
    place = sum((inputs + 1) * outputs for inputs, outputs in itertools.pairwise(sizes))
    head = _discrete_head(spec, policy) if policy.head in ("argmax", "categorical") else _box_head(spec, policy, place)
    return f"""
from envfleet.kernels.rollouts.vectors import dense, softmax

{_layers(sizes, policy.activation)}
{f"sums = softmax({sizes[-1]})" if policy.head == "categorical" else ""}
{_bounds(space.low.ravel(), space.high.ravel()) if policy.head in ("tanh", "tanh_gaussian") else ""}


@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch):
    for low in range(0, m, {BLOCK_ROWS}):
        rows = min({BLOCK_ROWS}, m - low)
{_through(sizes)}
{head}
"""


def values_text(sizes: tuple[int, ...], activation: str) -> str:
    """Write `evaluate(inputs, observations, values, start, stop)`, of flat observations."""
    return f"""
from envfleet.kernels.rollouts.vectors import dense

{_layers(sizes, activation)}


@compiled
def evaluate(inputs, observations, values, start, stop):
    scratch = np.empty({_scratch_size(sizes) + 16}, np.float32)
    scratch = scratch[(64 - np.int64(scratch.ctypes.data) % 64) // 4 :]
    for low in range(start, stop, {BLOCK_ROWS}):
        rows = min({BLOCK_ROWS}, stop - low)
{_through(sizes)}
        for r in range(rows):
            values[low + r] = y[0, r]
"""


def _layers(sizes: tuple[int, ...], activation: str) -> str:
    """Name the layers; each begins in `inputs` where the one before ends."""
    lines, place = [], 0
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        lines.append(f"layer_{k} = dense({inputs}, {outputs}, {place}, {activation if k < len(sizes) - 2 else ''!r})")
        place += (inputs + 1) * outputs
    return "\n".join(lines)


def _through(sizes: tuple[int, ...]) -> str:
    """Bring a block of observations into `x`, and the network's outputs into `y`; halves of the scratch take turns."""
    half, width, last = _scratch_size(sizes) // 2, sizes[0], len(sizes) - 1

    def activations(k: int) -> str:
        start = half * (k % 2)
        return f"scratch[{start} : {start + sizes[k] * BLOCK_ROWS}].reshape(({sizes[k]}, {BLOCK_ROWS}))"

    lines = [f"x = {activations(0)}", "for r in range(rows):"]
    lines += [f"    for k in range({width}):", f"        x[k, r] = observations[(low + r) * {width} + k]"]
    lines += [f"layer_{k}(inputs, {activations(k)}, {activations(k + 1)})" for k in range(last)]
    # The activations before the last layer are needed no more.
    other = f"scratch[{half * ((last + 1) % 2)} :][: {sizes[-1] * BLOCK_ROWS}].reshape(({sizes[-1]}, {BLOCK_ROWS}))"
    lines += [f"y = {activations(last)}", f"z = {other}"]
    return "\n".join("        " + line for line in lines)


def _discrete_head(spec: KernelSpec, policy: MLP) -> str:
    start, outputs = int(getattr(spec.action_space, "start", 0)), policy.sizes[-1]
    if policy.head == "argmax":
        return f"""
        for r in range(rows):
            best = 0
            for j in range(1, {outputs}):
                if y[j, r] > y[best, r]:
                    best = j
            actions[low + r] = {start} + best
"""
    # Sums of probabilities up to each choice take the place of the outputs; a draw falls between two of them.
    return f"""
        sums(y, z)
        for r in range(rows):
            place = generators[low + r].random() * y[{outputs - 1}, r]
            chosen = 0
            for j in range({outputs - 1}):
                chosen += 1 if y[j, r] <= place else 0
            actions[low + r] = {start} + chosen
            log_probs[low + r] = z[chosen, r]
"""


def _box_head(spec: KernelSpec, policy: MLP, place: int) -> str:
    """Turn outputs into actions; from `place` on `inputs` has standard deviations, then their part of the density."""
    outputs, space = policy.sizes[-1], spec.action_space
    is_squashed, is_noisy = policy.head in ("tanh", "tanh_gaussian"), policy.log_std is not None
    lines = [f"total = np.float64(inputs[{place + outputs}])"] if is_noisy else []
    lines += [f"for j in range({outputs}):", "    raw = np.float64(y[j, r])"]
    if is_noisy:
        lines += ["    noise = generators[low + r].standard_normal()", f"    raw = raw + inputs[{place} + j] * noise"]
        lines += ["    total = total - 0.5 * noise * noise"]
    if is_squashed:
        value = "choice_low[j] + (np.tanh(raw) + 1.0) * 0.5 * (choice_high[j] - choice_low[j])"
        if is_noisy:
            lines += [f"    total = total - 2.0 * ({math.log(2.0)!r} - abs(raw) - np.log1p(np.exp(-2.0 * abs(raw))))"]
    else:
        value = "raw"
    lines += [f"    actions[(low + r) * {outputs} + j] = {value}"]
    if is_noisy:
        scale = np.log((space.high - space.low) / 2).sum() if is_squashed and isinstance(space, spaces.Box) else 0.0
        lines += [f"log_probs[low + r] = total - {float(scale)!r}"]
    return "        for r in range(rows):\n" + "\n".join("            " + line for line in lines)
