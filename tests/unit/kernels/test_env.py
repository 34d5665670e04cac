"""A kernel as an ordinary environment."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from tests.unit.kernels.samples import SAMPLES, Painter, Walker

from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel
from envfleet.kernels.env import KernelEnv
from envfleet.kernels.registration import is_kernel, register


@pytest.mark.parametrize("kernel", SAMPLES, ids=lambda kernel: kernel.__name__)
def test_gymnasiums_own_check(kernel: type[Kernel]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice on infinite bounds
        check_env(KernelEnv(kernel), skip_render_check=True)


def roll(env: Any, count: int) -> list[Any]:
    return [env.step(1) for _ in range(count)]


def same(one: Any, other: Any) -> bool:
    return all(
        np.array_equal(left[0], right[0]) and left[1:] == right[1:] for left, right in zip(one, other, strict=True)
    )


def test_copies_and_pickles_go_on_alike() -> None:
    env = KernelEnv(Walker, goal=50.0)
    env.reset(seed=3)
    roll(env, 2)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    expected = roll(env, 4)
    again, _ = env.reset()
    for other in copies:
        assert other.get_wrapper_attr("goal") == 50.0
        assert same(roll(other, 4), expected)
        assert other.np_random_seed == 3
        np.testing.assert_array_equal(other.reset()[0], again)


def test_the_generator_is_there_before_the_first_reset() -> None:
    first, second = KernelEnv(Walker), KernelEnv(Walker)
    assert first.np_random.random() != second.np_random.random()
    first.np_random = np.random.default_rng(7)
    assert first.np_random.random() == np.random.default_rng(7).random()
    assert first.reset()[0][0] == np.random.default_rng(7).uniform(-1.0, 1.0)


def test_seeds_as_gymnasiums() -> None:
    env = KernelEnv(Walker)
    env.reset(seed=11)
    assert env.np_random_seed == 11
    for seed in (-1, 2**64):
        with pytest.raises(InvalidArgument, match="seed"):
            env.reset(seed=seed)
    with pytest.raises(gym.error.ResetNeeded):
        KernelEnv(Walker).step(0)


def test_wrong_calls_are_explained() -> None:
    env = KernelEnv(Walker)
    env.reset(seed=0)
    with pytest.raises(InvalidArgument, match="is 5, which is not in Discrete"):
        env.step(5)
    with pytest.raises(InvalidArgument, match="dtype float64, expected int64"):
        env.step(0.7)
    with pytest.raises(InvalidArgument, match="expected 'params'"):
        env.reset(options={"goal": 1.0})
    with pytest.raises(InvalidArgument, match=r"options\['params'\]=5 .*expected a dict"):
        env.reset(options={"params": 5})
    env.reset(options={"params": None})
    with pytest.raises(InvalidArgument, match="no parameter 'gaol'"):
        KernelEnv(Walker, gaol=1.0)
    with pytest.raises(InvalidArgument, match="render_mode='human'"):
        KernelEnv(Walker, render_mode="human")


def test_frames() -> None:
    env = KernelEnv(Painter, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (3, 4, 3)
    assert KernelEnv(Painter).render() is None


def test_environments_do_not_share_the_generators_of_their_spaces() -> None:
    first, second = KernelEnv(Walker), KernelEnv(Walker)
    first.action_space.seed(1)
    expected = [first.action_space.sample() for _ in range(9)]
    first.action_space.seed(1)
    second.action_space.seed(2)
    assert [first.action_space.sample() for _ in range(9)] == expected


def test_in_gymnasiums_registry() -> None:
    name = "envfleet-tests/Walker-v0"
    register(name, Walker)
    try:
        assert is_kernel(gym.spec(name))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            env = gym.make(name, goal=1e9)
            env.reset(seed=0)
            flags = [env.step(0)[3] for _ in range(7)]
            fleet: Any = gym.make_vec(name, 3, vectorization_mode="vector_entry_point", goal=2.0)
        assert flags == [False] * 6 + [True]
        assert fleet.get_attr("goal") == (2.0, 2.0, 2.0)
        fleet.close()
    finally:
        gym.registry.pop(name)
