"""Each transform against Gymnasium's wrapper of the same name, in every bit and mode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector
from gymnasium.wrappers.utils import RunningMeanStd
from tests.unit.transforms.steps import CARTPOLE, NORMALIZED, PENDULUM, assert_equal_steps

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.testing.duel import Duel
from envfleet.transforms import (
    ClipAction,
    FrameStackObservation,
    RescaleAction,
)


class CenteredObservations(vector.NormalizeObservation):
    """The rule before Gymnasium 1.4, which rounds observations and statistics to float32."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.single_observation_space
        self.obs_rms = RunningMeanStd(shape=space.shape, dtype=space.dtype)

    def observations(self, observations: Any) -> Any:
        self.obs_rms.update(observations)
        return (observations - self.obs_rms.mean) / np.sqrt(self.obs_rms.var + self.epsilon)


class DiscountedReturns(vector.NormalizeReward):
    """The rule before Gymnasium 1.4, which rounds returns to float32 and leaves out the rows of a reset."""

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        self.accumulated_reward = self.accumulated_reward * self.gamma * (1 - terminated) + rewards
        return observations, self.normalize(rewards), terminated, truncated, infos


@pytest.mark.parametrize(("env_id", "backend"), [(CARTPOLE, "kernel"), (PENDULUM, "native"), ("CartPole-v1", "serial")])
@pytest.mark.parametrize("num_envs", [1, 3, 200])
def test_running_statistics_equal_the_wrappers(env_id: str, backend: Any, num_envs: int) -> None:
    with (
        envfleet.make(env_id, num_envs, backend=backend) as plain,
        envfleet.make(env_id, num_envs, backend=backend, transforms=NORMALIZED) as fleet,
    ):
        wrapped: Any = DiscountedReturns(CenteredObservations(plain), gamma=0.9)
        np.testing.assert_array_equal(wrapped.reset(seed=3)[0], fleet.reset(seed=3)[0])
        fleet.action_space.seed(0)
        for _ in range(60):
            actions = fleet.action_space.sample()
            assert_equal_steps(wrapped.step(actions), fleet.step(actions))
        engine: Any = fleet.engine
        observed, rewarded = engine.get_statistics()
        np.testing.assert_array_equal(observed.mean, wrapped.env.obs_rms.mean)
        np.testing.assert_array_equal(rewarded.var[0], wrapped.return_rms.var)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_actions_equal_the_wrappers(scale: float) -> None:
    with (
        envfleet.make(PENDULUM, 3, backend="native") as plain,
        envfleet.make(PENDULUM, 3, backend="native", transforms=[RescaleAction(-2.0, 0.5), ClipAction()]) as clipped,
    ):
        wrapped = vector.ClipAction(
            vector.RescaleAction(plain, np.array([-2.0], np.float32), np.array([0.5], np.float32))
        )
        assert clipped.single_action_space == wrapped.single_action_space
        wrapped.reset(seed=1)
        clipped.reset(seed=1)
        rng = np.random.default_rng(0)
        for _ in range(30):
            actions = rng.uniform(-scale, scale, (3, 1)).astype(np.float32)
            assert_equal_steps(wrapped.step(actions.copy()), clipped.step(actions))


def test_unbounded_actions_cannot_be_rescaled() -> None:
    with pytest.raises(InvalidArgument, match="does not fit"):
        envfleet.make(PENDULUM, 3, backend="native", transforms=[ClipAction(), RescaleAction(-2.0, 0.5)])


@pytest.mark.parametrize("padding_type", ["reset", "zero"])
@pytest.mark.parametrize("backend", ["serial", "kernel"])
def test_stacks_equal_the_wrapper(backend: Any, padding_type: str, autoreset_mode: AutoresetMode) -> None:
    def make_one() -> Any:
        return wrappers.FrameStackObservation(gym.make("CartPole-v1"), 3, padding_type=padding_type)

    reference: Any = SyncVectorEnv([make_one] * 4, autoreset_mode=autoreset_mode)
    env_id = CARTPOLE if backend == "kernel" else "CartPole-v1"
    stack = FrameStackObservation(3, padding_type)
    subject = envfleet.make(env_id, 4, backend=backend, autoreset_mode=autoreset_mode, transforms=[stack])
    try:
        duel = Duel(reference, subject)
        reference.action_space.seed(0)
        differences = [*duel.reset(seed=5), *duel.roll(60)]
        differences += [*duel.reset(options={"reset_mask": np.array([True, False, True, False])}), *duel.roll(60)]
        assert not [*differences, *duel.check_kept()]
    finally:
        reference.close()
        subject.close()


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([ClipAction()], "requires actions in a Box"),
        ([FrameStackObservation(0)], "stack_size"),
        ([FrameStackObservation(2, "one")], "padding_type='one'"),
        ([vector.NormalizeObservation], "pass a list of those of envfleet.transforms"),
    ],
)
def test_what_does_not_fit_is_refused(transforms: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        envfleet.make(CARTPOLE, 2, backend="kernel", transforms=transforms)
