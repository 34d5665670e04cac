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

from envfleet.fleet.rollout import generalised_advantages
from envfleet.rllib.passes import in_parts
from envfleet.rllib.rollout import PackedRollout


class EstimateAdvantages(ConnectorV2):
    """Estimates advantages (GAE) and value targets, and leaves only samples in the batch.

    Follows RLlib's `GeneralAdvantageEstimation`: nothing comes after a termination; at a truncation and at the end of
    a rollout the value of the last observation does; nothing flows from one episode into another. Advantages get mean
    0 and standard deviation 1 over all samples (over the samples alone: RLlib's own piece also counts the artificial
    step at the end of each episode). Values are computed without a graph, some rows at a time.

    Samples are shuffled if they make several minibatches: RLlib's iterator does not before its first pass, and rollouts
    are in the order of time.

    Args:
        config: The `PackedPPOConfig`.
    """

    def __init__(self, input_observation_space: Any = None, input_action_space: Any = None, *, config: Any) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._config = config

    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: list[PackedRollout], **_: Any
    ) -> dict[str, Any]:
        """Turn what `UnpackRollouts` laid out into a train batch."""
        columns = batch[DEFAULT_MODULE_ID]
        with torch.no_grad():
            critic = rl_module[DEFAULT_MODULE_ID].unwrapped().compute_values
            values = in_parts(critic, columns, self._config.rows_per_pass).double()
        advantages, is_sample = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
        start = 0
        for rollout in episodes:
            slab = slice(start, start + rollout.valid.size)
            advantages[slab] = self._advantages(rollout, columns, values, slab)
            is_sample[slab] = torch.tensor(rollout.valid.reshape(-1))
            start = slab.stop + rollout.shape[1] + len(rollout.cut_rows)
        kept, rows = advantages[is_sample], self._rows(is_sample)
        standardised = (advantages - kept.mean()) / kept.std(correction=0).clamp(min=1e-4)
        chosen = tree.map_structure(lambda column: column[rows], columns)
        chosen[Postprocessing.ADVANTAGES] = standardised.float()[rows]
        chosen[Postprocessing.VALUE_TARGETS] = (advantages + values).float()[rows]
        return {**batch, DEFAULT_MODULE_ID: chosen}

    def _advantages(self, rollout: PackedRollout, columns: dict[str, Any], values: Tensor, slab: slice) -> Tensor:
        """Return the advantages of the samples of a rollout, which are the rows `slab`, `(T * N,)`, float64."""
        shape, num_envs = rollout.shape, rollout.shape[1]
        # The values of the next step begin N rows later, and after the last one come those of the last observations.
        next_values = values[slab.start + num_envs : slab.stop + num_envs].clone().view(shape)
        places = torch.tensor(rollout.cut_steps), torch.tensor(rollout.cut_rows)
        next_values[places] = values[slab.stop + num_envs :][: len(rollout.cut_rows)]
        given = (
            columns[Columns.REWARDS][slab].view(shape).double(), values[slab].view(shape), next_values,
            columns[Columns.TERMINATEDS][slab].view(shape), columns[Columns.TRUNCATEDS][slab].view(shape),
        )  # fmt: skip
        nobody = np.zeros(shape, np.bool_)  # what a reset would get is no sample
        arrays = [*(tensor.cpu().numpy() for tensor in given), nobody]
        estimated, _ = generalised_advantages(*arrays, gamma=self._config.gamma, gae_lambda=self._config.lambda_)
        return torch.from_numpy(estimated).to(values.device).flatten()

    def _rows(self, is_sample: Tensor) -> Tensor | slice:
        """Return the rows of the batch to keep, in their order."""
        config, rows = self._config, is_sample.nonzero().flatten()
        is_shuffling = config.shuffle_batch_per_epoch and config.num_epochs > 1
        if is_shuffling and config.minibatch_size is not None and config.minibatch_size < len(rows):
            return rows[torch.from_numpy(np.random.permutation(len(rows))).to(rows.device)]  # noqa: NPY002 (RLlib's)
        return slice(len(rows)) if bool(is_sample[: len(rows)].all()) else rows  # a view, if it can be one
