"""Accepted forms of environments, and errors about all others."""

import functools
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec

import envfleet
from envfleet.envs.classic.cartpole import CartPole
from envfleet.errors import InvalidArgument
from envfleet.options import Options
from envfleet.sources import Blueprint, count_envs
from envfleet.testing.envs import CountingEnv


class Seeded(CountingEnv):
    def __init__(self, build_seed: int) -> None:
        super().__init__()
        self.build_seed = build_seed


class Priced(CountingEnv):
    def __init__(self, prices: np.ndarray) -> None:
        super().__init__()
        self.total = float(prices.sum())
        self.is_writeable = prices.flags.writeable


def make_counting(render_mode: str | None = None) -> CountingEnv:
    return CountingEnv()


def test_an_id_is_built_without_gymnasiums_checkers() -> None:
    env = Blueprint("CartPole-v1", 1, Options(), {"render_mode": "rgb_array"}).builders(0)[0].build({})
    names = []
    layer = env
    while isinstance(layer, gym.Wrapper):
        names.append(type(layer).__name__)
        layer = layer.env
    assert names == ["TimeLimit"]
    assert env.render_mode == "rgb_array"


def test_a_registration_of_this_process_reaches_the_workers() -> None:
    gym.register("EnvfleetOnlyHere-v0", entry_point=f"{__name__}:make_counting")
    try:
        with envfleet.make("EnvfleetOnlyHere-v0", num_envs=2, backend="process", workers=2) as fleet:
            fleet.reset(seed=0)
    finally:
        del gym.registry["EnvfleetOnlyHere-v0"]


def test_an_id_whose_package_was_not_imported_is_written_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for env_id in [env_id for env_id in gym.registry if env_id.startswith("ALE/")]:
        monkeypatch.delitem(gym.registry, env_id)
    with pytest.raises(InvalidArgument, match="close to it: ale_py:ALE/Pong-v5;"):
        envfleet.make("ALE/Pong-v5", 2)


def test_a_callable_that_takes_a_seed_gets_its_own() -> None:
    with envfleet.make(Seeded, num_envs=3, backend="process", workers=2, seed=40) as fleet:
        assert fleet.get_attr("build_seed") == (40, 41, 42)


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_shared_data_is_one_read_only_array(backend: Any) -> None:
    prices = np.arange(1000.0)
    with envfleet.make(Priced, num_envs=2, backend=backend, shared={"prices": prices}) as fleet:
        assert fleet.get_attr("total") == (prices.sum(), prices.sum())
        assert fleet.get_attr("is_writeable") == (False, False)


def test_data_that_is_also_a_keyword_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="goal_velocity is passed twice, by itself and in shared"):
        envfleet.make("MountainCar-v0", 2, backend="serial", goal_velocity=1, shared={"goal_velocity": np.zeros(3)})


def test_shared_data_nobody_takes_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"shared data \['prices'\] is not an argument of any callable"):
        envfleet.make(CountingEnv, num_envs=1, backend="serial", shared={"prices": np.zeros(3)})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (CountingEnv(), "env 0 is an environment, expected a callable"),
        (7, "env 0 is 7, expected a callable"),
        (["CartPole-v1"], "env 0 is 'CartPole-v1', .* pass its id, its spec or one callable, and num_envs"),
        ([CountingEnv, None], "env 1 is None"),
        (lambda a, b: None, r"needs the arguments \['a', 'b'\]"),
        (lambda: None, "end it with `return env`"),
        (lambda: CountingEnv, r"returned a class: return an instance, CountingEnv\("),
        (lambda: gym.make_vec("CartPole-v1", num_envs=1), "a vector environment cannot be a sub-environment"),
    ],
)
def test_what_is_no_environment_is_explained(source: Any, words: str) -> None:
    num_envs = None if isinstance(source, list) else 2
    with pytest.raises(InvalidArgument, match=words):
        envfleet.make(source, num_envs=num_envs, backend="serial")


def test_a_misspelt_number_is_named() -> None:
    with pytest.raises(InvalidArgument, match="num_envs is missing, num_env was given: pass"):
        envfleet.make("CartPole-v1", num_env=8)


@pytest.mark.parametrize(
    ("source", "keywords", "advice"),
    [
        (CountingEnv, {"size": 3, "vary": True}, "pass functools.partial(CountingEnv, size=3, vary=True)"),
        (
            CountingEnv,
            {"wrappers": []},
            "pass a callable that makes the environment and wraps it, as lambda: Wrapper(make_one())",
        ),
        (
            CountingEnv,
            {"vectorization_mode": "async"},
            "did you mean backend? Otherwise pass functools.partial(CountingEnv, vectorization_mode='async')",
        ),
        ([CountingEnv] * 2, {"size": 3}, "pass functools.partial(CountingEnv, size=3)"),
        ("envfleet.testing.envs:CountingEnv", {"size": 3}, "pass functools.partial(CountingEnv, size=3)"),
        (lambda size=3: CountingEnv(size), {"size": 4}, "pass functools.partial(env, size=4)"),
        (CountingEnv, {"env_kwargs": {"size": 3}}, "pass functools.partial(CountingEnv, **{'size': 3})"),
        (CountingEnv, {"workerz": 2}, "did you mean workers? Otherwise pass functools.partial(CountingEnv, workerz=2)"),
    ],
)
def test_keyword_arguments_need_an_id(source: Any, keywords: dict[str, Any], advice: str) -> None:
    name, value = next(iter(keywords.items()))
    with pytest.raises(InvalidArgument) as caught:
        envfleet.make(source, 2, **keywords)
    assert str(caught.value) == (
        f"unknown option {name}={value!r} of make(), which takes arguments of ids and kernels only: {advice}"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("CartPole-v1", 5, None, None), 5),
        (("CartPole-v1", None, 3, 4), 12),
        (("CartPole-v1", 7, 4, 2), 7),
        (([CountingEnv] * 3, None, None, None), 3),
    ],
)
def test_the_number_of_sub_environments(arguments: tuple, expected: int) -> None:
    assert count_envs(*arguments) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_envs": 0}, "num_envs=0: pass a whole number of at least 1"),
        ({"num_envs": 2.5}, r"num_envs=2\.5"),
        ({"num_envs": 2, "workers": -1}, "workers=-1"),
        ({"num_envs": 2, "workers": 3}, "workers=3 but there are only 2 sub-environments"),
        ({"num_envs": 9, "workers": 2, "envs_per_worker": 4}, "does not hold num_envs=9"),
        ({"num_envs": 2, "backend": "gpu"}, "backend='gpu': pass one of 'auto', 'serial'"),
        ({"num_envs": 2, "on_failure": "ignore"}, "on_failure='ignore'"),
        ({"num_envs": 2, "batch_size": 3}, "batch_size=3: pass a whole number from 1 to num_envs=2"),
        ({"num_envs": 2, "step_timeout_s": 0}, "step_timeout_s=0"),
        ({"num_envs": 2, "max_restarts": -1}, "max_restarts=-1"),
        ({"num_envs": 2, "autoreset_mode": "sometimes"}, "pass one of 'NEXT_STEP', 'SAME_STEP', 'DISABLED'"),
        ({"num_envs": True}, "num_envs=True"),
        ({"num_envs": 2, "batch_size": 1.5}, r"batch_size=1\.5"),
        ({"num_envs": 2, "step_timeout_s": "3"}, "step_timeout_s='3': pass a number of seconds"),
        ({"num_envs": 2, "start_timeout_s": "3"}, "start_timeout_s='3': pass a number of seconds"),
        ({"num_envs": 2, "start_timeout_s": None}, "start_timeout_s=None"),
        ({"num_envs": 2, "max_restarts": 1.5}, r"max_restarts=1\.5 \(type float\): pass a whole number of at least 0"),
        ({"num_envs": 2, "recycle_episodes": 0}, "recycle_episodes=0: pass a whole number of at least 1"),
        ({"num_envs": 2, "seed": -3}, "seed=-3: pass a whole number of at least 0"),
        ({"num_envs": 2, "seed": 1.5}, r"seed=1\.5"),
        ({"num_envs": 2, "seed": "x"}, "seed='x'"),
        ({"num_envs": 2, "copy": "no"}, r"copy='no' \(type str\): pass True or False"),
        ({"num_envs": 2, "shared": {"x": object()}}, r"shared\['x'\] is object, expected an array of numbers"),
    ],
)
def test_arguments_are_checked_before_anything_starts(options: dict, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        envfleet.make("CartPole-v1", **options)


@pytest.mark.parametrize(
    ("backend", "option", "advice"),
    [
        ("serial", {"workers": 2}, "which steps sub-environments in this process, one after another: leave it out"),
        ("serial", {"envs_per_worker": 2}, "leave it out"),
        ("serial", {"recycle_episodes": 3}, "pass backend='process', or leave it out"),
        ("thread", {"ray_options": {}}, "pass backend='ray', or leave it out"),
        ("ray", {"recycle_episodes": 3}, "pass backend='process', or leave it out"),
        ("kernel", {"max_restarts": 3}, "in code compiled from a few lines of Python, on CPU or GPU: leave it out"),
        ("kernel", {"observation_mode": "different"}, "leave it out"),
        ("kernel", {"start_timeout_s": 3}, "leave it out"),
    ],
)
def test_options_that_would_be_ignored_are_refused(backend: Any, option: dict[str, Any], advice: str) -> None:
    name = "envfleet/CartPole-v1" if backend == "kernel" else "CartPole-v1"
    (shown,) = [f"{key}={value!r}" for key, value in option.items()]
    with pytest.raises(InvalidArgument, match=re.escape(f"{shown} means nothing with backend={backend!r}")) as caught:
        envfleet.make(name, 4, backend=backend, **option)
    assert str(caught.value).endswith(advice)


def test_one_worker_is_what_serial_is() -> None:
    with envfleet.make("CartPole-v1", 2, backend="serial", workers=1) as fleet:
        assert fleet.plan.num_workers == 1


@pytest.mark.parametrize("integer", [np.int64, np.uint8])
def test_numbers_may_be_numpys(integer: Any) -> None:
    with envfleet.make("CartPole-v1", integer(4), backend="thread", workers=integer(2), seed=integer(3)) as fleet:
        assert fleet.plan.envs_per_worker == (2, 2)
        assert fleet.reset()[0].shape == (4, 4)


@pytest.mark.parametrize("seed", [-3, 2**64 - 1])
def test_a_kernels_seed_leaves_room_for_those_of_the_others(seed: int) -> None:
    with pytest.raises(InvalidArgument, match=f"seed={seed}"):
        envfleet.make("envfleet/CartPole-v1", 2, backend="kernel", seed=seed)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        ("CartPole-v1", "did you mean 'envfleet/CartPole-v1'?"),
        (gym.spec("CartPole-v1"), "did you mean 'envfleet/CartPole-v1'?"),
        ("minigrid:MiniGrid-Empty-8x8-v0", "did you mean 'envfleet/MiniGrid-Empty-8x8-v0'?"),
        (EnvSpec("MinAtar/Breakout-v1", "minatar.gym:BaseEnv"), "did you mean 'envfleet/MinAtar-Breakout-v1'?"),
        (EnvSpec("Hockey-Box2D-v0", "hockey:Hockey"), "or choose another backend"),
        ("BipedalWalker-v3", "or choose another backend"),
    ],
)
def test_what_is_no_kernel_is_told_the_kernel_of_that_name(source: Any, advice: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        envfleet.make(source, 2, backend="kernel")
    assert str(caught.value).endswith(advice)


def test_a_device_is_for_kernels() -> None:
    with pytest.raises(
        InvalidArgument, match="device='cuda' means nothing here: pass backend='kernel' or 'native', or leave"
    ):
        envfleet.make("CartPole-v1", 4, device="cuda")


def test_a_kernel_is_compiled_by_default() -> None:
    with envfleet.make("envfleet/CartPole-v1", 1) as fleet:
        assert fleet.plan.backend == "kernel"


def test_a_list_and_a_number_that_disagree() -> None:
    with pytest.raises(InvalidArgument, match="num_envs=3 but 2 callables were given"):
        envfleet.make([CountingEnv, CountingEnv], num_envs=3)


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_one_object_twice_is_found(backend: Any) -> None:
    env = CountingEnv()
    with pytest.raises(InvalidArgument, match="sub-environments 0 and 1 are the same object"):
        envfleet.make(lambda: env, num_envs=4, backend=backend)


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_spaces_that_differ_are_found(backend: Any) -> None:
    makers = ["CartPole-v1", "CartPole-v1", "MountainCar-v0"]
    with pytest.raises(InvalidArgument, match="observation_space of sub-environment 2 is"):
        envfleet.make([functools.partial(gym.make, name) for name in makers], backend=backend)


def test_an_id_may_name_the_module_that_registers_it() -> None:
    with envfleet.make("envfleet.envs.hockey:envfleet/Hockey-Box2D-v0", num_envs=1, backend="serial") as fleet:
        assert fleet.spec is not None
        assert fleet.spec.id == "envfleet/Hockey-Box2D-v0"


def test_an_id_that_names_no_module_is_explained() -> None:
    with pytest.raises(InvalidArgument, match="'no_such_room:Game-v0', but the module cannot be imported"):
        envfleet.make("no_such_room:Game-v0", num_envs=1, backend="serial")


def test_a_name_may_be_that_of_a_callable_in_a_module() -> None:
    with envfleet.make("envfleet.testing.envs:CountingEnv", num_envs=2, backend="serial") as fleet:
        assert isinstance(fleet.reset(seed=0), tuple)
        assert fleet.num_envs == 2


class _Outer:
    class Inner(CountingEnv):
        pass


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("envfleet.testing.envs:CountingEnv", "envfleet.testing.envs:CountingEnv"),
        (_Outer.Inner, "_Outer.Inner"),
        ([functools.partial(CountingEnv, 3)] * 2, "CountingEnv"),
        (lambda: CountingEnv(), "custom environment"),  # noqa: PLW0108
        (lambda: gym.make("CartPole-v1"), "CartPole-v1"),
        (CartPole, "CartPole"),
    ],
)
def test_a_fleet_shows_the_name_of_its_environment(source: Any, name: str) -> None:
    with envfleet.make(source, 2, backend="serial") as fleet:
        assert repr(fleet).startswith(f"<Fleet {name}: 2 sub-environments, serial")


def test_a_local_class_is_shown_by_its_own_name() -> None:
    class Local(CountingEnv):
        pass

    with envfleet.make(Local, 1, backend="serial") as fleet:
        assert "<Fleet Local: 1 sub-environment" in repr(fleet)


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ({"num_workers": 2}, r"num_workers=2 is neither an option of make\(\) nor.*did you mean workers\?"),
        ({"batchsize": 2}, r"did you mean batch_size\?"),
        ({"suton_barto_reward": True}, r"did you mean sutton_barto_reward\?"),
        ({"env_kwargs": {}}, "write each of its entries as a keyword"),
        ({"colour": "red"}, "check the spelling"),
    ],
)
def test_a_keyword_nobody_takes_is_named(keyword: dict, advice: str) -> None:
    with pytest.raises(InvalidArgument, match=advice):
        envfleet.make("CartPole-v1", 2, **keyword)


def test_keywords_of_the_environment_and_of_gymnasium_pass() -> None:
    options: dict[str, Any] = {"sutton_barto_reward": True, "max_episode_steps": 7, "render_mode": "rgb_array"}
    with envfleet.make("CartPole-v1", 1, backend="serial", **options) as fleet:
        assert fleet.get_attr("render_mode") == ("rgb_array",)
