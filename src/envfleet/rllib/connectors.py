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

from envfleet.rllib.internals import (
    clip_action,
    flatten_inputs_to_1d_tensor,
    get_base_struct_from_space,
    unsquash_action,
)
from envfleet.rllib.rollout import PackedRollout

Batch = dict[str, Any]


class FlattenObservations(ConnectorV2):
    """Connector piece that flattens observations to rows of numbers; discrete values become one-hot.

    It works on whole batches, unlike RLlib's piece of that name, which works on one episode after the other:

        config.env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    """

    def recompute_output_observation_space(
        self, input_observation_space: gym.Space[Any], input_action_space: gym.Space[Any]
    ) -> gym.Space[Any]:
        """Return a Box with the size of a flattened observation."""
        self._struct = get_base_struct_from_space(input_observation_space)
        sample = tree.map_structure(lambda space: space.sample(), self._struct)
        flat = flatten_inputs_to_1d_tensor(sample, self._struct, batch_axis=False)
        return spaces.Box(-np.inf, np.inf, flat.shape, np.float32)

    def __call__(self, *, batch: Batch, **_: Any) -> Batch:
        """Flatten the observations of a batch."""
        observations = flatten_inputs_to_1d_tensor(batch[Columns.OBS], self._struct, batch_axis=True)
        return {**batch, Columns.OBS: observations.astype(np.float32, copy=False)}


class UnpackRollouts(ConnectorV2):
    """Connector piece that joins rollouts to one flat batch.

    Each rollout adds its `T * N` samples in the order of time, then rows of which only values are needed: its last
    observations, and the hidden last observations of truncated episodes. These rows are zero in all other columns, so
    that pieces between this one and `EstimateAdvantages` see columns of one length.
    """

    def __call__(self, *, batch: Batch, episodes: list[PackedRollout], **_: Any) -> Batch:
        """Return the batch, by the id of its module."""
        parts = []
        for rollout in episodes:
            flat = tree.map_structure(lambda column: column.reshape(-1, *column.shape[2:]), rollout.columns)
            observations = tree.map_structure(_join, rollout.last_observations, rollout.cut_episodes.observations)
            count = rollout.shape[1] + len(rollout.cut_episodes)
            padding = tree.map_structure(lambda column: np.zeros((count, *column.shape[1:]), column.dtype), flat)  # noqa: B023
            parts += [flat, {**padding, Columns.OBS: observations}]
        return {**batch, DEFAULT_MODULE_ID: tree.map_structure(_join, *parts)}


def _join(*columns: Any) -> Any:
    return np.concatenate(columns)


def actions_for_env(actions: Any, space: gym.Space[Any], config: Any) -> Any:
    """Return actions for the environments from a batch of a module's actions.

    Args:
        actions: Actions, `(N, …)`, nested as their space is.
        space: Space of one sub-environment's actions.
        config: An `AlgorithmConfig`. With `normalize_actions`, -1 and 1 mean the bounds; otherwise, with
            `clip_actions`, values outside are clipped to them.
    """
    if config.normalize_actions:
        return unsquash_action(actions, get_base_struct_from_space(space))
    return clip_action(actions, get_base_struct_from_space(space)) if config.clip_actions else actions
