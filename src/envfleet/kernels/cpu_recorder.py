"""Recorder of rollouts on the CPU: compiled code that steps, acts and writes `(T, N, …)`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.fleet.rollout import Rollout
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.buffers import ENDED_DTYPE, IS_RESET, NUMBERS, Buffer, BufferPlan, allocate
from envfleet.kernels.cpu_target import FIRST_ADDRESS, CpuTarget
from envfleet.kernels.host_actions import refuse_action
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.policy_source import PolicySource
from envfleet.kernels.program import cache_key
from envfleet.kernels.rollout_arrays import cut_last_step, make_rollout
from envfleet.kernels.source import Source
from envfleet.native.generated_code import compile_source
from envfleet.native.rng import RNG_DTYPE

_OF_ENDED = Buffer("ended_steps", np.dtype(np.int64)), Buffer("last_values", np.dtype(np.float32))


class CpuRecorder:
    """Recorder of rollouts in memory of this process.

    Args:
        batch: The batch, or one of the same form.
        num_steps: Number of steps, T.

    Attributes:
        arrays: Arrays of the outputs, actions, `IS_RESET` and `NUMBERS` by name, `(T, N, …)`; observations and values
            are `(T + 1, N, …)`.
    """

    def __init__(self, batch: CpuBatch, num_steps: int) -> None:
        plan, num_envs = batch.plan, batch.num_envs
        whole = allocate((*plan.outputs, plan.actions, IS_RESET, *NUMBERS), (num_steps + 1) * num_envs)
        self.arrays = cut_last_step(
            {name: array.reshape(-1, num_envs, *array.shape[1:]) for name, array in whole.items()}
        )
        # Room for one ended episode per step and row; pages that are not touched use no memory.
        self._ended, self._ended_steps, self._last_values, *self._finals = allocate(
            (plan.ended, *_OF_ENDED, *plan.finals), num_steps * num_envs
        ).values()

    def record(
        self, batch: CpuBatch, chooser: PolicySource, actions: NDArray[Any], inputs: NDArray[np.float32], seed: int
    ) -> Rollout:
        """Step all rows; the order of ended episodes does not depend on the threads."""
        spec, plan, program, num_steps = batch.spec, batch.plan, batch.program, len(actions)
        rollout_range = compile_rollout(spec, program, chooser)
        table = batch.new_table()
        outputs = [self.arrays[each.name] for each in plan.outputs]
        first = FIRST_ADDRESS + plan.all.index(plan.outputs[0])
        table[first : first + len(outputs)] = [array.ctypes.data for array in outputs]
        calls = np.array([program.addresses[name] for name in ("observe", "step_range", "check")])
        is_reset, log_probs, values, next_values = (self.arrays[each.name] for each in (IS_RESET, *NUMBERS))
        addresses = np.array([array.ctypes.data for array in (actions, is_reset, log_probs, values)])

        def work(start: int, stop: int) -> int:
            low, high = start * num_steps, stop * num_steps
            finals = [saved[low:high].ravel() for saved in self._finals]
            ended = self._ended[low:high], self._ended_steps[low:high], self._last_values[low:high], *finals
            return int(rollout_range(table, calls, addresses, num_steps, seed, inputs, *ended, start, stop))

        before = batch.save() if chooser.sizes else None
        slices = batch.team.run(work, num_steps)
        if before is not None and (wrong := [-1 - count for _, count in slices if count < 0]):
            batch.load(before)
            refuse_action(spec.action, actions, is_reset.shape, min(wrong))
        places = np.concatenate([start * num_steps + np.arange(count) for start, count in slices])
        steps = self._ended_steps[places]
        # Each slice has its rows in ascending order, so a stable sort by step also sorts by row.
        order = np.argsort(steps.astype(np.uint16) if num_steps < 2**16 else steps, kind="stable")
        places, steps = places[order], steps[order]
        ended, shown = self._ended[places], [outputs[0], *outputs[4:]]
        if chooser.critic:
            next_values[...] = values[1:]
        if batch.is_same_step:
            if chooser.critic:
                next_values[steps, ended["row"]] = self._last_values[places]
            lasts = [saved[places] for saved in self._finals]
        else:
            lasts = [output[steps + (place == 0), ended["row"]] for place, output in enumerate(shown)]
        return make_rollout(batch, self.arrays, chooser, actions, lambda: (ended, steps, lasts))


@functools.lru_cache(maxsize=64)
def compile_rollout(spec: KernelSpec, _program: object, policy: PolicySource) -> Callable[..., int]:
    """Compile `rollout_range(first, calls, whole, num_steps, seed, inputs, gathered, steps, …, start, stop)`.

    It steps the rows from `start` to `stop`. `first` is the table with the addresses of whole output arrays, of which
    observations have one step more; `calls` has the addresses of the kernel's `observe`, `step_range` and `check`;
    `whole` those of actions, reset masks, log-probabilities and values; `gathered`, `steps` and the following arrays
    are for ended episodes.

    It returns the number of ended episodes, or `-1 - (step * num_envs + row)` of an invalid action. It is compiled once
    for every `_program`, the kernel's code.
    """
    from envfleet.native import numba_cpu, rng

    plan = BufferPlan(spec)
    text = CpuTarget(Source(plan), policy).text()

    def make_names() -> dict[str, Any]:
        buffers = (*plan.all, plan.actions, IS_RESET, *NUMBERS)
        arrays = {f"array_{buffer.name}": numba_cpu.array_at(buffer.dtype) for buffer in buffers}
        functions = {"seed_": numba_cpu.make_function(rng.seed), "as_generator": numba_cpu.as_generator}
        return {**arrays, **functions, "dtype_rng": RNG_DTYPE}

    words = np.zeros(1, np.int64)
    finals = [np.zeros(1, buffer.dtype) for buffer in plan.finals]
    numbers = np.zeros(1, np.float32)
    arrays = numbers, np.zeros(1, ENDED_DTYPE), words, numbers, *finals
    samples = {"rollout_range": (words, words, words, 0, 0, *arrays, 0, 0)}
    key, target = cache_key(spec), "rollouts"
    code = compile_source(spec.name, text, "rollout", samples, make_names, key=key, target=target)
    return code.functions["rollout_range"]
