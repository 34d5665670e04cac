"""`FleetVecEnv` against Stable-Baselines3's `DummyVecEnv`: attributes, methods, frames, and SB3's wrappers."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    VecCheckNan,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
)
from tests.fleets import LOCAL_FLEETS, adopted
from tests.unit.adapters.peers import Make
from tests.unit.adapters.sb3_cases import ALL, OURS, ROLLOUTS, SERIAL, bare, same

from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.testing.envs import AttributeEnv


@pytest.mark.parametrize("kind", ALL)
def test_attributes_and_methods(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [functools.partial(AttributeEnv, difficulty) for difficulty in (1, 2, 3)])
    env.reset()
    assert env.get_attr("difficulty") == [1, 2, 3]
    assert env.get_attr("difficulty", 1) == [2]
    assert env.get_attr("difficulty", [2, 0]) == [3, 1]
    assert env.get_attr("difficulty", -1) == [3]
    assert env.get_attr("difficulty", []) == []
    assert env.env_method("scaled", 10, plus=0.5) == [10.5, 20.5, 30.5]
    assert env.env_method("scaled", 10, indices=[2, 1]) == [30, 20]
    env.set_attr("difficulty", 5, indices=[0, 2])
    assert env.get_attr("difficulty") == [5, 2, 5]
    env.set_attr("brand_new", "x")
    assert env.get_attr("brand_new", range(2)) == ["x", "x"]
    assert env.has_attr("difficulty")
    assert not env.has_attr("absent")
    with pytest.raises(AttributeError):
        env.get_attr("absent")
    with pytest.raises(LookupError, match="no"):
        env.env_method("refuse", "no", indices=1)
    with pytest.raises((IndexError, InvalidArgument)):
        env.get_attr("difficulty", 3)
    assert env.step(np.zeros(3, int))[1].tolist() == [1, 1, 1]


@pytest.mark.parametrize("ours", OURS)
def test_methods_run_only_where_asked_for(ours: Make, close_later: Make) -> None:
    env = close_later(ours, [CountingEnv] * 3)
    env.reset()
    env.env_method("reset", indices=[1])
    assert env.get_attr("episodes") == [1, 2, 1]


@pytest.mark.parametrize("ours", OURS)
def test_attributes_are_set_where_they_are(ours: Make, close_later: Make) -> None:
    """SB3 sets them on the outermost wrapper, where the environment never looks."""
    env = close_later(ours, [lambda: gymnasium.wrappers.TimeLimit(AttributeEnv(), 10)])
    env.set_attr("length", 1)
    env.set_attr("difficulty", 7)
    env.reset()
    assert env.env_method("scaled", 2) == [14]


@pytest.mark.parametrize("make_fleet", LOCAL_FLEETS)
def test_attributes_on_every_fleet(make_fleet: Make, close_later: Make) -> None:
    env = close_later(FleetVecEnv, make_fleet(num_envs=3, autoreset_mode="SAME_STEP"))
    env.reset()
    env.set_attr("gravity", 5.0, indices=[0, 2])
    assert env.get_attr("gravity") == [5.0, 9.8, 5.0]
    env.set_attr("gravity", 6.0)
    assert env.get_attr("gravity", [1, -1]) == [6.0, 6.0]
    assert env.get_attr("render_mode", 0) == [None]
    assert env.has_attr("length")
    assert not env.has_attr("absent")
    assert env.env_is_wrapped(Monitor, indices=[1]) == [True]
    assert env.env_is_wrapped(gymnasium.wrappers.ClipAction) == [False] * 3


def test_methods_where_there_are_no_objects(close_later: Make) -> None:
    env = close_later(FleetVecEnv, adopted(3, AutoresetMode.SAME_STEP))
    env.reset()
    assert len(env.env_method("has_wrapper_attr", "gravity")) == 3
    with pytest.raises(InvalidArgument, match="omit indices"):
        env.env_method("has_wrapper_attr", "gravity", indices=[1])


@pytest.mark.parametrize("kind", ALL)
def test_wrapped(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [lambda: gymnasium.wrappers.TimeLimit(Marked(CountingEnv()), 10), CountingEnv])
    assert env.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True, False]
    assert env.env_is_wrapped(Marked, indices=0) == [True]
    assert env.env_is_wrapped(gymnasium.wrappers.ClipAction) == [False, False]
    assert env.env_is_wrapped(gymnasium.Wrapper, indices=[1, 0]) == [False, True]


class Marked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper of the test's own."""


@pytest.mark.parametrize("ours", OURS)
def test_counts_as_monitored(ours: Make, close_later: Make) -> None:
    """`evaluate_policy` then takes the episodes' own returns, also through `VecNormalize`, and does not warn."""

    class Still:
        def predict(self, observation: Any, **_: Any) -> tuple[Any, None]:
            return np.zeros(len(observation), int), None

    policy: Any = Still()
    env = close_later(ours, [functools.partial(CountingEnv, 3)] * 2)
    assert env.env_is_wrapped(Monitor) == [True, True]
    returns, lengths = evaluate_policy(policy, VecNormalize(env), n_eval_episodes=4, return_episode_rewards=True)
    assert (returns, lengths) == ([6.0] * 4, [3] * 4)


@pytest.mark.parametrize("kind", ALL)
def test_frames(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [functools.partial(CountingEnv, render_mode="rgb_array")] * 3)
    assert env.render().shape == (8, 12, 3)  # before the first reset
    env.reset()
    env.step(np.zeros(3, int))
    assert env.render_mode == "rgb_array"
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 10}
    images = env.get_images()
    assert [image.shape for image in images] == [(4, 6, 3)] * 3
    assert images[0].max() == 1
    assert env.render().shape == (8, 12, 3)


@pytest.mark.parametrize("kind", ALL)
def test_no_frames(kind: Make, close_later: Make) -> None:
    env = close_later(kind, [CountingEnv] * 2)
    assert env.render_mode is None
    env.reset()
    with pytest.warns(UserWarning, match="The render mode is None"):
        assert env.get_images() == [None, None]
    with pytest.warns(UserWarning, match="no `render_mode` was passed"):
        assert env.render() is None


# ------------------------------------------------------------------------------------------------ under SB3's wrappers


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("cartpole", lambda env: VecNormalize(env, gamma=0.9)),
        ("dict", lambda env: VecNormalize(env, norm_obs_keys=["vector"])),
        ("cartpole", lambda env: VecFrameStack(env, 3)),
        ("image", lambda env: VecFrameStack(VecTransposeImage(env), 2)),
        ("pendulum", lambda env: VecCheckNan(VecFrameStack(env, 2), raise_exception=True)),
        ("truncated", lambda env: VecNormalize(VecFrameStack(VecCheckNan(env), 4), norm_reward=False)),
    ],
    ids=["normalize", "normalize dict", "stack", "stack images", "check nan", "three"],
)
def test_under_wrappers(name: str, wrap: Make, close_later: Make) -> None:
    expected, actual = (wrap(close_later(kind, ROLLOUTS[name])) for kind in (DummyVecEnv, SERIAL))
    expected.seed(2), actual.seed(2)
    same(expected.reset(), actual.reset())
    expected.action_space.seed(1)
    for _ in range(25):
        actions = np.stack([expected.action_space.sample() for _ in range(expected.num_envs)])
        *results, infos = expected.step(actions)
        *own_results, own_infos = actual.step(actions)
        same(results, own_results)
        same(infos, [bare(info) for info in own_infos])


def test_under_vec_monitor(close_later: Make) -> None:
    """It writes its own entry, and warns that there was one."""
    inner = close_later(SERIAL, ROLLOUTS["truncated"])
    with pytest.warns(UserWarning, match="already wrapped"):
        env: Any = VecMonitor(inner)
    env.reset()
    for _ in range(3):
        *_, infos = env.step(np.zeros(2, int))
    assert [info["episode"]["r"] for info in infos] == [6, 6]
    assert env.venv is inner


def test_attributes_through_wrappers(close_later: Make) -> None:
    """`VecEnvWrapper` looks attributes up by itself; the fleet's are reachable and hide none of the wrapper's."""
    inner = close_later(SERIAL, ROLLOUTS["cartpole"])
    env: Any = VecCheckNan(VecNormalize(inner))
    assert env.unwrapped is inner
    assert env.fleet is inner.fleet
    assert env.spec.id == "CartPole-v1"
    assert inner.getattr_depth_check("fleet", already_found=False) is None
    assert inner.getattr_depth_check("fleet", already_found=True) == "envfleet.adapters.sb3.FleetVecEnv"
