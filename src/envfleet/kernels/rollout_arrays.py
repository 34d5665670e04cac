"""Rollouts of kernels: arrays that compiled code fills, as a `Rollout`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envfleet.fleet.rollout import Rollout, RolloutEpisodes
from envfleet.kernels.batch_base import BatchBase
from envfleet.kernels.buffers import IS_RESET, NUMBERS
from envfleet.kernels.policy_source import PolicySource

FindEnded = Callable[[], tuple[Any, Any, list[Any]]]
"""Function that returns records of the ended episodes by step, then row, their steps, and their last outputs."""

_OF_ALL_TIMES = ("observations", "values")


def cut_last_step(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Return arrays of T steps by name, from arrays `(T + 1, N, …)`; observations and values keep the last entry."""
    return {name: array if name in _OF_ALL_TIMES else array[:-1] for name, array in whole.items()}


def make_rollout(
    batch: BatchBase, arrays: Mapping[str, Any], chooser: PolicySource, actions: Any, find_ended: FindEnded
) -> Rollout:
    """Return the rollout that compiled code wrote into arrays.

    Args:
        batch: The batch that was stepped.
        arrays: Outputs of the kernel, `IS_RESET` and `NUMBERS` by name, as `cut_last_step` returns them.
        chooser: Policy.
        actions: Actions, `(T, N, …)`.
        find_ended: Function that finds the episodes that ended.
    """
    spec, num_envs = batch.spec, batch.num_envs
    names, unpack = spec.info_fields, spec.observation.unpack
    observations, rewards, terminated, truncated, *infos = (arrays[each.name] for each in batch.plan.outputs)
    log_probs, values, next_values = (arrays[each.name] for each in NUMBERS)

    def gather() -> RolloutEpisodes:
        ended, steps, (last, *last_infos) = find_ended()
        rows, returns, lengths = (ended[name].copy() for name in ("row", "total", "length"))
        ids, final_infos = ended["episode"] * num_envs + rows, dict(zip(names, last_infos, strict=True))
        return RolloutEpisodes(steps, rows, returns, lengths, ids, unpack(last), final_infos)

    return Rollout(
        unpack(observations),
        actions,
        rewards,
        terminated,
        truncated,
        arrays[IS_RESET.name],
        dict(zip(names, infos, strict=True)),
        gather,
        log_probs=log_probs if chooser.sizes and chooser.is_drawing else None,
        values=values[:-1] if chooser.critic else None,
        next_values=next_values if chooser.critic else None,
    )
