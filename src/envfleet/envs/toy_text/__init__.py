"""Gymnasium's toy text environments as kernels, equal to the originals from the same seeds."""

from envfleet.envs.toy_text.blackjack import Blackjack
from envfleet.envs.toy_text.cliff_walking import CliffWalking
from envfleet.envs.toy_text.frozen_lake import FrozenLake, FrozenLake8x8
from envfleet.envs.toy_text.taxi import Taxi

__all__ = ["Blackjack", "CliffWalking", "FrozenLake", "FrozenLake8x8", "Taxi"]
