"""Rollouts and value functions compiled for the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from envfleet.kernels.buffers import ENDED_DTYPE
from envfleet.kernels.cpu_target import CpuTarget
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.program import Program, load_module, ready_code
from envfleet.kernels.rng import RNG_DTYPE
from envfleet.kernels.rollouts.policy_source import PolicySource, values_text
from envfleet.kernels.source import Source


@functools.lru_cache(maxsize=64)
def compile_rollout(spec: KernelSpec, program: Program, policy: PolicySource) -> Callable[..., tuple[Any, ...]]:
    """Compile `rollout_range(first, calls, slabs, num_steps, seed, inputs, gathered, steps, …, start, stop)`.

    It steps the rows from `start` to `stop`. `first` is the table with the addresses of whole slabs of outputs,
    observations of one step more than the others; `calls` has the addresses of the kernel's `observe`, `step_range` and
    `check`; `slabs` those of actions, of the marks of resets and of log-probabilities; `gathered`, `steps` and what
    follows are arrays for what ended episodes leave, replaced as they grow full.

    It returns how many episodes ended, or `-1 - (step * num_envs + row)` of an action that cannot be, then the arrays.
    """
    from envfleet.kernels import machine_code, numba_cpu, rng

    plan = program.plan
    text = CpuTarget(Source(plan), policy).text()
    module = load_module(spec, text, "rollout", machine_code.describe_machine(), debug=program.debug)

    def make_names() -> dict[str, Any]:
        make_function = numba_cpu.make_checked_function if program.debug else numba_cpu.make_function
        return {
            **{name: make_function(function) for name, function in policy.functions.items()},
            **{f"dtype_{buffer.name}": buffer.dtype for buffer in plan.all},
            **policy.constants,
            "seed_": make_function(rng.seed),
            "observation_row": numba_cpu.row_view(spec.observation.shape),
            "action_row": numba_cpu.row_view(spec.action.shape),
            "dtype_rng": RNG_DTYPE,
            "dtype_actions": np.dtype(spec.action.dtype),
        }

    words = np.zeros(1, np.int64)
    finals = [np.zeros(1, buffer.dtype) for buffer in plan.finals]
    arrays = np.zeros(1, np.float32), np.zeros(1, ENDED_DTYPE), words, *finals
    samples = {"rollout_range": (words, words, words, 0, 0, *arrays, 0, 0)}
    return ready_code(spec, module, samples, make_names, "rollouts").functions["rollout_range"]


@functools.lru_cache(maxsize=64)
def compile_values(spec: KernelSpec, sizes: tuple[int, ...], activation: str) -> Callable[..., None]:
    """Compile `evaluate(inputs, observations, values, start, stop)` of a critic; observations are flat."""
    from envfleet.kernels import machine_code

    module = load_module(spec, values_text(sizes, activation), "values", machine_code.describe_machine())
    arrays = np.zeros(1, np.float32), np.zeros(1, spec.observation.dtype), np.zeros(1, np.float32)
    return ready_code(spec, module, {"evaluate": (*arrays, 0, 0)}, dict, "values").functions["evaluate"]
