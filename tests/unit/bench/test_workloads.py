"""Names become environments, and names that do not are explained."""

import contextlib
import pickle

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import TimeLimit
from tests.unit.bench.fakes import NULL

from envfleet.bench.contenders import EnvFleet, EnvPool
from envfleet.bench.workloads import BUILT_IN, resolve
from envfleet.errors import InvalidArgument


@pytest.mark.filterwarnings("ignore:.*Box observation space")
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "lunar"])
def test_built_in_workloads_are_sound_environments(name):
    workload = pickle.loads(pickle.dumps(resolve(name)))
    env = workload.build()
    check_env(env.unwrapped, skip_render_check=True, skip_close_check=True)
    env.close()


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "lunar"])
def test_the_same_seed_gives_the_same_episode(name):
    def play():
        env = resolve(name).build()
        env.action_space.seed(0)
        seen = [env.reset(seed=3)[0]]
        seen += [env.step(env.action_space.sample())[0] for _ in range(4)]
        env.close()
        return repr(seen)

    assert play() == play()


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [("breakout", (4, 84, 84), np.uint8), ("halfcheetah", (17,), np.float64), ("minigrid", (7, 7, 3), np.uint8)],
)
def test_real_environments_are_built_as_agents_see_them(name, shape, dtype):
    with contextlib.closing(resolve(name).build()) as env:
        observation = env.reset(seed=0)[0]
        assert env.observation_space.contains(observation)
        assert (env.observation_space.shape, env.observation_space.dtype) == (shape, dtype)
        assert observation.any()


@pytest.mark.parametrize("name", ["breakout", "halfcheetah", "minigrid"])
def test_real_environments_are_the_same_in_envpool(name):
    workload = resolve(name)
    fleet, peer = (contender.make(workload, 2, None) for contender in (EnvFleet("serial"), EnvPool()))
    ours, theirs = (vars(runner)["_envs"] for runner in (fleet, peer))
    seen = theirs.single_observation_space["image"] if name == "minigrid" else theirs.single_observation_space
    assert (seen.shape, seen.dtype) == (ours.single_observation_space.shape, ours.single_observation_space.dtype)
    assert np.shape(theirs.single_action_space.sample()) == ours.single_action_space.shape
    for runner in (fleet, peer):
        assert runner.step(ours.action_space.sample()) == 2
        runner.close()


def test_synthetic_episodes_end_by_the_time_limit():
    env = NULL.build()
    env.reset(seed=0)
    assert [env.step(np.int64(0))[3] for _ in range(200)][-1]
    env.close()


def test_ids_and_arguments():
    workload = resolve("CartPole-v1", {"sutton_barto_reward": True})
    with contextlib.closing(workload.build()) as env:
        assert vars(env.unwrapped)["_sutton_barto_reward"]
    assert workload.make_line("num_envs=8") == 'envfleet.make("CartPole-v1", num_envs=8, sutton_barto_reward=True)'
    assert not resolve("CartPole-v1").spec.kwargs, "arguments must not stick to the registry"


def test_a_callable():
    workload = resolve("tests.unit.bench.fakes:slow_reset")
    env = workload.build()
    assert isinstance(env, TimeLimit)
    assert type(env.unwrapped).__name__ == "SlowReset"
    env.close()
    assert workload.make_line("num_envs=2") == 'envfleet.make("tests.unit.bench.fakes:slow_reset", num_envs=2)'


def test_a_kernel_needs_an_id():
    with pytest.raises(InvalidArgument, match="is a kernel without an id: call "):
        resolve("envfleet.envs.classic.cartpole:CartPole")


def test_a_class_with_arguments():
    line = resolve("envfleet.bench.environments:SpinEnv", {"step_us": 5}).make_line("num_envs=2")
    call = "envfleet.make(functools.partial(envfleet.bench.environments.SpinEnv, step_us=5), num_envs=2)"
    assert line == f"import functools, envfleet.bench.environments; {call}"


def test_arguments_that_the_environment_does_not_take():
    with pytest.raises(InvalidArgument, match=r"lenght=1.*takes sutton_barto_reward, render_mode"):
        resolve("CartPole-v1", {"lenght": 1})
    with pytest.raises(InvalidArgument, match=r"name=3.*takes step_us"):
        resolve("medium", {"name": 3})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v7", "close to it: CartPole-v1"),
        ("cheep", "pass a built-in workload: cheap, lunar"),
        ("qqqqqqqqq", "envfleet envs"),
        ("no_such_module:make", "'no_such_module:make', but the module cannot be imported"),
        ("json:no_such_function", "has no callable of that name"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(InvalidArgument, match=message):
        resolve(name)
