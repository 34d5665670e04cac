"""Compiled rollouts: many steps of a batch in one call, with results in arrays `(T, N, …)`."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import numpy as np

from envfleet.errors import InvalidArgument
from envfleet.fleet.rollout import Rollout
from envfleet.kernels.devices import make_recorder
from envfleet.kernels.policies import MLP
from envfleet.kernels.policy_source import GIVEN, policy_source


def run_rollout(
    batch: Any, policy: Any, num_steps: int, *, seed: int | None = None, out: Rollout | None = None
) -> Rollout:
    """Step a batch `num_steps` times in one compiled call, with actions, a network or `"random"`."""
    spec, num_envs = batch.spec, batch.num_envs
    word = secrets.randbits(32) if seed is None else seed
    is_given = isinstance(policy, (np.ndarray, list, tuple)) or hasattr(policy, "__cuda_array_interface__")
    chooser = GIVEN if is_given else policy_source(spec, policy)
    form = spec, batch.device, batch.is_same_step, num_steps, num_envs
    if out is not None and out.memory[0] != form:
        raise InvalidArgument(
            f"out is a rollout of (T, N) = {out.rewards.shape}, expected {(num_steps, num_envs)} and the same kernel, "
            "device and autoreset mode: pass a rollout of this fleet, or leave out"
        )
    recorder = make_recorder(batch, num_steps) if out is None else out.memory[1]
    inputs = policy.inputs() if isinstance(policy, MLP) else np.zeros(1, np.float32)
    actions = batch.take_actions(policy, (num_steps, num_envs)) if is_given else recorder.arrays["actions"]
    rollout: Rollout = recorder.record(batch, chooser, actions, inputs, word)
    return dataclasses.replace(rollout, memory=(form, recorder))
