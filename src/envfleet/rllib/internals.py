"""Parts of RLlib that its documentation does not promise, each with the reason for its use.

Other modules of this package import these names from here, and only documented ones from RLlib itself. A release of Ray
that moves one fails here, with its name. `MEMBERS` lists the undocumented methods and attributes that subclasses rely
on, which a test compares with the installed release. The version of Ray is therefore bounded in both directions: 2.54
is the first that accepts current versions of Gymnasium, and later ones than those tested may lack a name.
"""

from __future__ import annotations

import ray

from envfleet.errors import MissingDependency

try:
    # Configuration and registration.
    from ray.rllib.algorithms.algorithm_config import NotProvided  # distinguishes "not given" from None
    from ray.rllib.algorithms.ppo.ppo import (  # names of the losses that minibatches in parts log as one
        LEARNER_RESULTS_KL_KEY,
        LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY,
        LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY,
    )
    from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner  # the learner that is subclassed
    from ray.rllib.callbacks.utils import make_callback  # on_environment_created, as RLlib calls it

    # Connector pieces and pipelines.
    from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2  # its pieces are called one by one
    from ray.rllib.connectors.env_to_module import (  # pieces that loop over episodes, which packing refuses
        FlattenObservations as _FlattenObservations,
    )
    from ray.rllib.connectors.env_to_module import MeanStdFilter, PrevActionsPrevRewards
    from ray.rllib.core.learner.learner import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY
    from ray.rllib.core.rl_module.torch import TorchRLModule  # whether forward methods are RLlib's own

    # Sampling.
    from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES  # spaces that functions of pieces are given
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner  # the EnvRunner that is subclassed
    from ray.rllib.evaluation.postprocessing import Postprocessing  # names of advantages and value targets
    from ray.rllib.utils import force_list  # callbacks may be one class or a list
    from ray.rllib.utils.metrics import (  # RLlib's names of durations, so that checkpoints can be exchanged
        ALL_MODULES,
        CONNECTOR_PIPELINE_TIMER,
        CONNECTOR_TIMERS,
        ENV_RESET_TIMER,
        ENV_STEP_TIMER,
        ENV_TO_MODULE_CONNECTOR,
        MODULE_TO_ENV_CONNECTOR,
        RLMODULE_INFERENCE_TIMER,
        TIMERS,
    )
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
    from ray.rllib.utils.metrics.utils import to_snake_case  # names of pieces among durations
    from ray.rllib.utils.numpy import flatten_inputs_to_1d_tensor  # flattens whole batches
    from ray.rllib.utils.spaces.space_utils import clip_action, get_base_struct_from_space, unsquash_action
    from ray.tune.registry import ENV_CREATOR, _global_registry  # the creator of a registered name
except ImportError as error:
    raise MissingDependency(
        f"Ray {ray.__version__} lacks a part of RLlib that envfleet.rllib needs ({error}): install a version that "
        "envfleet supports, pip install 'envfleet[ray]'"
    ) from error

RLLIB_PIECES: tuple[type, ...] = (
    getattr(_FlattenObservations, "func", _FlattenObservations),  # RLlib exports a partial of the class
    MeanStdFilter,
    PrevActionsPrevRewards,
)
"""Pieces of RLlib that read episodes."""

MEMBERS: dict[type, dict[str, str]] = {
    SingleAgentEnvRunner: {
        "make_env": "overridden: makes a fleet instead of RLlib's vector environment",
        "make_module": "overridden: refuses stateful modules",
        "_sample": "overridden: samples rollouts instead of episodes",
        "_needs_initial_reset": "set as RLlib sets it, so that a failed step resets",
        "_seed": "seed of the EnvRunner",
        "_callbacks": "callbacks of the configuration",
        "_cached_to_module": "input of the next forward pass",
        "_env_to_module": "pipeline before the module",
        "_module_to_env": "pipeline after the module",
        "_log_env_steps": "counts samples",
        "_metrics_num_env_steps_sampled": "counter of samples",
        "_increase_sampled_metrics": "counts samples and episodes",
        "_log_episode_metrics": "logs returns and lengths under RLlib's names",
    },
    PPOTorchLearner: {
        "_update": "overridden: passes large minibatches in parts",
        "_optimizer_parameters": "optimizers with gradients to clear",
        "_grad_scalers": "mixed precision is left to RLlib",
        "_torch_compile_complete_update": "compiled updates are left to RLlib",
        "_params": "parameters by name, for postprocessing of gradients",
    },
    TorchRLModule: {
        "_forward_exploration": "called without RLlib's eval() of every submodule",
        "_forward_inference": "called without RLlib's eval() of every submodule",
    },
    ConnectorPipelineV2: {"connectors": "pieces in order"},
}
"""Undocumented methods and attributes, by class, each with its use."""

__all__ = [
    "ALL_MODULES",
    "CONNECTOR_PIPELINE_TIMER",
    "CONNECTOR_TIMERS",
    "ENTROPY_KEY",
    "ENV_CREATOR",
    "ENV_RESET_TIMER",
    "ENV_STEP_TIMER",
    "ENV_TO_MODULE_CONNECTOR",
    "INPUT_ENV_SINGLE_SPACES",
    "INPUT_ENV_SPACES",
    "LEARNER_RESULTS_KL_KEY",
    "LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY",
    "LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY",
    "MEMBERS",
    "MODULE_TO_ENV_CONNECTOR",
    "POLICY_LOSS_KEY",
    "RLLIB_PIECES",
    "RLMODULE_INFERENCE_TIMER",
    "TIMERS",
    "VF_LOSS_KEY",
    "ConnectorPipelineV2",
    "MetricsLogger",
    "NotProvided",
    "PPOTorchLearner",
    "Postprocessing",
    "SingleAgentEnvRunner",
    "TorchRLModule",
    "_global_registry",
    "clip_action",
    "flatten_inputs_to_1d_tensor",
    "force_list",
    "get_base_struct_from_space",
    "make_callback",
    "to_snake_case",
    "unsquash_action",
]
