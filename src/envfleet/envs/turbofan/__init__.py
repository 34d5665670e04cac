"""A turbofan engine that wears: `envfleet/Turbofan-v0`."""

from envfleet.envs.turbofan.kernel import FAILURE, FLY, REPAIR, SELL, SOLD, Turbofan, turbofan
from envfleet.envs.turbofan.policies import ThresholdPolicy, estimate_degradation
from envfleet.envs.turbofan.sensors import NAMES

__all__ = [
    "FAILURE",
    "FLY",
    "NAMES",
    "REPAIR",
    "SELL",
    "SOLD",
    "ThresholdPolicy",
    "Turbofan",
    "estimate_degradation",
    "turbofan",
]
