"""Templates of policies and value functions: the choice of one row's action, and the networks around it on the CPU.

A `PolicySource` has the lines that choose the action of one row, for any target. On the CPU, networks evaluate blocks
of rows: `choose(m, observations, actions, log_probs, generators, inputs, scratch)` writes the actions of `m`
consecutive rows and, for stochastic policies, their log-probabilities. Observations and actions are flat, there is a
generator per row, and the policy's numbers and its scratch memory are float32.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.kernel import KernelSpec, num_choices
from envfleet.kernels.policies import MLP
from envfleet.native.generated_code import fill
from envfleet.native.layers import BLOCK_ROWS, layers_of, num_weights, padded, sizes_of

_RANDOM = """
for k in range($size):
    actions[at * $size + k] = generator.$draw(choice_low[k], choice_high[k])
"""

_RANDOM_ALLOWED = """
allowed = 0
for k in range($first, $end):
    allowed += state.action_mask[k] == 1
place = generator.integers(0, allowed) if allowed > 0 else 0
action = 0
for k in range($count):
    if state.action_mask[$first + k] == 1:
        action = k if place == 0 else action
        place -= 1
actions[at * $size + $element] = $start + action
"""

_MASK_OUTPUTS = """
for j in range($outputs):
    y[j, r] = y[j, r] if state.action_mask[j] == 1 else np.float32(-1e9)
"""

_ARGMAX = """
best = 0
for j in range(1, $outputs):
    best = j if y[j, r] > y[best, r] else best
actions[at] = $start + best
"""

# `y` has cumulative probabilities, and the draw falls between two of them.
_CATEGORICAL = """
place = generator.random() * y[$last, r]
chosen = 0
for j in range($last):
    chosen += 1 if y[j, r] <= place else 0
actions[at] = $start + chosen
log_probs[at] = z[chosen, r]
"""

_BOX = """
for j in range($outputs):
    raw = np.float64(y[j, r])
    actions[at * $outputs + j] = $action
"""

_GAUSSIAN_BOX = """
total = np.float64(inputs[$density])
for j in range($outputs):
    raw = np.float64(y[j, r])
    noise = generator.standard_normal()
    raw = raw + inputs[$deviations + j] * noise
    total = total - 0.5 * noise * noise
    $subtract_slope
    actions[at * $outputs + j] = $action
log_probs[at] = total - $log_scale
"""

_SQUASHED = "choice_low[j] + (math.tanh(raw) + 1.0) * 0.5 * (choice_high[j] - choice_low[j])"
_LOG_SLOPE_OF_TANH = f"{math.log(2.0)!r} - abs(raw) - math.log1p(math.exp(-2.0 * abs(raw)))"  # half of it
_SUBTRACT_SLOPE = f"total = total - 2.0 * ({_LOG_SLOPE_OF_TANH})"

_CHOOSE = """
@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch$states):
    for at in range(m):
        $row
"""

_CHOOSE_BY_NETWORK = """
@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch$states):
    for low in range(0, m, $BLOCK_ROWS):
        $evaluate
        $mask
        $softmax
        for r in range(rows):
            at = low + r
            $row
"""

_MASK_BLOCK = """
for r in range(rows):
    at = low + r
    $row
"""

_VALUE = """
@inner
def value(m, observations, values, inputs, scratch):
    for low in range(0, m, $BLOCK_ROWS):
        $evaluate
        for r in range(rows):
            values[low + r] = y[0, r]
"""

# The last layer's input is not needed after it, so `z` may lie there.
_EVALUATE = """
rows = min($BLOCK_ROWS, m - low)
x = $x
for r in range(rows):
    for k in range($inputs):
        x[k, r] = observations[(low + r) * $inputs + k]
$layers
y = $y
z = $z
"""

_MODULE = """
import math

from envfleet.native.vectors import dense, softmax

$constants
$networks


$choose

$value
"""


@dataclasses.dataclass(frozen=True)
class PolicySource:
    """Code of a policy; equal ones share their machine code.

    Attributes:
        lines: Choice of a row's action: they write element `at` of `actions`, which is flat, and of `log_probs`. They
            draw from `generator`, and read the row's `state`, the policy's `inputs`, and the outputs `y[:, r]` of its
            network; after a softmax, `y` has cumulative probabilities and `z[:, r]` their logarithms. Empty if actions
            are given.
        constants: Definitions that the lines refer to.
        sizes: Widths of the network's layers; empty without a network.
        critic: Widths of the critic's layers; their numbers follow in `inputs`.
        activation: Activation after every layer but the last.
        masking: Lines that mask the outputs of the last layer for a row.
        has_softmax: True if a softmax follows.
        is_drawing: True if the lines need a generator.
        reads_state: True if the lines read the state.
    """

    lines: tuple[str, ...]
    constants: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    critic: tuple[int, ...] = ()
    activation: str = ""
    masking: tuple[str, ...] = ()
    has_softmax: bool = False
    is_drawing: bool = False
    reads_state: bool = False


GIVEN = PolicySource(())
"""Actions that the caller passes."""


def policy_source(spec: KernelSpec, policy: Any) -> PolicySource:
    """Check a policy, a network or `"random"`, and write its source.

    Raises:
        InvalidArgument: The policy is something else, or does not fit the kernel's spaces.
    """
    if isinstance(policy, str) and policy == "random":
        return _random_allowed(spec) if "action_mask" in spec.info_fields else _random(spec)
    if not isinstance(policy, MLP):
        raise InvalidArgument(f"policy={policy!r}: pass 'random', actions (T, N, …), an MLP, or a callable")
    policy.check(spec)
    space = spec.action.space
    is_discrete = policy.head in ("argmax", "categorical")
    is_masked = is_discrete and policy.heeds_mask and "action_mask" in spec.info_fields
    return PolicySource(
        tuple(_discrete_head(spec, policy) if is_discrete else _box_head(spec, policy)),
        _bounds(space.low.ravel(), space.high.ravel()) if policy.head in ("tanh", "tanh_gaussian") else (),
        policy.sizes,
        sizes_of(policy.critic or ()),
        policy.activation,
        tuple(fill(_MASK_OUTPUTS, outputs=policy.sizes[-1])) if is_masked else (),
        has_softmax=policy.head == "categorical",
        is_drawing=policy.is_stochastic,
        reads_state=is_masked,
    )


def _random(spec: KernelSpec) -> PolicySource:
    space = spec.action.space
    if isinstance(space, spaces.Box) and not space.is_bounded():
        raise InvalidArgument(f"random actions from {space}, which is not bounded: pass actions or a policy")
    limits = spec.action.limits
    low, high = (space.low.ravel(), space.high.ravel()) if limits is None else limits
    if limits is None and spec.action.dtype.kind != "f":
        low, high = low.astype(np.int64), high.astype(np.int64) + 1
    draw = "uniform" if low.dtype.kind == "f" else "integers"
    return PolicySource(tuple(fill(_RANDOM, size=spec.action.size, draw=draw)), _bounds(low, high), is_drawing=True)


def _random_allowed(spec: KernelSpec) -> PolicySource:
    """Draw actions that the kernel's mask allows, as `sample(mask=...)` of the space does.

    An element without any allowed choice takes its first one.
    """
    space: Any = spec.action.space
    lines: list[str] = []
    starts, counts = np.ravel(space.start).tolist(), num_choices(space)
    first = 0
    for element, (start, count) in enumerate(zip(starts, counts, strict=True)):
        place = {"first": first, "end": first + count, "count": count, "size": len(counts), "element": element}
        lines += fill(_RANDOM_ALLOWED, start=start, **place)
        first += count
    return PolicySource(tuple(lines), is_drawing=True, reads_state=True)


def _bounds(low: NDArray[Any], high: NDArray[Any]) -> tuple[str, ...]:
    """Define the bounds of the choices, float64 or int64."""
    return f"choice_low = np.array({low.tolist()})", f"choice_high = np.array({high.tolist()})"


# ---------------------------------------------------------------------- heads of networks


def _discrete_head(spec: KernelSpec, policy: MLP) -> list[str]:
    start, outputs = int(spec.action.space.start), policy.sizes[-1]
    if policy.head == "argmax":
        return fill(_ARGMAX, outputs=outputs, start=start)
    return fill(_CATEGORICAL, last=outputs - 1, start=start)


def _box_head(spec: KernelSpec, policy: MLP) -> list[str]:
    """Convert outputs to actions; `inputs` has deviations after the weights, then their part of the log-density."""
    outputs, space, deviations = policy.sizes[-1], spec.action.space, num_weights(policy.sizes)
    is_squashed = policy.head in ("tanh", "tanh_gaussian")
    action = _SQUASHED if is_squashed else "raw"
    if policy.log_std is None:
        return fill(_BOX, outputs=outputs, action=action)
    scale = np.log((space.high - space.low) / 2).sum() if is_squashed else 0.0
    return fill(
        _GAUSSIAN_BOX,
        density=deviations + outputs,
        outputs=outputs,
        deviations=deviations,
        subtract_slope=[_SUBTRACT_SLOPE] if is_squashed else [],
        action=action,
        log_scale=repr(float(scale)),
    )


def critic_start(policy: PolicySource) -> int:
    """Return the index of the critic's weights in `inputs`: after weights, deviations and the part of the density."""
    return num_weights(policy.sizes) + padded(policy.sizes[-1] + 1)


# ---------------------------------------------------------------------- on the CPU


def scratch_size(policy: PolicySource) -> int:
    """Return the number of float32 values of scratch memory: two activations of the widest layer."""
    return 2 * max((*policy.sizes, *policy.critic), default=0) * BLOCK_ROWS


def cpu_text(policy: PolicySource) -> list[str]:
    """Write `choose`, and `value(m, observations, values, inputs, scratch)` if there is a critic."""
    networks = [f"layer_{k} = dense{layer}" for k, layer in enumerate(layers_of(policy.sizes, policy.activation))]
    value: list[str] = []
    if policy.critic:
        layers = layers_of(policy.critic, policy.activation, critic_start(policy))
        networks += [f"critic_{k} = dense{layer}" for k, layer in enumerate(layers)]
        value = fill(_VALUE, BLOCK_ROWS=BLOCK_ROWS, evaluate=_evaluate(policy, policy.critic, "critic"))
    networks += [f"sums = softmax({policy.sizes[-1]})"] if policy.has_softmax else []
    return fill(_MODULE, constants=policy.constants, networks=networks, choose=_choose(policy), value=value)


def _choose(policy: PolicySource) -> list[str]:
    states = ", states" if policy.reads_state else ""
    state = ["state = states[at]"] if policy.reads_state else []
    row = [*(["generator = as_generator(generators[at])"] if policy.is_drawing else []), *state, *policy.lines]
    if not policy.sizes:
        return fill(_CHOOSE, states=states, row=row)
    return fill(
        _CHOOSE_BY_NETWORK,
        BLOCK_ROWS=BLOCK_ROWS,
        states=states,
        evaluate=_evaluate(policy, policy.sizes, "layer"),
        mask=fill(_MASK_BLOCK, row=[*state, *policy.masking]) if policy.masking else [],
        softmax=["sums(y, z)"] if policy.has_softmax else [],
        row=row,
    )


def _evaluate(policy: PolicySource, sizes: tuple[int, ...], name: str) -> list[str]:
    """Load a block of observations into `x` and evaluate a network into `y`, with halves of the scratch memory.

    Args:
        policy: The policy.
        sizes: Widths of the network's layers.
        name: Prefix of the layers' functions.
    """
    half, last = scratch_size(policy) // 2, len(sizes) - 1

    def activations(k: int, width: int) -> str:
        start = half * (k % 2)
        return f"scratch[{start} : {start + width * BLOCK_ROWS}].reshape(({width}, {BLOCK_ROWS}))"

    return fill(
        _EVALUATE,
        BLOCK_ROWS=BLOCK_ROWS,
        x=activations(0, sizes[0]),
        inputs=sizes[0],
        layers=[
            f"{name}_{k}(inputs, {activations(k, sizes[k])}, {activations(k + 1, sizes[k + 1])})" for k in range(last)
        ],
        y=activations(last, sizes[-1]),
        z=activations(last + 1, sizes[-1]),
    )
