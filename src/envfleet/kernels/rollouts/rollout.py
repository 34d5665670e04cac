"""Fused rollouts: many steps of a batch in one compiled call, observations and all else in slabs `(T, N, …)`."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, OutOfMemory
from envfleet.fleet.checks import check_whole
from envfleet.fleet.rollout import Rollout, RolloutEpisodes
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.buffers import ENDED_DTYPE, BufferPlan
from envfleet.kernels.cpu_target import FIRST_ADDRESS, HEADER, CpuTarget
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.program import Program, load_module, ready_code
from envfleet.kernels.rng import RNG_DTYPE
from envfleet.kernels.rollouts.policies import MLP, flatten, sizes_of
from envfleet.kernels.rollouts.policy_source import GIVEN, PolicySource, policy_source, values_text
from envfleet.kernels.source import Source


class Slabs:
    """Memory of a rollout; owns its arrays.

    Args:
        plan: The kernel's buffers.
        num_steps: T.
        num_envs: N.

    Attributes:
        outputs: An array for each of the outputs, `(T, N, …)`; the first, observations, `(T + 1, N, …)`.
        actions: `(T, N, …)`, for actions that are chosen.
        is_reset: bool `(T, N)`.
        log_probs: float32 `(T, N)`, for actions that are drawn by a network.
        values: float32 `(T + 1, N)`, for networks with a critic.
        next_values: float32 `(T, N)`, likewise.
        ended: Room for all episodes that may end, `(N * T,)`; what no episode touches takes no memory.
        ended_steps: Likewise for the step in which each ended.
        finals: Likewise for what a reset replaces in `SAME_STEP`, `(N * T, elements)`.
    """

    def __init__(self, plan: BufferPlan, num_steps: int, num_envs: int) -> None:
        form = self.form = (num_steps, num_envs)
        self.spec = spec = plan.spec
        try:
            lengths = [num_steps + 1] + [num_steps] * (len(plan.outputs) - 1)
            self.outputs = [
                np.empty((length, num_envs, *buffer.shape), buffer.dtype)
                for length, buffer in zip(lengths, plan.outputs, strict=True)
            ]
            self.actions = np.empty((*form, *spec.action.shape), spec.action.dtype)
            self.is_reset = np.empty(form, np.bool_)
            self.log_probs, self.next_values = np.empty((2, *form), np.float32)
            self.values = np.empty((num_steps + 1, num_envs), np.float32)
            self.ended = np.empty(self.is_reset.size, ENDED_DTYPE)
            self.ended_steps = np.empty(self.is_reset.size, np.int64)
            self.finals = [np.empty((self.is_reset.size, buffer.size), buffer.dtype) for buffer in plan.finals]
        except MemoryError as error:
            raise OutOfMemory(
                f"there is no memory for {num_steps} steps of {num_envs} sub-environments: take fewer"
            ) from error


def run_rollout(
    batch: CpuBatch,
    policy: Any,
    num_steps: int,
    *,
    autoreset_mode: AutoresetMode,
    seed: int | None = None,
    out: Rollout | None = None,
) -> Rollout:
    """Step a batch `num_steps` times in one compiled call, by given actions, a network or `"random"`."""
    spec, program, form = batch.spec, batch.program, (num_steps, batch.num_envs)
    word = secrets.randbits(32) if seed is None else check_whole("seed", seed, 0, 2**32 - 1, most_name="2**32 - 1")
    chooser, given = GIVEN, None
    if isinstance(policy, (np.ndarray, list, tuple)):
        given = convert_actions(spec, policy, form)
        wrong = program.check(given.reshape(-1, *spec.action.shape))
        if wrong < 0:
            refuse_action(spec.action_space, given, form, -1 - wrong)
    else:
        chooser = policy_source(spec, policy)
    if out is None:
        slabs = Slabs(program.plan, *form)
    elif isinstance(out.memory, Slabs) and (out.memory.spec, out.memory.form) == (spec, form):
        slabs = out.memory
    else:
        raise InvalidArgument(
            f"out is a rollout of (T, N) = {out.rewards.shape}, expected one of the same kernel of {form}"
        )
    actions = slabs.actions if given is None else given
    inputs = policy.inputs() if isinstance(policy, MLP) else np.zeros(0, np.float32)
    counts = _run(batch, chooser, slabs, actions, inputs, word)
    episodes = _gather(batch, counts, slabs, autoreset_mode)
    observations, rewards, terminated, truncated, *infos = slabs.outputs
    named = dict(zip(spec.kernel.info_fields, infos, strict=True))
    log_probs = slabs.log_probs if isinstance(policy, MLP) and policy.is_stochastic else None
    values = next_values = None
    if isinstance(policy, MLP) and policy.critic is not None:
        evaluate = compile_values(spec, sizes_of(policy.critic), policy.activation)
        critic = functools.partial(evaluate, flatten(policy.critic))
        values, next_values = _evaluate(batch, critic, slabs, episodes, autoreset_mode)
    told = spec.observation.unpack(observations)
    flags = terminated, truncated, slabs.is_reset
    return Rollout(told, actions, rewards, *flags, named, episodes, slabs, log_probs, values, next_values)


def _run(
    batch: CpuBatch,
    chooser: PolicySource,
    slabs: Slabs,
    actions: NDArray[Any],
    inputs: NDArray[np.float32],
    seed: int,
) -> list[int]:
    """Run all rows; returns how many episodes ended in each slice of them."""
    spec, program, num_steps = batch.spec, batch.program, len(actions)
    plan = program.plan
    rollout_range = compile_rollout(spec, program, chooser)
    table = batch.new_table()
    first = FIRST_ADDRESS + plan.all.index(plan.outputs[0])
    table[first : first + len(slabs.outputs)] = [array.ctypes.data for array in slabs.outputs]
    calls = np.array([program.addresses[name] for name in ("observe", "step_range", "check")])
    addresses = np.array([array.ctypes.data for array in (actions, slabs.is_reset, slabs.log_probs)])

    def work(start: int, stop: int) -> int:
        low, high = start * num_steps, stop * num_steps
        finals = [saved[low:high].ravel() for saved in slabs.finals]
        ended = slabs.ended[low:high], slabs.ended_steps[low:high], *finals
        return int(rollout_range(table, calls, addresses, num_steps, seed, inputs, *ended, start, stop))

    before = batch.save() if chooser.is_checked else None
    counts = batch.crew.run(work)
    if before is not None and min(counts) < 0:
        batch.load(before)
        refuse_action(spec.action_space, actions, slabs.form, min(-1 - count for count in counts if count < 0))
    return counts


def _gather(batch: CpuBatch, counts: list[int], slabs: Slabs, mode: AutoresetMode) -> RolloutEpisodes:
    """Bring the ended episodes of all slices of rows into one order, which does not depend on the slices."""
    spec, (num_steps, num_envs) = batch.spec, slabs.form
    starts = [start * num_steps for start, _ in batch.crew.spans]
    places = np.concatenate([start + np.arange(count) for start, count in zip(starts, counts, strict=True)])
    steps = slabs.ended_steps[places]
    # Each slice goes through its rows in ascending order, so a stable sort by step is one by row as well.
    order = np.argsort(steps.astype(np.uint16) if num_steps < 2**16 else steps, kind="stable")
    places, steps = places[order], steps[order]
    ended = slabs.ended[places]
    rows = ended["row"].copy()
    outputs = [slabs.outputs[0], *slabs.outputs[4:]]
    if mode is AutoresetMode.SAME_STEP:
        pairs = zip(slabs.finals, outputs, strict=True)
        finals = [saved[places].reshape(-1, *output.shape[2:]) for saved, output in pairs]
    else:
        finals = [output[steps + (place == 0), rows] for place, output in enumerate(outputs)]
    infos = dict(zip(spec.kernel.info_fields, finals[1:], strict=True))
    last = spec.observation.unpack(finals[0])
    ids = ended["episode"] * num_envs + rows
    return RolloutEpisodes(steps, rows, ended["total"].copy(), ended["length"].copy(), ids, last, infos)


def _evaluate(
    batch: CpuBatch, critic: Callable[..., None], slabs: Slabs, episodes: RolloutEpisodes, mode: AutoresetMode
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Have the critic value all observations of a rollout, and those that its steps led to."""
    flat, values, times = slabs.outputs[0].reshape(-1), slabs.values.reshape(-1), len(slabs.values)

    def work(start: int, stop: int) -> int:
        critic(flat, values, start * times, stop * times)
        return 0

    batch.crew.run(work)
    slabs.next_values[...] = slabs.values[1:]
    if mode is AutoresetMode.SAME_STEP and len(episodes):
        last = np.empty(len(episodes), np.float32)
        critic(np.ascontiguousarray(episodes.observations).reshape(-1), last, 0, len(last))
        slabs.next_values[episodes.steps, episodes.env_indices] = last
    return slabs.values[:-1], slabs.next_values


@functools.lru_cache(maxsize=64)
def compile_rollout(spec: KernelSpec, program: Program, policy: PolicySource) -> Callable[..., int]:
    """Compile `rollout_range(first, calls, slabs, num_steps, seed, inputs, gathered, steps, …, start, stop)`.

    It steps the rows from `start` to `stop`. `first` is the table with the addresses of whole slabs of outputs,
    observations of one step more than the others; `calls` has the addresses of the kernel's `observe`, `step_range` and
    `check`; `slabs` those of actions, of the marks of resets and of log-probabilities; `gathered`, `steps` and what
    follows are arrays for what ended episodes leave.

    It returns how many episodes ended, or `-1 - (step * num_envs + row)` of an action that cannot be.
    """
    from envfleet.kernels import machine_code, numba_cpu, rng

    plan = program.plan
    text = CpuTarget(Source(plan), policy).text()
    module = load_module(spec, text, "rollout", machine_code.describe_machine())

    def make_names() -> dict[str, Any]:
        dtypes = {f"dtype_{buffer.name}": buffer.dtype for buffer in plan.all}
        return {
            **dtypes,
            "seed_": numba_cpu.make_function(rng.seed),
            "dtype_rng": RNG_DTYPE,
            "dtype_actions": spec.action.dtype,
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

    text = HEADER.format(name=f"the values of {spec.name}") + values_text(sizes, activation)
    module = load_module(spec, text, "values", machine_code.describe_machine())
    arrays = np.zeros(1, np.float32), np.zeros(1, spec.observation.dtype), np.zeros(1, np.float32)
    return ready_code(spec, module, {"evaluate": (*arrays, 0, 0)}, dict, "values").functions["evaluate"]
