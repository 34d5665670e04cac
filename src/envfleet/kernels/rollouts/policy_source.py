"""The source of policies and of value functions: what is done for one row, and around it on the CPU.

A `PolicySource` has lines that choose the action of one row, whatever the target. On the CPU networks go through blocks
of rows, and `choose(m, observations, actions, log_probs, generators, inputs, scratch)` writes the actions of `m` rows
that lie one after the other, and their log-probabilities if there are any: flat observations and actions, a generator
per row, the policy's numbers and scratch memory, both float32.
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
from envfleet.kernels.rollouts.policies import MLP
from envfleet.kernels.source import deeper, indent
from envfleet.native.layers import BLOCK_ROWS, layers_of, num_weights, padded, sizes_of


@dataclasses.dataclass(frozen=True)
class PolicySource:
    """How a policy is compiled; two that are equal share their machine code.

    Attributes:
        lines: Choose the action of a row: they write element `at` of `actions`, which is flat, and of `log_probs`. They
            draw from `generator`, and read the row's `state`, the policy's `inputs`, and outputs `y[:, r]` of its
            network; after a softmax that is sums of probabilities, and `z[:, r]` their logarithms. Empty if actions are
            given.
        constants: What they refer to.
        sizes: Widths of its network's layers, if it has one.
        critic: Likewise of the critic's, whose numbers follow in `inputs`.
        activation: After every layer but the last.
        masking: What a row does to the outputs of the last layer.
        has_softmax: After that.
        is_drawing: Needs generators.
        reads_state: Needs the state.
    """

    lines: tuple[str, ...]
    constants: str = ""
    sizes: tuple[int, ...] = ()
    critic: tuple[int, ...] = ()
    activation: str = ""
    masking: tuple[str, ...] = ()
    has_softmax: bool = False
    is_drawing: bool = False
    reads_state: bool = False


GIVEN = PolicySource(())
"""Actions are there already."""


def policy_source(spec: KernelSpec, policy: Any) -> PolicySource:
    """Check a policy, a network or `"random"`, and write its source.

    Raises:
        InvalidArgument: It is neither, or does not fit the kernel's spaces.
    """
    if isinstance(policy, str) and policy == "random":
        return _allowed(spec) if "action_mask" in spec.info_fields else _random(spec)
    if not isinstance(policy, MLP):
        raise InvalidArgument(f"policy={policy!r}: pass 'random', actions (T, N, …), an MLP, or a callable")
    policy.check(spec)
    space = spec.action.space
    is_discrete = policy.head in ("argmax", "categorical")
    is_masked = is_discrete and policy.heeds_mask and "action_mask" in spec.info_fields
    return PolicySource(
        tuple(_discrete_head(spec, policy) if is_discrete else _box_head(spec, policy)),
        _bounds(space.low.ravel(), space.high.ravel()) if policy.head in ("tanh", "tanh_gaussian") else "",
        policy.sizes,
        sizes_of(policy.critic or ()),
        policy.activation,
        _masking(policy.sizes[-1]) if is_masked else (),
        has_softmax=policy.head == "categorical",
        is_drawing=policy.is_stochastic,
        reads_state=is_masked,
    )


def _random(spec: KernelSpec) -> PolicySource:
    space = spec.action.space
    if isinstance(space, spaces.Box) and not space.is_bounded():
        raise InvalidArgument(f"random actions from {space}, which is not bounded: pass actions or a policy")
    size, limits = spec.action.size, spec.action.limits
    low, high = (space.low.ravel(), space.high.ravel()) if limits is None else limits
    if limits is None and spec.action.dtype.kind != "f":
        low, high = low.astype(np.int64), high.astype(np.int64) + 1
    draw = "uniform" if low.dtype.kind == "f" else "integers"
    lines = (
        f"for k in range({size}):",
        f"    actions[at * {size} + k] = generator.{draw}(choice_low[k], choice_high[k])",
    )
    return PolicySource(lines, _bounds(low, high), is_drawing=True)


def _allowed(spec: KernelSpec) -> PolicySource:
    """Actions that the kernel's mask allows, as `sample(mask=...)` of the space draws them.

    An element without any allowed choice takes its first one.
    """
    space: Any = spec.action.space
    lines = []
    starts, counts = np.ravel(space.start).tolist(), num_choices(space)
    for place, (start, count) in enumerate(zip(starts, counts, strict=True)):
        first = sum(counts[:place])
        text = f"""\
allowed = 0
for k in range({first}, {first + count}):
    allowed += state.action_mask[k] == 1
place = generator.integers(0, allowed) if allowed > 0 else 0
action = 0
for k in range({count}):
    if state.action_mask[{first} + k] == 1:
        action = k if place == 0 else action
        place -= 1
actions[at * {len(counts)} + {place}] = {start} + action"""
        lines += text.splitlines()
    return PolicySource(tuple(lines), is_drawing=True, reads_state=True)


def _bounds(low: NDArray[Any], high: NDArray[Any]) -> str:
    """Name the bounds of the choices, float64 or int64."""
    return f"choice_low = np.array({low.tolist()})\nchoice_high = np.array({high.tolist()})"


# ---------------------------------------------------------------------- heads of networks


def _masking(outputs: int) -> tuple[str, ...]:
    """Leave actions that the mask excludes no chance."""
    kept = "y[j, r] if state.action_mask[j] == 1 else np.float32(-1e9)"
    return f"for j in range({outputs}):", f"    y[j, r] = {kept}"


def _discrete_head(spec: KernelSpec, policy: MLP) -> list[str]:
    start, outputs = int(spec.action.space.start), policy.sizes[-1]
    if policy.head == "argmax":
        return [
            "best = 0",
            f"for j in range(1, {outputs}):",
            "    best = j if y[j, r] > y[best, r] else best",
            f"actions[at] = {start} + best",
        ]
    return [  # a draw falls between two sums of probabilities
        f"place = generator.random() * y[{outputs - 1}, r]",
        "chosen = 0",
        f"for j in range({outputs - 1}):",
        "    chosen += 1 if y[j, r] <= place else 0",
        f"actions[at] = {start} + chosen",
        "log_probs[at] = z[chosen, r]",
    ]


def _box_head(spec: KernelSpec, policy: MLP) -> list[str]:
    """Turn outputs into actions; behind the weights `inputs` has deviations, then their part of the density."""
    outputs, space, place = policy.sizes[-1], spec.action.space, num_weights(policy.sizes)
    is_squashed, is_noisy = policy.head in ("tanh", "tanh_gaussian"), policy.log_std is not None
    lines = [f"total = np.float64(inputs[{place + outputs}])"] if is_noisy else []
    lines += [f"for j in range({outputs}):", "    raw = np.float64(y[j, r])"]
    if is_noisy:
        lines += ["    noise = generator.standard_normal()", f"    raw = raw + inputs[{place} + j] * noise"]
        lines += ["    total = total - 0.5 * noise * noise"]
    value = "raw"
    if is_squashed:
        value = "choice_low[j] + (math.tanh(raw) + 1.0) * 0.5 * (choice_high[j] - choice_low[j])"
        if is_noisy:
            slope = f"{math.log(2.0)!r} - abs(raw) - math.log1p(math.exp(-2.0 * abs(raw)))"
            lines += [f"    total = total - 2.0 * ({slope})"]
    lines += [f"    actions[at * {outputs} + j] = {value}"]
    if is_noisy:
        scale = np.log((space.high - space.low) / 2).sum() if is_squashed else 0.0
        lines += [f"log_probs[at] = total - {float(scale)!r}"]
    return lines


# ---------------------------------------------------------------------- layers


def critic_start(policy: PolicySource) -> int:
    """Return where the critic's weights begin in `inputs`: behind weights, deviations and their part of the density."""
    return num_weights(policy.sizes) + padded(policy.sizes[-1] + 1)


# ---------------------------------------------------------------------- on the CPU


def scratch_size(policy: PolicySource) -> int:
    """Count the float32 numbers of scratch memory: two activations of the widest layer."""
    return 2 * max((*policy.sizes, *policy.critic), default=0) * BLOCK_ROWS


def cpu_text(policy: PolicySource) -> str:
    """Write `choose`, and `value(m, observations, values, inputs, scratch)` if there is a critic."""
    state = ["state = states[at]"] if policy.reads_state else []
    row = [*(["generator = as_generator(generators[at])"] if policy.is_drawing else []), *state, *policy.lines]
    loop, body = "at in range(m)", row
    if policy.sizes:
        mask = [*state, *policy.masking]
        masks, rows = (["for r in range(rows):", *deeper(["at = low + r", *lines])] for lines in (mask, row))
        softmax = ["sums(y, z)"] if policy.has_softmax else []
        loop, masks = f"low in range(0, m, {BLOCK_ROWS})", masks if policy.masking else []
        body = [*_through(policy, policy.sizes, "layer"), *masks, *softmax, *rows]
    forms = {f"layer_{k}": form for k, form in enumerate(layers_of(policy.sizes, policy.activation))}
    if policy.critic:
        layers = layers_of(policy.critic, policy.activation, critic_start(policy))
        forms |= {f"critic_{k}": form for k, form in enumerate(layers)}
    named = [f"{name} = dense{form}" for name, form in forms.items()]
    named += [f"sums = softmax({policy.sizes[-1]})"] if policy.has_softmax else []
    return f"""
import math

from envfleet.native.vectors import dense, softmax

{policy.constants}
{indent(named, 0)}


@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch{", states" if policy.reads_state else ""}):
    for {loop}:
{indent(body, 2)}

{_value_text(policy) if policy.critic else ""}
"""


def _value_text(policy: PolicySource) -> str:
    return f"""
@inner
def value(m, observations, values, inputs, scratch):
    for low in range(0, m, {BLOCK_ROWS}):
{indent(_through(policy, policy.critic, "critic"), 2)}
        for r in range(rows):
            values[low + r] = y[0, r]
"""


def _through(policy: PolicySource, sizes: tuple[int, ...], name: str) -> list[str]:
    """Bring a block of observations into `x`, and the network's outputs into `y`; halves of the scratch take turns."""
    half, last = scratch_size(policy) // 2, len(sizes) - 1

    def activations(k: int, rows: int) -> str:
        start = half * (k % 2)
        return f"scratch[{start} : {start + rows * BLOCK_ROWS}].reshape(({rows}, {BLOCK_ROWS}))"

    return [
        f"rows = min({BLOCK_ROWS}, m - low)",
        f"x = {activations(0, sizes[0])}",
        "for r in range(rows):",
        f"    for k in range({sizes[0]}):",
        f"        x[k, r] = observations[(low + r) * {sizes[0]} + k]",
        *(f"{name}_{k}(inputs, {activations(k, sizes[k])}, {activations(k + 1, sizes[k + 1])})" for k in range(last)),
        f"y = {activations(last, sizes[-1])}",
        f"z = {activations(last + 1, sizes[-1])}",  # the activations before the last layer are needed no more
    ]
