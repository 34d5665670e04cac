"""A duel reports each difference between two vector environments, with the call and the place."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envfleet.testing import CountingEnv
from envfleet.testing.duel import Duel


class Generous(CountingEnv):
    """Pays more in the second step of an episode."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward + (self.count == 2), terminated, truncated, info


class Lending(SyncVectorEnv):
    """Returns its own observations, which the next step overwrites."""

    def step(self, actions: Any) -> Any:
        return self._observations, *super().step(actions)[1:]


class Writing(SyncVectorEnv):
    """Changes the caller's actions."""

    def step(self, actions: Any) -> Any:
        results: Any = super().step(actions)
        actions[0] = 1 - actions[0]
        return results


@pytest.fixture
def duel() -> Iterator[Callable[..., Duel]]:
    opened: list[gym.vector.VectorEnv[Any, Any, Any]] = []

    def make(
        subject_class: type[SyncVectorEnv] = SyncVectorEnv,
        env_class: type[CountingEnv] = CountingEnv,
        mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> Duel:
        one = SyncVectorEnv([functools.partial(CountingEnv, 4)] * 2, autoreset_mode=mode)
        other = subject_class([functools.partial(env_class, 4)] * 2, autoreset_mode=mode)
        opened.extend((one, other))
        one.action_space.seed(0)
        return Duel(one, other)

    yield make
    for vector_env in opened:
        vector_env.close()


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_equal_environments_do_not_differ(duel: Callable[..., Duel], mode: AutoresetMode) -> None:
    both = duel(mode=mode)
    assert [*both.reset(seed=3), *both.roll(15), *both.call("call", "render"), *both.check_kept()] == []


def test_a_reward_that_differs_is_named_with_its_call(duel: Callable[..., Duel]) -> None:
    both = duel(env_class=Generous)
    assert [*both.reset(seed=3), *both.step(np.zeros(2, int))] == []
    ((place, difference),) = both.step(np.zeros(2, int))
    assert place == "call 3, step(): rewards"
    assert difference == "expected float64 array (2,) [2., 2.], found float64 array (2,) [3., 3.]"


def test_results_and_actions_that_change_later_are_found(duel: Callable[..., Duel]) -> None:
    lending = duel(Lending)
    list(itertools.chain(lending.reset(seed=3), lending.roll(3)))
    assert "call 2, step(): observations, at the end" in [place for place, _ in lending.check_kept()]
    writing = duel(Writing)
    assert list(writing.reset(seed=3)) == []
    places = [place for place, _ in writing.step(np.zeros(2, int))]
    assert places == ["call 2, step(): the caller's actions after the call"]
