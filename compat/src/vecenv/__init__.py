"""Fleets in RLlib, under the name of the repository that compared `vec` and `packed_vec` first."""

from envfleet.rllib import PackedPPOConfig, register_fleet

__all__ = ["PackedPPOConfig", "register_fleet"]
