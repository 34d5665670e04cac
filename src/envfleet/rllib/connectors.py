"""Connector pieces that take whole batches of sub-environments: no loop over episodes, none over rows."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import tree
from gymnasium import spaces
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.numpy import flatten_inputs_to_1d_tensor
from ray.rllib.utils.spaces.space_utils import clip_action, get_base_struct_from_space, unsquash_action

from envfleet.rllib.rollout import PackedRollout

Batch = dict[str, Any]


class FlattenObservations(ConnectorV2):
    """Makes one row of numbers of an observation; what is discrete becomes one-hot.

    It does to whole batches what RLlib's piece of that name does to episodes one by one:

        config.env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    """

    def recompute_output_observation_space(
        self,
        input_observation_space: gym.Space[Any],
        input_action_space: gym.Space[Any],
    ) -> gym.Space[Any]:
        """Return a Box of as many numbers as the observation has."""
        self._struct = get_base_struct_from_space(input_observation_space)
        sample = tree.map_structure(lambda space: space.sample(), self._struct)
        flat = flatten_inputs_to_1d_tensor(sample, self._struct, batch_axis=False)
        return spaces.Box(-np.inf, np.inf, flat.shape, np.float32)

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """Flatten the observations of a batch."""
        observations = flatten_inputs_to_1d_tensor(batch[Columns.OBS], self._struct, batch_axis=True)
        return {**batch, Columns.OBS: observations.astype(np.float32, copy=False)}


class PrepareActions(ConnectorV2):
    """Puts next to a batch of actions what the environments get: unsquashed into their bounds, or clipped to them.

    Args:
        normalize_actions: Whether -1 and 1 mean the bounds.
        clip_actions: Else, whether what is outside is moved to the bounds.
    """

    def __init__(
        self,
        input_observation_space: gym.Space[Any] | None = None,
        input_action_space: gym.Space[Any] | None = None,
        *,
        normalize_actions: bool,
        clip_actions: bool,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self._is_normalising, self._is_clipping = normalize_actions, clip_actions

    def recompute_output_action_space(
        self,
        input_observation_space: gym.Space[Any],
        input_action_space: gym.Space[Any],
    ) -> gym.Space[Any]:
        """Return the same space."""
        self._struct = get_base_struct_from_space(input_action_space)
        return input_action_space

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """Add the actions for the environments."""
        if self._is_normalising:
            batch[Columns.ACTIONS_FOR_ENV] = unsquash_action(batch[Columns.ACTIONS], self._struct)
        elif self._is_clipping:
            batch[Columns.ACTIONS_FOR_ENV] = clip_action(batch[Columns.ACTIONS], self._struct)
        return batch


class UnpackRollouts(ConnectorV2):
    """Lays rollouts out as one ordinary flat batch.

    First come the samples of all rollouts, `T * N` each in the order of time, then what only values are needed of: the
    last observations of all, then the hidden last ones of episodes that were cut off. Those rows are zero in all other
    columns, so that pieces between this one and `EstimateAdvantages` see columns of one length.
    """

    def __call__(self, *, batch: Batch, episodes: list[PackedRollout], **_: Any) -> Batch:
        """Make the batch, by the id of its module."""
        columns: Batch = {
            Columns.OBS: _laid_out(
                [rollout.observations for rollout in episodes],
                [rollout.last_observations for rollout in episodes]
                + [rollout.final_observations for rollout in episodes],
            )
        }
        num_values = sum(rollout.shape[1] + len(rollout.cut_rows) for rollout in episodes)
        per_sample = {
            Columns.ACTIONS: [rollout.actions for rollout in episodes],
            Columns.REWARDS: [rollout.rewards for rollout in episodes],
            Columns.TERMINATEDS: [rollout.terminated for rollout in episodes],
            Columns.TRUNCATEDS: [rollout.truncated for rollout in episodes],
            **{name: [rollout.extras[name] for rollout in episodes] for name in episodes[0].extras},
        }
        for name, parts in per_sample.items():
            padding = tree.map_structure(lambda part: np.zeros((num_values, *part.shape[2:]), part.dtype), parts[0])
            columns[name] = _laid_out(parts, [padding])
        return {**batch, DEFAULT_MODULE_ID: columns}


def _laid_out(slabs: list[Any], rows: list[Any]) -> Any:
    """Join slabs `(T, N, …)`, then rows `(K, …)`, to one column."""

    def join(*parts: Any) -> Any:
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts[: len(slabs)]]  # (T, N, …) -> (T * N, …)
        return np.concatenate([*flat, *parts[len(slabs) :]])

    return tree.map_structure(join, *slabs, *rows)
