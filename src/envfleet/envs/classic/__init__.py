"""Gymnasium's classic control environments as kernels, as equal to the originals as docs/kernels.md says."""

from envfleet.envs.classic.acrobot import Acrobot
from envfleet.envs.classic.cartpole import CartPole
from envfleet.envs.classic.mountain_car import MountainCar
from envfleet.envs.classic.mountain_car_continuous import MountainCarContinuous
from envfleet.envs.classic.pendulum import Pendulum

__all__ = ["Acrobot", "CartPole", "MountainCar", "MountainCarContinuous", "Pendulum"]
