"""Gymnasium's book-keeping wrappers are left out of the step, and nothing tells that they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from tests.conftest import Backend

import envfleet
from envfleet.core.direct_steps import DirectSteps
from envfleet.core.trace import Trace
from envfleet.testing import CountingEnv

ACTIONS = np.zeros(2, np.int64)


def limited(most: int, length: int = 1000) -> gym.Env[Any, Any]:
    """The layers that `gymnasium.make` puts around an environment."""
    return TimeLimit(OrderEnforcing(PassiveEnvChecker(CountingEnv(length))), most)


class HalvedLimit(TimeLimit[Any, Any]):
    """A subclass whose own step must not be left out."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        steps: Any = self._elapsed_steps
        return observation, reward, terminated, truncated or steps >= self._max_episode_steps // 2, info


def halved() -> gym.Env[Any, Any]:
    return HalvedLimit(CountingEnv(1000), 8)


def step(fleet: Any, times: int) -> list[list[bool]]:
    return [fleet.step(ACTIONS)[3].tolist() for _ in range(times)]


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("make_env", [limited, functools.partial(limited, length=5)])
def test_truncates_on_the_step_that_gymnasium_does(
    backend: Backend, mode: AutoresetMode, most: int, make_env: Callable[[int], gym.Env[Any, Any]]
) -> None:
    env_fns = [functools.partial(make_env, most), functools.partial(make_env, most + 2)]
    reference = SyncVectorEnv(env_fns, autoreset_mode=mode)
    with backend(env_fns, autoreset_mode=mode) as fleet:
        assert np.array_equal(fleet.reset(seed=3)[0], reference.reset(seed=3)[0])
        for _ in range(25):
            found = fleet.step(ACTIONS)
            expected: Any = reference.step(ACTIONS)
            for ours, theirs in zip(found[:4], expected[:4], strict=True):
                assert np.array_equal(ours, theirs)
            ended = expected[2] | expected[3]
            if mode is AutoresetMode.DISABLED and ended.any():
                fleet.reset(options={"reset_mask": ended.copy()})
                reference.reset(options={"reset_mask": ended.copy()})
    reference.close()


def test_the_count_is_seen_as_it_would_be(backend: Backend) -> None:
    with backend([functools.partial(limited, 6)] * 2) as fleet:
        fleet.reset(seed=0)
        for count in range(1, 6):
            fleet.step(ACTIONS)
            if count % 2:
                assert fleet.get_attr("_elapsed_steps") == (count, count)
                assert fleet.apply(lambda env: env._elapsed_steps) == [count, count]
        assert step(fleet, 1) == [[True, True]]
        assert fleet.get_attr("_elapsed_steps") == (6, 6)
        fleet.step(ACTIONS)
        assert fleet.get_attr("_elapsed_steps") == (0, 0)


def test_a_changed_limit_counts_at_once(backend: Backend) -> None:
    with backend([functools.partial(limited, 100)] * 2) as fleet:
        fleet.reset(seed=0)
        step(fleet, 3)
        fleet.set_attr("_max_episode_steps", [5, 2])
        assert step(fleet, 2) == [[False, True], [True, False]]
        fleet.reset(seed=0)
        fleet.set_attr("_elapsed_steps", [4, 0])
        assert step(fleet, 2) == [[True, False], [False, True]]


def test_a_step_or_reset_by_hand_counts(backend: Backend) -> None:
    with backend([functools.partial(limited, 4)] * 2) as fleet:
        fleet.reset(seed=0)
        step(fleet, 1)
        fleet.call("step", 0)
        assert step(fleet, 2) == [[False, False], [True, True]]
        fleet.reset(seed=0)
        step(fleet, 3)
        fleet.call("reset")
        assert step(fleet, 4) == [[False, False]] * 3 + [[True, True]]


def test_a_saved_episode_goes_on_with_its_count(backend: Backend) -> None:
    with backend([functools.partial(limited, 5)] * 2) as fleet:
        fleet.reset(seed=0)
        step(fleet, 3)
        states = fleet.get_state()
        assert step(fleet, 2) == [[False, False], [True, True]]
        fleet.set_state(states)
        assert fleet.get_attr("_elapsed_steps") == (3, 3)
        assert step(fleet, 2) == [[False, False], [True, True]]


def test_rows_stepped_alone_have_counts_of_their_own(backend: Backend) -> None:
    with backend([functools.partial(limited, 4)] * 2, batch_size=1) as fleet:
        fleet.reset(seed=0)
        for _ in range(3):
            fleet.send(ACTIONS[:1], [0])
            assert not fleet.recv().truncated.any()
        assert fleet.get_attr("_elapsed_steps") == (3, 0)
        assert step(fleet, 1) == [[True, False]]
        assert step(fleet, 3) == [[False, False], [False, False], [False, True]]


def test_a_rebuilt_sub_environment_counts_from_its_reset(backend: Backend) -> None:
    with backend([_failing, functools.partial(limited, 4)], on_failure="restart") as fleet:
        fleet.reset(seed=0)
        assert step(fleet, 2) == [[False, False], [True, False]]  # it raised
        assert step(fleet, 1) == [[False, False]]  # its reset
        assert fleet.get_attr("_elapsed_steps") == (0, 3)
        assert step(fleet, 1) == [[False, True]]


def _failing() -> gym.Env[Any, Any]:
    return TimeLimit(_FailingEnv(), 4)


class _FailingEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        if self.count == 1:
            raise RuntimeError("the second step")
        return super().step(action)


def test_a_subclass_steps_itself(backend: Backend) -> None:
    with backend([halved] * 2) as fleet:
        fleet.reset(seed=0)
        assert step(fleet, 4) == [[False, False]] * 3 + [[True, True]]


def test_a_replaced_step_is_called(backend: Backend) -> None:
    with backend([functools.partial(limited, 100)] * 2) as fleet:
        fleet.reset(seed=0)
        fleet.apply(_end_at_once)
        assert step(fleet, 1) == [[True, True]]


def _end_at_once(env: Any) -> None:
    plain = type(env).step
    env.step = lambda action: (*plain(env, action)[:3], True, {})


def test_a_wrapper_that_somebody_holds_is_left_in_place() -> None:
    kept: list[Any] = []

    def keeping() -> gym.Env[Any, Any]:
        kept.append(limited(10))
        return kept[-1]

    with envfleet.make(keeping, num_envs=2, backend="serial") as fleet:
        fleet.reset(seed=0)
        step(fleet, 3)
        assert [env._elapsed_steps for env in kept] == [3, 3]
    with envfleet.make(functools.partial(limited, 10), num_envs=2, backend="serial") as fleet:
        fleet.reset(seed=0)
        step(fleet, 2)
        held = fleet.apply(lambda env: env)
        step(fleet, 3)
        assert [env._elapsed_steps for env in held] == [5, 5]


def test_wrappers_are_left_out() -> None:
    """Should this fail, all is right but slower: see what has changed in Gymnasium's wrappers."""
    envs, trace = [limited(5)], Trace(1)
    direct = DirectSteps(envs, trace)
    for _ in range(2):  # the checker has had its one look after the first step
        envs[0].reset()
        trace.begin(0, envs[0], None, None)
        direct.begin(0)
        direct.steps[0](0)
        trace.add(None, [0])
    assert direct.steps[0] == envs[0].unwrapped.step
