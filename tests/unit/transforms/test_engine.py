"""Transformed fleets: saved states, partial steps, statistics, and what is refused."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.unit.transforms.steps import CARTPOLE, NORMALIZED, PENDULUM, assert_equal_steps

import envfleet
from envfleet.bench.environments import DictEnv
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.transforms import (
    ClipAction,
    FrameStackObservation,
    NormalizeObservation,
    RescaleAction,
)


class FourJoints(gym.Env[Any, Any]):
    observation_space = action_space = gym.spaces.Box(-1, 1, (4,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        return action, 0.0, False, False, {}


@pytest.mark.parametrize("transform", [ClipAction(), RescaleAction(-2.0, 2.0)], ids=repr)
@pytest.mark.parametrize("actions", [None, "left", np.zeros((2, 3)), np.zeros((2, 1))], ids=repr)
def test_invalid_actions_are_refused_before_a_step(transform: Any, actions: Any) -> None:
    with envfleet.make(FourJoints, 2, backend="serial", transforms=[transform]) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="actions"):
            fleet.step(actions)
        with pytest.raises(InvalidArgument, match="actions"):
            fleet.send(actions)
        fleet.step(np.zeros((2, 4), np.float32))


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
