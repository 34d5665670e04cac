"""SAC, with `act_batch(states, deterministic=False)`."""

from envfleet.agents import SAC, SACConfig

__all__ = ["SAC", "SACConfig"]
