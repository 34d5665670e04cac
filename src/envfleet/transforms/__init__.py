"""Transforms of a fleet's observations, rewards and actions, equal to Gymnasium's wrappers of the same names."""

from envfleet.transforms.engine import TransformedEngine
from envfleet.transforms.stages import (
    ClipAction,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RescaleAction,
    Statistics,
    Transform,
)

__all__ = [
    "ClipAction",
    "FrameStackObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "RescaleAction",
    "Statistics",
    "Transform",
    "TransformedEngine",
]
