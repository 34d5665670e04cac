"""Agents that learn from a fleet: DDDQN, SAC, TD3, PPO; importing this room imports torch."""
