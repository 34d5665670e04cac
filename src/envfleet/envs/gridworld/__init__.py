"""A grid world with images as observations: planes of zeros and ones, or pixels."""

from envfleet.envs.gridworld.gridworld import GridWorld, GridWorldPixels

__all__ = ["GridWorld", "GridWorldPixels"]
