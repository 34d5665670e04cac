"""Fleets in RLlib: `vec`, any fleet as its vector environment, and `packed_vec`, N sub-environments that cost it one.

Importing this package imports Ray.
"""

from envfleet.errors import MissingDependency

try:
    import ray.rllib as _rllib  # noqa: F401  # so that what is missing is said once, and how to get it
except ImportError as error:
    raise MissingDependency("envfleet.rllib needs Ray's RLlib: pip install 'envfleet[ray]'") from error

from envfleet.rllib.config import PackedPPO, PackedPPOConfig
from envfleet.rllib.connectors import FlattenObservations
from envfleet.rllib.fleets import FleetCreator, register_fleet
from envfleet.rllib.learner import PackedPPOLearner
from envfleet.rllib.rollout import PackedRollout
from envfleet.rllib.runner import PackedEnvRunner

__all__ = [
    "FlattenObservations",
    "FleetCreator",
    "PackedEnvRunner",
    "PackedPPO",
    "PackedPPOConfig",
    "PackedPPOLearner",
    "PackedRollout",
    "register_fleet",
]
