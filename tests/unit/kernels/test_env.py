"""A kernel as an ordinary environment."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence
from numpy.typing import NDArray
from tests.unit.kernels.samples import SAMPLES, Painter, Walker

from envfleet.envs.board import ConnectFour, MaskedConnectFourOne, Play2048
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
    first.np_random, expected = np.random.default_rng(7), np.random.default_rng(7)
    assert first.np_random.random() == expected.random()
    assert first.reset()[0][0] == expected.uniform(-1.0, 1.0)


class Drawer(Kernel):
    """Shows what it draws: a float, and one of five, which leaves half a word for the next draw."""

    observation_space: ClassVar[gym.spaces.Box] = gym.spaces.Box(0, 5, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    class State:
        number: float
        place: int

    @staticmethod
    def reset(state: Any, rng: np.random.Generator, params: Any) -> None:
        state.number = rng.random()
        state.place = rng.integers(5)

    @staticmethod
    def step(state: Any, action: int, rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        state.number = rng.random()
        state.place = rng.integers(5)
        return float(action), False

    @staticmethod
    def observe(state: Any, out: NDArray[np.float64]) -> None:
        out[0] = state.number
        out[1] = state.place


class OrdinaryDrawer(gym.Env[Any, Any]):
    """`Drawer` as an ordinary environment."""

    observation_space, action_space = Drawer.observation_space, gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.draw(), {}

    def step(self, action: Any) -> Any:
        return self.draw(), float(action), False, False, {}

    def draw(self) -> Any:
        return np.array([self.np_random.random(), self.np_random.integers(5)])


def test_a_wrapper_draws_from_the_same_sequence_as_the_kernel() -> None:
    """`np_random` was a copy: Gymnasium's `StickyAction` drew the same number forever, and the kernel drew it again."""
    played = []
    for plain in (OrdinaryDrawer(), KernelEnv(Drawer)):
        env, seen = gym.wrappers.StickyAction(plain, 0.5), []
        for seed in (5, None, 5):
            seen += [env.reset(seed=seed)[0], env.unwrapped.np_random.integers(9, size=3, dtype=np.int32)]
            seen += [part for k in range(20) for part in env.step(k % 2)[:2]]
        played.append(np.hstack(seen))
    np.testing.assert_array_equal(played[1], played[0])


def test_copies_and_saved_states_keep_the_generator() -> None:
    env = KernelEnv(Drawer)
    env.reset(seed=3)
    env.np_random.random()
    other, state = copy.deepcopy(env), env.get_state()
    expected = [env.np_random.random(), *env.step(0)[0]]
    assert [other.np_random.random(), *other.step(0)[0]] == expected
    env.set_state(state)
    assert [env.np_random.random(), *env.step(0)[0]] == expected


@pytest.mark.parametrize("kernel", [Play2048, ConnectFour, MaskedConnectFourOne])
def test_an_ended_episode_stays_as_it_is(kernel: type[Kernel]) -> None:
    """Connect Four and 2048 wrote outside their boards, as their masks allow every action at the end."""
    env = KernelEnv(kernel, debug=True)
    env.reset(seed=0)
    env.action_space.seed(0)
    last = env.step(env.action_space.sample())
    while not last[2]:
        last = env.step(env.action_space.sample())
    restored = KernelEnv(kernel, debug=True)
    restored.reset(seed=1)
    restored.set_state(env.get_state())
    for other in (env, copy.deepcopy(env), restored):
        for _ in range(50):
            observation, *results, infos = other.step(other.action_space.sample())
            assert data_equivalence((observation, infos), (last[0], last[4]), exact=True)
            assert results == [0.0, True, False]
    env.reset()
    assert not env.step(0)[2]


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CartPole-v1"])
def test_steps_past_the_end_earn_what_they_earn_in_gymnasium(name: str) -> None:
    ends = []
    for env in (gym.make(name), gym.make(f"envfleet/{name}")):
        env.reset(seed=1)
        while not env.step(0)[2]:
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium's advice to reset
            ends.append([env.step(0)[1:4] for _ in range(3)])
    assert ends == [[(0.0, True, False)] * 3] * 2


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


def test_environments_do_not_share_generators_of_spaces() -> None:
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
