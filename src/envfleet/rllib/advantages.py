"""Advantages and value targets of packed rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from torch import Tensor

from envfleet.fleet.rollout import generalized_advantages
from envfleet.rllib.internals import Postprocessing
from envfleet.rllib.passes import in_parts
from envfleet.rllib.rollout import PackedRollout


class EstimateAdvantages(ConnectorV2):
    """Connector piece that estimates advantages (GAE) and value targets, and leaves only samples in the batch.

    It follows RLlib's `GeneralAdvantageEstimation`: the value after a termination is 0; at a truncation and at the end
    of a rollout it is the value of the last observation. Advantages are normalized to mean 0 and standard deviation 1
    over all samples, without the artificial step that RLlib's own piece adds to each episode. Values are computed
    without a graph, in parts of `rows_per_pass` rows.

    Samples are shuffled if they make several minibatches, because rollouts are in the order of time and RLlib's
    iterator does not shuffle before its first pass.

    Args:
        config: The `PackedPPOConfig`.
    """

    def __init__(self, input_observation_space: Any = None, input_action_space: Any = None, *, config: Any) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._config = config

    def __call__(
        self, *, rl_module: Any, batch: dict[str, Any], episodes: list[PackedRollout], **_: Any
    ) -> dict[str, Any]:
        """Turn the output of `UnpackRollouts` into a train batch."""
        columns = batch[DEFAULT_MODULE_ID]
        with torch.no_grad():
            critic = rl_module[DEFAULT_MODULE_ID].unwrapped().compute_values
            values = in_parts(critic, columns, self._config.rows_per_pass).double()
        advantages, is_sample = torch.zeros_like(values), torch.zeros_like(values, dtype=torch.bool)
        start = 0
        for rollout in episodes:
            valid = rollout.valid.reshape(-1)
            part = slice(start, start + len(valid))
            advantages[part] = self._advantages(rollout, columns, values, part)
            is_sample[part] = torch.tensor(valid)
            start = part.stop + rollout.shape[1] + len(rollout.cut_episodes)
        sampled, rows = advantages[is_sample], self._rows(is_sample)
        normalized = (advantages - sampled.mean()) / sampled.std(correction=0).clamp(min=1e-4)
        chosen = tree.map_structure(lambda column: column[rows], columns)
        chosen[Postprocessing.ADVANTAGES] = normalized.float()[rows]
        chosen[Postprocessing.VALUE_TARGETS] = (advantages + values).float()[rows]
        return {**batch, DEFAULT_MODULE_ID: chosen}

    def _advantages(self, rollout: PackedRollout, columns: dict[str, Any], values: Tensor, part: slice) -> Tensor:
        """Return the advantages of a rollout, which is the rows `part` of the batch, float64 `(T * N,)`."""
        shape, num_envs = rollout.shape, rollout.shape[1]
        # Values of the next step are N rows later; those of the last observations follow the last step.
        next_values = values[part.start + num_envs : part.stop + num_envs].clone().view(shape)
        cut = rollout.cut_episodes
        places = torch.tensor(cut.steps), torch.tensor(cut.env_indices)
        next_values[places] = values[part.stop + num_envs :][: len(cut)]
        tensors = (
            columns[Columns.REWARDS][part].view(shape).double(), values[part].view(shape), next_values,
            columns[Columns.TERMINATEDS][part].view(shape), columns[Columns.TRUNCATEDS][part].view(shape),
        )  # fmt: skip
        no_resets = np.zeros(shape, np.bool_)  # their advantages are not used
        arrays = [*(tensor.cpu().numpy() for tensor in tensors), no_resets]
        estimated, _ = generalized_advantages(*arrays, gamma=self._config.gamma, gae_lambda=self._config.lambda_)
        return torch.from_numpy(estimated).to(values.device).flatten()

    def _rows(self, is_sample: Tensor) -> Tensor | slice:
        """Return the rows of the batch to keep, in order."""
        config, rows = self._config, is_sample.nonzero().flatten()
        is_shuffling = config.shuffle_batch_per_epoch and config.num_epochs > 1
        if is_shuffling and config.minibatch_size is not None and config.minibatch_size < len(rows):
            return rows[torch.from_numpy(np.random.permutation(len(rows))).to(rows.device)]  # noqa: NPY002 (RLlib's)
        return slice(len(rows)) if bool(is_sample[: len(rows)].all()) else rows  # a view, if it can be one
