"""Advantages and value targets of packed rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from envfleet.agents.gae import generalised_advantages
from envfleet.rllib.passes import in_parts
from envfleet.rllib.rollout import PackedRollout


class EstimateAdvantages(ConnectorV2):
    """Estimates advantages (GAE) and value targets, and leaves only samples in the batch.

    Follows RLlib's `GeneralAdvantageEstimation`: nothing comes after a termination; at a truncation and at the end of
    a rollout the value of the last observation does; nothing flows from one episode into another. Advantages get mean
    0 and standard deviation 1 over all samples (over the samples alone: RLlib's own piece also counts the artificial
    step at the end of each episode). Values are computed without a graph, some rows at a time.

    Args:
        gamma: Discount per step.
        lambda_: 0 trusts the values alone, 1 the rewards alone.
        minibatch_size: Samples of an update; where a batch has more they are shuffled, because RLlib's iterator does
            not before its first pass, and rollouts are in the order of time.
        is_shuffling: Whether to shuffle at all.
        rows_per_pass: Rows to compute values of at a time; `None` for all.
    """

    def __init__(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        *,
        gamma: float,
        lambda_: float,
        minibatch_size: int | None,
        is_shuffling: bool,
        rows_per_pass: int | None,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._gamma, self._lambda = gamma, lambda_
        self._minibatch_size, self._is_shuffling, self._rows_per_pass = minibatch_size, is_shuffling, rows_per_pass

    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: list[PackedRollout], **_: Any
    ) -> dict[str, Any]:
        """Turn what `UnpackRollouts` laid out into a train batch."""
        columns = batch[DEFAULT_MODULE_ID]
        with torch.no_grad():
            critic = rl_module[DEFAULT_MODULE_ID].unwrapped().compute_values
            values = in_parts(critic, columns, self._rows_per_pass).double()
        sample_values = values[: sum(rollout.rewards.size for rollout in episodes)]
        advantages = torch.cat(self._advantages(episodes, columns, values))
        valid = torch.from_numpy(np.concatenate([rollout.valid.reshape(-1) for rollout in episodes])).to(values.device)
        kept = advantages[valid]
        standardised = (advantages - kept.mean()) / kept.std(correction=0).clamp(min=1e-4)
        rows = self._rows(valid)
        chosen = tree.map_structure(lambda column: column[rows], columns)
        chosen[Postprocessing.ADVANTAGES] = standardised.float()[rows]
        chosen[Postprocessing.VALUE_TARGETS] = (advantages + sample_values).float()[rows]
        return {**batch, DEFAULT_MODULE_ID: chosen}

    def _advantages(self, rollouts: list[PackedRollout], columns: dict[str, Any], values: Tensor) -> list[Tensor]:
        """Return the advantages of the samples of each rollout, `(T * N,)`, float64."""
        lasts = sum(rollout.rewards.size for rollout in rollouts)  # where the values of last observations begin
        finals = lasts + sum(rollout.shape[1] for rollout in rollouts)
        start, advantages = 0, []
        for rollout in rollouts:
            num_steps, num_envs = rollout.shape
            slab = slice(start, start + num_steps * num_envs)
            of_slab = values[slab].view(num_steps, num_envs)
            next_values = torch.cat([of_slab[1:], values[None, lasts : lasts + num_envs]])
            if len(rollout.cut_rows):
                places = (torch.from_numpy(rollout.cut_steps), torch.from_numpy(rollout.cut_rows))
                next_values[places] = values[finals : finals + len(rollout.cut_rows)]
            estimated = generalised_advantages(
                columns[Columns.REWARDS][slab].view(num_steps, num_envs).double(), of_slab, next_values,
                columns[Columns.TERMINATEDS][slab].view(num_steps, num_envs),
                columns[Columns.TRUNCATEDS][slab].view(num_steps, num_envs),
                gamma=self._gamma, lambda_=self._lambda,
            )  # fmt: skip
            advantages.append(estimated.flatten())
            start, lasts, finals = slab.stop, lasts + num_envs, finals + len(rollout.cut_rows)
        return advantages

    def _rows(self, valid: Tensor) -> Tensor | slice:
        """Return the rows of the batch to keep, in their order."""
        count = int(valid.count_nonzero())
        if self._is_shuffling and self._minibatch_size is not None and self._minibatch_size < count:
            samples = valid.nonzero().flatten()
            return samples[torch.from_numpy(np.random.permutation(count)).to(valid.device)]  # noqa: NPY002 (RLlib's)
        return slice(count) if count == len(valid) else valid.nonzero().flatten()
