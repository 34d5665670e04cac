"""What compiled rollouts do to choose actions: for each kind of policy, the source of one function.

`choose(m, observations, actions, log_probs, generators, inputs, scratch)` writes the actions of `m` rows that lie one
after the other, and their log-probabilities if there are any: flat observations and actions, a generator per row, the
policy's numbers and scratch memory, both float32.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.references import fingerprint
from envfleet.kernels.rollouts.mlp_source import policy_text, scratch_size
from envfleet.kernels.rollouts.policies import MLP, RolloutPolicy, check_act, check_random


@dataclasses.dataclass(frozen=True)
class PolicySource:
    """How a policy is compiled; two that are equal share their machine code.

    Attributes:
        text: Source of `choose`, empty if actions are given.
        key: Hash of what `text` refers to.
        functions: Plain functions it refers to, to be compiled.
        constants: Arrays it refers to.
        scratch_size: Float32 numbers of scratch memory.
        is_drawing: Needs generators.
        is_checked: May choose what is not in the action space.
        reads_state: `choose` takes the states of the rows, too, as its last argument.
    """

    text: str
    key: str = ""
    functions: Mapping[str, types.FunctionType] = dataclasses.field(default_factory=dict, compare=False)
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    scratch_size: int = 0
    is_drawing: bool = False
    is_checked: bool = False
    reads_state: bool = False


GIVEN = PolicySource("")
"""Actions are there already."""


def policy_source(spec: KernelSpec, policy: RolloutPolicy, *, debug: bool = False) -> PolicySource:
    """Check a policy and write its source.

    Args:
        spec: The kernel.
        policy: The policy.
        debug: Whether its machine code names its lines.

    Raises:
        InvalidArgument: It does not fit the kernel's spaces.
        KernelError: A user's function cannot be run.
    """
    if policy is None or (isinstance(policy, str) and policy == "random"):
        check_random(spec)
        return _allowed(spec) if "action_mask" in spec.kernel.info_fields else _random(spec)
    if isinstance(policy, MLP):
        policy.check(spec)
        return _network(spec, policy)
    check_act(spec, policy)
    return _function(spec, policy, debug)


def _random(spec: KernelSpec) -> PolicySource:
    space, size = spec.action_space, spec.action.size
    if isinstance(space, spaces.Discrete):
        low, high = np.array([space.start], np.int64), np.array([int(space.start) + int(space.n)], np.int64)
    elif isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)))
        low, high = start.ravel().astype(np.int64), (start + space.nvec).ravel().astype(np.int64)
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(size, np.int64), np.full(size, 2)
    elif spec.action.dtype.kind == "f":
        low, high = _bounds(space)
    else:
        low, high = (bound.astype(np.int64) for bound in _bounds(space))
        high = high + 1
    draw = "uniform" if low.dtype.kind == "f" else "integers"
    text = f"""
@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch):
    for i in range(m):
        rng = generators[i]
        for k in range({size}):
            actions[i * {size} + k] = rng.{draw}(choice_low[k], choice_high[k])
"""
    return PolicySource(text, _hash(low, high), constants={"choice_low": low, "choice_high": high}, is_drawing=True)


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


def _bounds(space: Any) -> tuple[Any, Any]:
    """Return the bounds of a Box, flat, float64."""
    return space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)


def _network(spec: KernelSpec, policy: MLP) -> PolicySource:
    constants: dict[str, Any] = {}
    if isinstance(spec.action_space, spaces.Box):
        constants["choice_low"], constants["choice_high"] = _bounds(spec.action_space)
    return PolicySource(
        policy_text(spec, policy),
        _hash(*constants.values()),
        constants=constants,
        scratch_size=scratch_size(policy.sizes),
        is_drawing=policy.is_stochastic,
        is_checked=True,
    )


def _function(spec: KernelSpec, act: Any, debug: bool) -> PolicySource:
    seen = "observations[i]" if spec.observation.parts else "observation_row(observations, i)"
    call = f"act_({seen}, {{}}generators[i])"
    line = call.format("action_row(actions, i), ") if spec.action.shape else f"actions[i] = {call.format('')}"
    text = f"""
@inner
def choose(m, observations, actions, log_probs, generators, inputs, scratch):
    for i in range(m):
        {line}
"""
    key = fingerprint([act], has_places=debug)
    return PolicySource(text, key, functions={"act_": act}, is_drawing=True, is_checked=True)


def _hash(*arrays: Any) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
