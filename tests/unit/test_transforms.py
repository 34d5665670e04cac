"""Transforms against Gymnasium's wrappers of the same names: every bit, in every mode, and across saved states."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import vector
from gymnasium.wrappers.utils import RunningMeanStd

import envfleet
from envfleet.bench.environments import DictEnv
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.testing.duel import Duel
from envfleet.transforms import (
    ClipAction,
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RescaleAction,
)

CARTPOLE, PENDULUM = "envfleet/CartPole-v1", "InvertedPendulum-v5"
NORMALIZED = (NormalizeObservation(), NormalizeReward(gamma=0.9))


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


def assert_equal_steps(one: Any, other: Any) -> None:
    for first, second in zip(one[:4], other[:4], strict=True):
        assert np.asarray(first).dtype == np.asarray(second).dtype
        np.testing.assert_array_equal(first, second)


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


@pytest.mark.parametrize(("env_id", "backend"), [(CARTPOLE, "kernel"), (PENDULUM, "native"), ("CartPole-v1", "serial")])
def test_states_continue_exactly(env_id: str, backend: Any) -> None:
    make = functools.partial(
        envfleet.make, env_id, 3, backend=backend, transforms=[*NORMALIZED, FrameStackObservation(2)]
    )
    with make() as fleet, make() as other:
        fleet.action_space.seed(0)
        fleet.reset(seed=0)
        for _ in range(25):
            fleet.step(fleet.action_space.sample())
        state = pickle.loads(pickle.dumps(fleet.get_state()))
        other.reset(seed=9)
        np.testing.assert_array_equal(other.set_state(state), fleet.engine.observe())
        for _ in range(25):
            actions = fleet.action_space.sample()
            assert_equal_steps(fleet.step(actions), other.step(actions))


def test_last_observations_are_transformed() -> None:
    env_fns = [functools.partial(CountingEnv, 2)] * 2
    with envfleet.make(env_fns, backend="serial", autoreset_mode="SAME_STEP", transforms=[]) as plain:
        space = plain.single_observation_space
    stack = [FrameStackObservation(2)]
    with envfleet.make(env_fns, backend="serial", autoreset_mode="SAME_STEP", transforms=stack) as fleet:
        assert fleet.single_observation_space.shape == (2, *(space.shape or ()))
        fleet.reset(seed=0)
        fleet.step([0, 0])
        *_, infos = fleet.step([0, 0])
        np.testing.assert_array_equal(fleet.final_observations[0], infos["final_obs"][0])
        assert infos["final_obs"][0].shape == fleet.single_observation_space.shape


def test_statistics_are_set_for_an_evaluation() -> None:
    with (
        envfleet.make(CARTPOLE, 3, backend="kernel", transforms=NORMALIZED) as fleet,
        envfleet.make(CARTPOLE, 2, backend="kernel", transforms=NORMALIZED) as other,
    ):
        fleet.reset(seed=0)
        fleet.rollout("random", 20, seed=0)
        one: Any = fleet.engine
        two: Any = other.engine
        two.set_statistics(one.get_statistics(), is_updating=False)
        other.reset(seed=0)
        other.rollout("random", 20, seed=0)
        np.testing.assert_array_equal(one.get_statistics()[0].mean, two.get_statistics()[0].mean)
        with pytest.raises(InvalidArgument, match="pass those of the same transforms"):
            two.set_statistics([None, None])


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


def test_observations_that_are_no_array_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"observations that are one array \(got Dict.*FlattenObservation"):
        envfleet.make(DictEnv, 2, backend="serial", transforms=[ClipAction()])


def test_arrays_on_a_gpu_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="transforms require device='cpu'"):
        envfleet.make(CARTPOLE, 2, device="cuda", transforms=NORMALIZED)


SENT = [(CARTPOLE, "kernel"), (PENDULUM, "native"), ("CartPole-v1", "serial"), ("CartPole-v1", "process")]


@pytest.mark.parametrize(("env_id", "backend"), SENT)
def test_sent_rows_equal_whole_steps(env_id: str, backend: Any, autoreset_mode: AutoresetMode) -> None:
    make = functools.partial(
        envfleet.make, env_id, 4, backend=backend, autoreset_mode=autoreset_mode,
        transforms=[NormalizeObservation(), FrameStackObservation(3)],
    )  # fmt: skip
    with make() as fleet, make() as other:
        for one in (fleet, other):
            engine: Any = one.engine
            engine.set_statistics(engine.get_statistics(), is_updating=False)  # updates depend on batches
            one.reset(seed=3)
        rng, num_ended = np.random.default_rng(0), 0
        for _ in range(40):
            if autoreset_mode is AutoresetMode.DISABLED and (ended := fleet.terminated_indices):
                np.testing.assert_array_equal(fleet.reset_envs(ended)[0], other.reset_envs(ended)[0])
            actions, order = fleet.action_space.sample(), rng.permutation(4)
            *expected, infos = fleet.step(actions)
            num_ended += int(np.sum(expected[2] | expected[3]))
            for rows in (order[:1], order[1:]):
                other.send(actions[rows], rows)
                batch = other.recv(env_indices=rows)
                for whole, part in zip(expected, batch[:4], strict=True):
                    np.testing.assert_array_equal(whole[rows], part)
                for row, final in zip(rows, batch.infos.get("final_obs", ()), strict=False):
                    np.testing.assert_array_equal(final, infos["final_obs"][row])
            np.testing.assert_array_equal(fleet.engine.observe(), other.engine.observe())
        assert num_ended > 1


@pytest.mark.parametrize(("env_id", "backend"), SENT[:3])
def test_sent_steps_update_statistics(env_id: str, backend: Any) -> None:
    make = functools.partial(envfleet.make, env_id, 3, backend=backend, transforms=NORMALIZED)
    with make() as fleet, make() as other:
        fleet.reset(seed=0)
        other.reset(seed=0)
        for _ in range(30):
            actions = fleet.action_space.sample()
            other.send(actions)
            assert_equal_steps(fleet.step(actions), other.recv())
