"""Agents that learn from a fleet: DDDQN, SAC, TD3, PPO; importing this package imports torch."""

from envfleet.extras import missing

try:
    import torch as _torch  # noqa: F401  # so that what is missing is said once, and how to get it
except ImportError as error:
    raise missing("envfleet.agents", error) from error

from envfleet.agents.actions import ActionTable
from envfleet.agents.agent import Agent, RolloutAgent
from envfleet.agents.dddqn import DDDQN, DDDQNConfig
from envfleet.agents.export import export_policy
from envfleet.agents.hyperparameters import NetworkConfig, OffPolicyConfig
from envfleet.agents.loading import load_agent
from envfleet.agents.networks import network_of
from envfleet.agents.off_policy import ContinuousAgent, OffPolicyAgent
from envfleet.agents.ppo import PPO, PPOConfig
from envfleet.agents.randomness import ColoredNoise
from envfleet.agents.replay import Batch, Priorities, ReplayBuffer
from envfleet.agents.rollouts import Collector, TransitionRecorder
from envfleet.agents.sac import SAC, SACConfig
from envfleet.agents.td3 import TD3, TD3Config
from envfleet.agents.transitions import Transitions, TransitionWriter
from envfleet.fleet.rollout import Rollout

__all__ = [
    "DDDQN",
    "PPO",
    "SAC",
    "TD3",
    "ActionTable",
    "Agent",
    "Batch",
    "Collector",
    "ColoredNoise",
    "ContinuousAgent",
    "DDDQNConfig",
    "NetworkConfig",
    "OffPolicyAgent",
    "OffPolicyConfig",
    "PPOConfig",
    "Priorities",
    "ReplayBuffer",
    "Rollout",
    "RolloutAgent",
    "SACConfig",
    "TD3Config",
    "TransitionRecorder",
    "TransitionWriter",
    "Transitions",
    "export_policy",
    "load_agent",
    "network_of",
]
