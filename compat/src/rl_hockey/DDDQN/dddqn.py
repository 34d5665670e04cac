"""DDDQN, with `act_batch(states, deterministic=False)`."""

from envfleet.agents import DDDQN, DDDQNConfig

__all__ = ["DDDQN", "DDDQNConfig"]
