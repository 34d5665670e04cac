"""Gymnasium's classic control environments, the kernels that must equal them, and actions that lead far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from envfleet.envs.classic.acrobot import Acrobot
from envfleet.envs.classic.cartpole import CartPole
from envfleet.envs.classic.mountain_car import MountainCar
from envfleet.envs.classic.mountain_car_continuous import MountainCarContinuous
from envfleet.envs.classic.pendulum import Pendulum
from envfleet.kernels import Kernel

HELD_STEPS = 5


def assert_same(actual: Any, expected: Any, when: object = "") -> None:
    """Check that two arrays or numbers are equal but for one unit in the last place of a float32."""
    np.testing.assert_allclose(actual, expected, rtol=1.2e-7, atol=1.2e-7, err_msg=str(when))


@dataclasses.dataclass(frozen=True)
class Pair:
    """An environment of Gymnasium and its kernel.

    Attributes:
        id: Gymnasium's.
        kernel: Ours.
        steer: `steer(observations)`: actions that reach what random ones do not, the goal or the time limit.
        num_steps: Steps of a comparison, more than the limit, so that episodes of every length end in it.
    """

    id: str
    kernel: type[Kernel]
    steer: Callable[[NDArray[Any]], NDArray[Any]]
    num_steps: int

    def make(self, **options: Any) -> gym.Env[Any, Any]:
        return gym.make(self.id, disable_env_checker=True, **options)

    def fields(self, env: gym.Env[Any, Any]) -> NDArray[np.float64]:
        """The state of an original as float64."""
        original: Any = env.unwrapped
        return np.asarray(original.state, np.float64)

    def actions(self, observations: NDArray[Any], step: int, rng: np.random.Generator) -> NDArray[Any]:
        """Actions of three policies in turn: random, random but held for some steps, and steered."""
        num_envs = len(observations)
        space: Any = self.kernel.action_space
        held = np.random.default_rng(step // HELD_STEPS)
        random: NDArray[Any]
        kept: NDArray[Any]
        if isinstance(space, gym.spaces.Discrete):
            random, kept = (draw.integers(0, int(space.n), num_envs) for draw in (rng, held))
        else:
            shape = (num_envs, *space.shape)
            random, kept = (draw.uniform(space.low, space.high, shape).astype(np.float32) for draw in (rng, held))
        policy = np.arange(num_envs).reshape(-1, *(1,) * (random.ndim - 1)) % 3
        return np.choose(policy, (random, kept, self.steer(observations).astype(random.dtype)))


def _column(values: NDArray[Any]) -> NDArray[Any]:
    return values[:, None]


CART_POLE = Pair("CartPole-v1", CartPole, lambda o: 3 * o[:, 2] + o[:, 3] + 0.1 * o[:, 1] > 0, 600)
PENDULUM = Pair("Pendulum-v1", Pendulum, lambda o: _column(2 * np.sign(o[:, 2])), 450)
MOUNTAIN_CAR = Pair("MountainCar-v0", MountainCar, lambda o: 1 + np.sign(o[:, 1]), 450)
MOUNTAIN_CAR_CONTINUOUS = Pair(
    "MountainCarContinuous-v0", MountainCarContinuous, lambda o: _column(np.sign(o[:, 1])), 1050
)
ACROBOT = Pair("Acrobot-v1", Acrobot, lambda o: 1 + np.sign(o[:, 4] + o[:, 5]), 550)

PAIRS = (CART_POLE, PENDULUM, MOUNTAIN_CAR, MOUNTAIN_CAR_CONTINUOUS, ACROBOT)
