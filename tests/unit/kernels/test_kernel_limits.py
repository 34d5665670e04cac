"""Kernels with built-in time limits: steps that return `truncated`, too."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

import envfleet
from envfleet.errors import KernelError
from envfleet.fleet.fleet import Fleet
from envfleet.kernels import Kernel, array
from envfleet.kernels.env import KernelEnv
from envfleet.kernels.kernel import read_kernel

LIMIT = 3


class Clock(Kernel):
    """Ends when its parameter says; without draws and arrays, so that it is stepped without a branch.

    Its reward is a bool.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 1000, (1,), np.float32)
    action_space = spaces.Discrete(2)

    class State:
        time: int

    class Params:
        limit: int = LIMIT

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        state.time = 0

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool, bool]:
        state.time += 1
        return True, (action == 1) & (state.time == 2), state.time >= params.limit

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        out[0] = state.time


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    with envfleet.make(Clock, 3, backend="kernel", record_episodes=True, **getattr(request, "param", {})) as fleet:
        fleet.reset(seed=0)
        yield fleet


def test_check_kernel_compares_them(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Clock, num_steps=20) == 80


def test_episodes_end_by_the_limit_of_the_kernel(fleet: Fleet) -> None:
    times = np.arange(3)  # that they have come to
    fleet.set_attr("time", times)
    for _ in range(12):
        observations, _, terminated, truncated, infos = fleet.step(np.zeros(3, np.int64))
        times = np.where(times == LIMIT, 0, times + 1)  # the step after an end is the reset
        np.testing.assert_array_equal(observations[:, 0], times)
        np.testing.assert_array_equal(truncated, times == LIMIT)
        assert not terminated.any()
        assert ("episode" in infos) == truncated.any()


@pytest.mark.parametrize("fleet", [{"max_episode_steps": 2}], indirect=True)
def test_the_fleets_limit_counts_as_well(fleet: Fleet) -> None:
    flags = [fleet.step(np.zeros(3, np.int64))[3].all() for _ in range(3)]
    assert flags == [False, True, False]


@pytest.mark.parametrize("fleet", [{"autoreset_mode": AutoresetMode.SAME_STEP}], indirect=True)
def test_rollouts_are_truncated_alike(fleet: Fleet) -> None:
    actions = np.random.default_rng(0).integers(0, 2, (24, 3))
    state = fleet.get_state()
    steps = [[np.copy(part) for part in fleet.step(one)[:4]] for one in actions]
    fleet.set_state(state)
    rollout = fleet.rollout(actions, len(actions))
    assert rollout.terminated.any()
    for step, (_, rewards, terminated, truncated) in enumerate(steps):
        np.testing.assert_array_equal(rollout.rewards[step], rewards)
        np.testing.assert_array_equal(rollout.terminated[step], terminated)
        np.testing.assert_array_equal(rollout.truncated[step], truncated)


def test_an_ordinary_environment_tells_it() -> None:
    env = KernelEnv(Clock, limit=2)
    env.reset(seed=0)
    assert [env.step(1)[1:4] for _ in range(3)] == [(1.0, False, False), (1.0, True, True), (0.0, True, True)]
    other = KernelEnv(Clock)
    other.reset(seed=0)
    other.set_state(pickle.loads(pickle.dumps(env.get_state())))
    assert other.step(0)[1:4] == (0.0, True, True)


def test_arrays_of_bools_are_refused_in_words() -> None:
    class Flags(Clock):
        class State(Clock.State):
            flags: NDArray[np.bool_] = array(3, np.bool_)

    class Doors(Clock):
        class Params(Clock.Params):
            doors: NDArray[np.bool_] = np.array([True, False])

    for kernel, field in ((Flags, "Flags.State.flags"), (Doors, "Doors.Params.doors")):
        with pytest.raises(KernelError, match=rf"{field} is an array of bools.*np\.int8"):
            read_kernel(kernel)
