"""The usual sketch of packed vectorization, as a peer: one RLlib environment that holds N sub-environments.

Rewards and flags travel in the observation, a module flattens, a learner connector unpacks and estimates advantages
over `(T, N)`. Only its speed is compared; its errors are kept: rows of automatic resets count as transitions, values
flow across truncations, and returns of sub-environments are missing.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.connectors.common import AddObservationsFromEpisodesToBatch, BatchIndividualItems, NumpyToTensor
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import AddColumnsFromEpisodesToTrainBatch, AddOneTsToEpisodesAndTruncate
from ray.rllib.core import DEFAULT_MODULE_ID, Columns
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.tune.registry import register_env

import envfleet


class SketchEnv(gym.Env[Any, Any]):
    """N Pendulums as one environment."""

    def __init__(self, num_envs: int) -> None:
        self.fleet = envfleet.make("envfleet/Pendulum-v1", num_envs, backend="kernel")
        flag = spaces.Box(-np.inf, np.inf, (num_envs,), np.float32)
        self.observation_space = spaces.Dict(
            obs=spaces.Box(-np.inf, np.inf, (num_envs, 3), np.float32), rewards=flag, terminated=flag, truncated=flag
        )
        self.action_space = spaces.Box(-2, 2, (num_envs, 1), np.float32)

    def _pack(self, observations: Any, *others: Any) -> Any:
        columns = [np.asarray(column, np.float32) for column in others]
        return dict(zip(("obs", "rewards", "terminated", "truncated"), (observations, *columns), strict=True))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observations, _ = self.fleet.reset(seed=seed)
        return self._pack(observations, *np.zeros((3, self.fleet.num_envs))), {}

    def step(self, action: Any) -> Any:
        observations, rewards, terminated, truncated, _ = self.fleet.step(action)
        packed = self._pack(observations, rewards, terminated, truncated)
        return packed, float(rewards.mean()), bool(terminated.all()), False, {}


class SketchModule(DefaultPPOTorchRLModule):
    """RLlib's default networks; flattens `(1, N, 3)` before them and packs again."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        observations = batch[Columns.OBS]["obs"]
        outputs = super()._forward({Columns.OBS: observations.flatten(0, 1)}, **kwargs)
        inputs = outputs[Columns.ACTION_DIST_INPUTS]
        distribution = self.get_exploration_action_dist_cls().from_logits(inputs)
        actions = distribution.sample()
        columns = {
            Columns.ACTIONS: actions,
            Columns.ACTION_LOGP: distribution.logp(actions),
            Columns.ACTION_DIST_INPUTS: inputs,
        }
        return {name: column.unflatten(0, observations.shape[:2]) for name, column in columns.items()}


class SketchAdvantages(ConnectorV2):
    """Unpacks, estimates advantages cut by terminations alone, and flattens."""

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], **_: Any) -> Any:
        columns = batch[DEFAULT_MODULE_ID]
        packed = columns[Columns.OBS]
        observations = packed["obs"]
        values = rl_module[DEFAULT_MODULE_ID].compute_values({Columns.OBS: observations.flatten(0, 1)})
        values = values.detach().view(observations.shape[:2]).numpy()
        rewards, going = packed["rewards"].numpy()[1:], 1.0 - packed["terminated"].numpy()[1:]
        errors = rewards + 0.95 * going * values[1:] - values[:-1]
        advantages, following = np.zeros_like(errors), np.zeros_like(errors[0])
        for step in reversed(range(len(errors))):
            following = errors[step] + 0.95 * 0.95 * going[step] * following
            advantages[step] = following
        targets = advantages + values[:-1]
        advantages = (advantages - advantages.mean()) / max(1e-4, advantages.std())
        names = (Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
        flat = {name: columns[name][:-1].flatten(0, 1) for name in names}
        flat[Columns.OBS] = observations[:-1].flatten(0, 1)
        flat[Postprocessing.ADVANTAGES] = torch.from_numpy(advantages.reshape(-1))
        flat[Postprocessing.VALUE_TARGETS] = torch.from_numpy(targets.reshape(-1))
        return {DEFAULT_MODULE_ID: flat}


def _pieces(*_: Any) -> list[ConnectorV2]:
    return [
        AddOneTsToEpisodesAndTruncate(),
        AddObservationsFromEpisodesToBatch(as_learner_connector=True),
        AddColumnsFromEpisodesToTrainBatch(),
        BatchIndividualItems(),
        NumpyToTensor(as_learner_connector=True),
        SketchAdvantages(),
    ]


class SketchConfig(PPOConfig):
    """Batches count rows of N samples, minibatches samples; the check that compares them is off."""

    def validate(self) -> None:
        samples, self.minibatch_size = self.minibatch_size, 1
        super().validate()
        self.minibatch_size = samples


def sketch_config(num_envs: int) -> SketchConfig:
    """Return the configuration for N sub-environments."""
    register_env("sketch", lambda _: SketchEnv(num_envs))
    module = RLModuleSpec(
        module_class=SketchModule,
        observation_space=spaces.Box(-np.inf, np.inf, (3,), np.float32),
        action_space=spaces.Box(-2, 2, (1,), np.float32),
    )
    config = SketchConfig().environment("sketch").rl_module(rl_module_spec=module)
    config.learners(add_default_connectors_to_learner_pipeline=False)
    config.training(learner_connector=_pieces)
    return config
