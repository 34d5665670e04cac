"""Fused rollouts: many steps of a batch in one compiled call, observations and all else in slabs `(T, N, …)`."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, OutOfMemory
from envfleet.fleet.checks import check_whole
from envfleet.fleet.rollout import Rollout, RolloutEpisodes
from envfleet.kernels.batch import CpuBatch, Fused
from envfleet.kernels.buffers import ENDED_DTYPE, Buffer
from envfleet.kernels.cpu_target import FIRST_ADDRESS
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.rollouts.policies import MLP, RolloutPolicy
from envfleet.kernels.rollouts.policy_source import GIVEN, PolicySource, policy_source
from envfleet.kernels.rollouts.program import compile_rollout, compile_values

_FIRST_ENDED = 64


class Slabs:
    """Memory of a rollout; owns its arrays.

    Args:
        spec: The kernel.
        outputs: What every step writes.
        num_steps: T.
        num_envs: N.

    Attributes:
        outputs: An array for each of the outputs, `(T, N, …)`; the first, observations, `(T + 1, N, …)`.
        actions: `(T, N, …)`, for actions that are chosen.
        is_reset: bool `(T, N)`.
        log_probs: float32 `(T, N)`, for actions that are drawn by a network.
        values: float32 `(T + 1, N)`, for networks with a critic.
        next_values: float32 `(T, N)`, likewise.
    """

    def __init__(self, spec: KernelSpec, outputs: tuple[Buffer, ...], num_steps: int, num_envs: int) -> None:
        lengths = [num_steps + 1] + [num_steps] * (len(outputs) - 1)
        self.form = (spec, num_steps, num_envs)
        try:
            self.outputs = [
                np.empty((length, num_envs, *buffer.shape), buffer.dtype)
                for length, buffer in zip(lengths, outputs, strict=True)
            ]
            self.actions = np.empty((num_steps, num_envs, *spec.action.shape), spec.action.dtype)
            self.is_reset = np.empty((num_steps, num_envs), np.bool_)
            self.log_probs, self.next_values = np.empty((2, num_steps, num_envs), np.float32)
            self.values = np.empty((num_steps + 1, num_envs), np.float32)
        except MemoryError as error:
            raise OutOfMemory(f"there is no memory for {num_steps} steps of {num_envs} sub-environments: take fewer") \
                from error  # fmt: skip


def run_rollout(
    batch: CpuBatch,
    policy: RolloutPolicy | NDArray[Any],
    num_steps: int,
    *,
    autoreset_mode: AutoresetMode,
    seed: int | None = None,
    out: Rollout | None = None,
) -> Rollout:
    """Step a batch `num_steps` times in one compiled call; see `Fleet.rollout`."""
    spec, num_envs = batch.spec, batch.num_envs
    word = secrets.randbits(32) if seed is None else check_whole("seed", seed, 0, 2**32 - 1, most_name="2**32 - 1")
    fused = batch.fused()
    plan = fused.program.plan
    chooser, given = GIVEN, None
    if isinstance(policy, (np.ndarray, list, tuple)):
        given = _check_actions(batch, fused, policy, num_steps)
    else:
        chooser = policy_source(spec, policy, debug=fused.program.debug)
    if out is None:
        slabs = Slabs(spec, plan.outputs, num_steps, num_envs)
    elif isinstance(out.memory, Slabs) and out.memory.form == (spec, num_steps, num_envs):
        slabs = out.memory
    else:
        raise InvalidArgument(
            f"out is a rollout of (T, N) = {out.rewards.shape}, expected one of the same kernel of "
            f"{(num_steps, num_envs)}"
        )
    actions = slabs.actions if given is None else given
    parts = _run(batch, fused, chooser, policy, slabs, actions, word)
    observations, rewards, terminated, truncated, *infos = slabs.outputs
    named = dict(zip(spec.kernel.info_fields, infos, strict=True))
    episodes = _gather(parts, slabs, spec, num_envs, autoreset_mode)
    told = spec.observation.unpack(observations)
    rollout = Rollout(told, actions, rewards, terminated, truncated, slabs.is_reset, named, episodes, slabs)
    if not isinstance(policy, MLP):
        return rollout
    if policy.is_stochastic:
        rollout = dataclasses.replace(rollout, log_probs=slabs.log_probs)
    if policy.critic is None:
        return rollout
    values, next_values = _evaluate(batch, fused, policy, rollout, slabs, autoreset_mode)
    return dataclasses.replace(rollout, values=values, next_values=next_values)


def _evaluate(
    batch: CpuBatch, fused: Fused, policy: MLP, rollout: Rollout, slabs: Slabs, mode: AutoresetMode
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Have the critic value all observations of a rollout, and those that its steps led to."""
    evaluate, inputs = compile_values(batch.spec, policy.critic_sizes, policy.activation), policy.critic_inputs()
    flat, values, times = rollout.all_observations.reshape(-1), slabs.values.reshape(-1), len(slabs.values)

    def work(start: int, stop: int) -> int:
        evaluate(inputs, flat, values, start * times, stop * times)
        return 0

    fused.crew.run(work)
    slabs.next_values[...] = slabs.values[1:]
    if mode is AutoresetMode.SAME_STEP and len(rollout.episodes):
        episodes = rollout.episodes
        last = np.empty(len(episodes), np.float32)
        evaluate(inputs, np.ascontiguousarray(episodes.observations).reshape(-1), last, 0, len(last))
        slabs.next_values[episodes.steps, episodes.env_indices] = last
    return slabs.values[:-1], slabs.next_values


def _check_actions(batch: CpuBatch, fused: Fused, actions: Any, num_steps: int) -> NDArray[Any]:
    array = convert_actions(batch.spec, actions, (num_steps, batch.num_envs))
    wrong = fused.program.check(array.reshape(-1, *batch.spec.action.shape))
    if wrong < 0:
        refuse_action(batch.spec, array, -1 - wrong)
    return array


def _run(
    batch: CpuBatch,
    fused: Fused,
    chooser: PolicySource,
    policy: Any,
    slabs: Slabs,
    actions: NDArray[Any],
    seed: int,
) -> list[tuple[Any, ...]]:
    """Run all rows; what `rollout_range` returns for each slice of them, in order."""
    spec, plan, num_steps = batch.spec, fused.program.plan, len(actions)
    rollout_range = compile_rollout(spec, fused.program, chooser)
    table = fused.table
    first = FIRST_ADDRESS + plan.all.index(plan.outputs[0])
    table[first : first + len(slabs.outputs)] = [array.ctypes.data for array in slabs.outputs]
    calls = np.array([fused.program.addresses[name] for name in ("observe", "step_range", "check")])
    addresses = np.array([array.ctypes.data for array in (actions, slabs.is_reset, slabs.log_probs)])
    inputs = policy.inputs() if isinstance(policy, MLP) else np.zeros(0, np.float32)
    parts: dict[int, tuple[Any, ...]] = {}

    def work(start: int, stop: int) -> int:
        ended, places = np.empty(_FIRST_ENDED, ENDED_DTYPE), np.empty(_FIRST_ENDED, np.int64)
        finals = [np.empty(_FIRST_ENDED * buffer.size, buffer.dtype) for buffer in plan.finals]
        parts[start] = rollout_range(
            table, calls, addresses, num_steps, seed, inputs, ended, places, *finals, start, stop
        )
        return int(parts[start][0])

    before = batch.save() if chooser.is_checked else None
    counts = fused.crew.run(work)
    if before is not None and min(counts) < 0:
        batch.load(before)
        refuse_action(spec, actions, min(-1 - count for count in counts if count < 0))
    return [parts[start] for start in sorted(parts)]


def _gather(
    parts: list[tuple[Any, ...]], slabs: Slabs, spec: KernelSpec, num_envs: int, mode: AutoresetMode
) -> RolloutEpisodes:
    """Bring the ended episodes of all slices of rows into one order, which does not depend on the slices."""
    num_steps = len(slabs.is_reset)
    steps = np.concatenate([part[2][: part[0]] for part in parts])
    # Each slice goes through its rows in ascending order, so a stable sort by step is one by row as well.
    order = np.argsort(steps.astype(np.uint16) if num_steps < 2**16 else steps, kind="stable")
    ended = np.concatenate([part[1][: part[0]] for part in parts])[order]
    steps, rows = steps[order], ended["row"].copy()
    finals = []
    for place, output in enumerate([slabs.outputs[0], *slabs.outputs[4:]]):
        if mode is AutoresetMode.SAME_STEP:
            saved = [part[3 + place].reshape(-1, *output.shape[2:])[: part[0]] for part in parts]
            finals.append(np.concatenate(saved)[order])
        else:
            finals.append(output[steps + (place == 0), rows])
    infos = dict(zip(spec.kernel.info_fields, finals[1:], strict=True))
    last = spec.observation.unpack(finals[0])
    ids = ended["episode"] * num_envs + rows
    return RolloutEpisodes(steps, rows, ended["total"].copy(), ended["length"].copy(), ids, last, infos)
