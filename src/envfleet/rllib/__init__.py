"""Fleets in RLlib: `vec` (a fleet as its vector environment) and `packed_vec` (N sub-environments, overhead of one).

Importing this package imports Ray.
"""

from envfleet.extras import missing

try:
    import ray.rllib as _rllib  # noqa: F401  # one error message for a missing Ray
except ImportError as error:
    raise missing("envfleet.rllib", error) from error

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
