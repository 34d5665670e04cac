"""PPO over packed sub-environments: configuration and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.ppo.ppo import PPO, PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.common import NumpyToTensor, TensorToNumpy
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.module_to_env import GetActions

from envfleet.errors import InvalidArgument
from envfleet.rllib.advantages import EstimateAdvantages
from envfleet.rllib.connectors import UnpackRollouts
from envfleet.rllib.fleets import refuse_num_envs
from envfleet.rllib.internals import NotProvided, force_list
from envfleet.rllib.learner import PackedPPOLearner
from envfleet.rllib.refusals import VEC, refuse_batches, refuse_settings, refuse_spaces
from envfleet.rllib.runner import PackedEnvRunner

_PER_EPISODE = ("on_episode_created", "on_episode_start", "on_episode_step", "on_episode_end")


class PackedPPOConfig(PPOConfig):
    """RLlib's `PPOConfig` for EnvRunners of N sub-environments, at about the overhead of one.

    Settings mean the same as in RLlib: `train_batch_size` and `minibatch_size` count samples,
    `num_envs_per_env_runner` counts sub-environments, and `episode_return_mean` is the mean over their episodes. The
    module, RLlib's or custom, gets flat batches of observations. EnvRunners, Learners, evaluation, checkpoints and Tune
    are RLlib's.

    Not supported are callbacks per episode (`on_sample_end` gets the `PackedRollout`s), stateful modules and several
    agents. Connector pieces must work on batches.

        config = (
            PackedPPOConfig()
            .environment("envfleet/Pendulum-v1")
            .env_runners(num_env_runners=0, num_envs_per_env_runner=1000)
            .training(train_batch_size=100_000, minibatch_size=100_000, num_epochs=5)
        )
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or PackedPPO)
        self.env_runner_cls = PackedEnvRunner
        self.fleet_options: dict[str, Any] = {}
        self.rows_per_pass: int | None = 4096
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        self.add_default_connectors_to_learner_pipeline = False

    def packing(
        self, *, fleet_options: Mapping[str, Any] = NotProvided, rows_per_pass: int | None = NotProvided
    ) -> Self:
        """Set the options of packing.

        Args:
            fleet_options: Options of `envfleet.make`, such as `{"backend": "process", "workers": 2}`.
            rows_per_pass: Largest number of rows per forward pass. The Learner splits larger minibatches into parts and
                adds up their gradients; `None` passes them whole.

        Raises:
            InvalidArgument: `fleet_options` has `num_envs`, or `rows_per_pass` is below 1.
        """
        if fleet_options is not NotProvided:
            refuse_num_envs(fleet_options)
            self.fleet_options = dict(fleet_options)
        if rows_per_pass is not NotProvided:
            if rows_per_pass is not None and rows_per_pass < 1:
                raise InvalidArgument(f"rows_per_pass={rows_per_pass}: pass at least 1, or None for whole minibatches")
            self.rows_per_pass = rows_per_pass
        return self

    def get_default_learner_class(self) -> type:
        """Return the PPO learner that splits large minibatches."""
        return PackedPPOLearner

    def build_env_to_module_connector(self, env: Any = None, spaces: Any = None, device: Any = None) -> ConnectorV2:
        """Build the pipeline before the module: custom pieces, then conversion to tensors."""
        pipeline = super().build_env_to_module_connector(env, spaces, device)
        pipeline.append(NumpyToTensor(device=device))
        return pipeline

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> ConnectorV2:
        """Build the pipeline after the module: drawing of actions, then custom pieces."""
        pipeline = super().build_module_to_env_connector(env, spaces)
        pipeline.prepend(TensorToNumpy())
        pipeline.prepend(GetActions())
        return pipeline

    def build_learner_connector(
        self, input_observation_space: Any, input_action_space: Any, device: Any = None
    ) -> ConnectorV2:
        """Build the Learner's pipeline: one flat batch, custom pieces, conversion to tensors, then advantages."""
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        pipeline.prepend(UnpackRollouts())
        pipeline.append(NumpyToTensor(device=device))
        pipeline.append(EstimateAdvantages(config=self))
        return pipeline

    def validate(self) -> None:
        """Check the configuration.

        Raises:
            InvalidArgument: A setting is not supported by packed sub-environments.
        """
        refuse_settings(self)
        refuse_batches(self)
        super().validate()
        if not (self.enable_env_runner_and_connector_v2 and self.enable_rl_module_and_learner):
            raise InvalidArgument("PackedPPOConfig needs RLlib's new API stack: leave api_stack() as it is")
        if self.is_multi_agent:
            raise InvalidArgument(f"multi_agent() is not supported, packed sub-environments have one agent each: {VEC}")
        if self.model_config.get("use_lstm"):
            raise InvalidArgument(
                "use_lstm=True makes the module stateful, but packed rollouts are trained on as single rows, not as "
                f"sequences: omit it, or {VEC}"
            )
        if self.restart_failed_sub_environments:
            raise InvalidArgument(
                "restart_failed_sub_environments=True would rebuild the whole fleet for one failed sub-environment: "
                'omit it, and call packing(fleet_options={"on_failure": "restart"}), which rebuilds only that one'
            )
        refuse_spaces(self)
        for name in _PER_EPISODE:
            methods = [getattr(callback, name, None) for callback in force_list(self.callbacks_class)]
            if set(methods) - {getattr(RLlibCallback, name)} or getattr(self, f"callbacks_{name}"):
                raise InvalidArgument(
                    f"the callback {name} is called per sub-environment, which packing avoids: use "
                    f"on_sample_end, which gets the PackedRollouts, or {VEC}"
                )


class PackedPPO(PPO):
    """RLlib's PPO with `PackedPPOConfig` as its default, so that Tune finds it."""

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """Return a fresh `PackedPPOConfig`."""
        return PackedPPOConfig()
