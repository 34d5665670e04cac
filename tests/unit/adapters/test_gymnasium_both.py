"""`AsyncFleet` and `SyncFleet` beside Gymnasium's own classes: the same test, the same assertions, for theirs and ours.

What is deliberately unlike Gymnasium's is in `test_gymnasium_unlike.py`.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.testing import CountingEnv, FaultyEnv, InfoEnv, mismatches
from envfleet.testing.envs import AttributeEnv, SpaceEnv
from envfleet.testing.faults import PlainError

# Gymnasium's AsyncVectorEnv reports what a sub-environment raised as a warning, before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")

ASYNC = (AsyncVectorEnv, AsyncFleet)
SYNC = (SyncVectorEnv, SyncFleet)

Make = Callable[..., Any]
EnvFns = list[Callable[[], gymnasium.Env[Any, Any]]]


@pytest.fixture(scope="session", autouse=True)
def _heap_of_multiprocessing() -> None:
    """Gymnasium's shared memory comes from a heap that `multiprocessing` never gives back: begin it first."""
    multiprocessing.RawArray("b", 1 << 20)


@pytest.fixture
def close_later() -> Iterator[Make]:
    """Construct vector environments that are closed after the test, whatever state it leaves them in."""
    made: list[Any] = []

    def construct(kind: Make, *args: Any, **kwargs: Any) -> Any:
        made.append(kind(*args, **kwargs))
        return made[-1]

    yield construct
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a call was under way
        for envs in made:
            envs.close(**({"terminate": True} if hasattr(envs, "processes") else {}))


def counting(num_envs: int = 3, **options: Any) -> EnvFns:
    return [functools.partial(CountingEnv, **options)] * num_envs


class TypedEnv(CountingEnv):
    """Its dict observations are of the dtypes of their space, so that Gymnasium's `final_obs` are, too."""

    def observe(self) -> Any:
        observation = super().observe()
        return {**observation, "count": np.int64(observation["count"])}


def cartpole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1")


class BoundedEnv(CountingEnv):
    """Its bounds (and, asked to, its shape or its actions) are its own."""

    def __init__(self, high: float, size: int = 5, num_actions: int = 4) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-high, high, (size,), np.float64)
        self.action_space = spaces.Discrete(num_actions)
        self.size = size

    def observe(self) -> Any:
        return np.zeros(self.size)


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize(("theirs", "ours"), [ASYNC, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("kind", ["vector", "dict", "cartpole"])
def test_same_results(theirs: Make, ours: Make, mode: AutoresetMode, kind: str, close_later: Make) -> None:
    """Every value that either returns in thirty steps: observations, rewards, flags, infos with their masks."""
    made_of: dict[str, EnvFns] = {
        "vector": counting(vary=True, ends="alternate"),
        "dict": [functools.partial(TypedEnv, vary=True, dict_obs=True)] * 3,
        "cartpole": [cartpole] * 3,
    }
    env_fns = made_of[kind]
    expected, found = close_later(theirs, env_fns, autoreset_mode=mode), close_later(ours, env_fns, autoreset_mode=mode)
    same(expected.reset(seed=7), found.reset(seed=7))
    expected.action_space.seed(1)
    for _ in range(30):
        actions = expected.action_space.sample()
        result = expected.step(actions)
        same(result, found.step(actions))
        ended = result[2] | result[3]
        if mode is AutoresetMode.DISABLED and ended.any():
            same(*(envs.reset(options={"reset_mask": ended.copy()}) for envs in (expected, found)))
    same(expected.reset(seed=[3, None, 5]), found.reset(seed=[3, None, 5]))
    same(expected.reset(options={"start": 2}), found.reset(options={"start": 2}))


def same(expected: Any, found: Any) -> None:
    different = mismatches([*expected[:-1], dict(expected[-1])], [*found[:-1], dict(found[-1])])
    assert not different, different


@pytest.mark.parametrize(("theirs", "ours"), [ASYNC, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("kind", ["box", "image", "discrete", "multidiscrete", "multibinary", "nested", "tuple"])
def test_same_results_in_any_space(theirs: Make, ours: Make, kind: str, close_later: Make) -> None:
    env_fns = [functools.partial(SpaceEnv, kind, kind)] * 2
    expected, found = close_later(theirs, env_fns), close_later(ours, env_fns)
    assert expected.observation_space == found.observation_space
    assert expected.action_space == found.action_space
    same(expected.reset(seed=7), found.reset(seed=7))
    expected.action_space.seed(1)
    for _ in range(6):
        actions = expected.action_space.sample()
        same(expected.step(actions), found.step(actions))


@pytest.mark.parametrize(("theirs", "ours"), [ASYNC, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize("kind", ["numbers", "objects", "nested", "sparse", "reserved"])
def test_same_infos(theirs: Make, ours: Make, kind: str, close_later: Make) -> None:
    """Nothing is added to what the sub-environments say: no `"episode"` of the fleet's own."""
    env_fns = [functools.partial(InfoEnv, kind, index) for index in range(3)]
    expected, found = close_later(theirs, env_fns), close_later(ours, env_fns)
    same(expected.reset(seed=7), found.reset(seed=7))
    for _ in range(7):
        same(*(envs.step(np.ones(3, int)) for envs in (expected, found)))


@pytest.mark.parametrize(("theirs", "ours"), [ASYNC, SYNC], ids=["async", "sync"])
def test_same_attributes(theirs: Make, ours: Make, close_later: Make) -> None:
    env_fns = [lambda: gymnasium.make("CartPole-v1", render_mode="rgb_array")] * 2
    expected, found = close_later(theirs, env_fns), close_later(ours, env_fns)
    for name in (
        *("num_envs", "observation_space", "single_observation_space", "action_space", "single_action_space", "copy"),
        *("spec", "render_mode", "closed", "env_fns", "observation_mode", "autoreset_mode", "metadata"),
    ):
        assert getattr(found, name) == getattr(expected, name), name
    assert repr(found) == repr(expected).replace("VectorEnv", "Fleet")
    assert isinstance(found, VectorEnv)
    assert found.unwrapped is found
    if theirs is AsyncVectorEnv:
        for name in ("shared_memory", "context", "daemon", "worker", "_state"):
            assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_positional_arguments(kind: Make, close_later: Make) -> None:
    """In the order of Gymnasium's constructors."""
    mode = AutoresetMode.SAME_STEP
    if kind in ASYNC:
        envs = close_later(kind, counting(2), False, False, "fork", False, None, "different", mode)
        assert (envs.shared_memory, envs.context, envs.daemon, envs.worker) == (False, "fork", False, None)
    else:
        envs = close_later(kind, counting(2), False, "different", mode)
    assert (envs.copy, envs.observation_mode, envs.autoreset_mode) == (False, "different", mode)
    assert envs.metadata["autoreset_mode"] is mode
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("text", ["NextStep", "SameStep", "Disabled"])
def test_autoreset_mode_as_text(kind: Make, text: str, close_later: Make) -> None:
    envs = close_later(kind, counting(1), autoreset_mode=text)
    assert envs.autoreset_mode is AutoresetMode(text)
    assert envs.metadata["autoreset_mode"] is AutoresetMode(text)


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_unknown_autoreset_mode(kind: Make) -> None:
    with pytest.raises(ValueError, match="sometimes"):
        kind(counting(1), autoreset_mode="sometimes")


@pytest.mark.parametrize("kind", SYNC)
def test_iterator_of_callables(kind: Make, close_later: Make) -> None:
    assert close_later(kind, (functools.partial(CountingEnv, length) for length in (2, 3))).num_envs == 2


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("copy", [True, False])
def test_copy(kind: Make, copy: bool, close_later: Make) -> None:
    """Rewards and flags are the caller's own in any case; `copy` is about observations."""
    envs = close_later(kind, counting(2, length=2), copy=copy)
    envs.reset(seed=0)
    results = [envs.step(np.array([1, 2])) for _ in range(4)]
    assert [result[1].tolist() for result in results] == [[1.1, 1.2], [2.1, 2.2], [0, 0], [1.1, 1.2]]
    assert [result[2].tolist() for result in results] == [[False] * 2, [True] * 2, [False] * 2, [False] * 2]
    if copy:
        assert [result[0][0, 0] for result in results] == [1, 2, 0, 1]
        results[-1][0][...] = -1
        assert envs.step(np.array([1, 2]))[0][0, 0] == 2


# ------------------------------------------------------------------------------------------------ reaching in


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_call_and_attributes(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, [functools.partial(AttributeEnv, difficulty) for difficulty in (1, 2, 3)])
    envs.reset(seed=0)
    assert envs.call("difficulty") == (1, 2, 3)
    assert envs.get_attr("difficulty") == (1, 2, 3)
    assert envs.call("scaled", 10, plus=0.5) == (10.5, 20.5, 30.5)
    envs.set_attr("difficulty", [4, 5, 6])
    assert envs.get_attr("difficulty") == (4, 5, 6)
    envs.set_attr("difficulty", (1, 2, 3))
    envs.set_attr("length", 1)
    assert envs.get_attr("length") == (1, 1, 1)
    with pytest.raises(ValueError, match=re.escape("Got `2` values for 3 environments.")):
        envs.set_attr("difficulty", [1, 2])
    assert envs.np_random_seed == (0, 1, 2)
    assert [type(generator) for generator in envs.np_random] == [np.random.Generator] * 3


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_random_generators_are_those_of_the_sub_environments(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(2))
    envs.reset(seed=3)
    own = CountingEnv()
    own.reset(seed=4)
    assert envs.np_random[1].random() == own.np_random.random()


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("render_mode", ["rgb_array", None])
def test_render(kind: Make, render_mode: str | None, close_later: Make) -> None:
    envs = close_later(kind, counting(2, render_mode=render_mode))
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    frames = envs.render()
    assert isinstance(frames, tuple)
    if render_mode is None:
        assert frames == (None, None)
    else:
        assert [frame.shape for frame in frames] == [(4, 6, 3)] * 2
        assert frames[1].max() == 1


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("name", ["reset", "step", "close"])
def test_methods_the_fleet_must_know_of_are_not_called(kind: Make, name: str, close_later: Make) -> None:
    envs = close_later(kind, counting(1))
    with pytest.raises(ValueError, match=f"Trying to call function `{name}` with `call`, use `{name}` directly"):
        envs.call(name)


@pytest.mark.parametrize("kind", SYNC)
def test_sub_environments_are_at_hand(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, [functools.partial(AttributeEnv, difficulty) for difficulty in (1, 2)])
    assert [env.difficulty for env in envs.envs] == [1, 2]
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    assert envs.envs[1].count == 1
    envs.envs[1].episode_length = 2
    assert envs.step(np.zeros(2, int))[2].tolist() == [False, True]


# ------------------------------------------------------------------------------------------------ what is under way


@pytest.mark.parametrize("kind", ASYNC)
def test_async_calls(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(2))
    assert [envs._state] == [AsyncState.DEFAULT]
    envs.reset_async(seed=5, options={"start": 3})
    assert [envs._state] == [AsyncState.WAITING_RESET]
    observations, infos = envs.reset_wait(timeout=30)
    assert observations[:, 4].tolist() == [3, 3]
    assert infos["episodes"].tolist() == [1, 1]
    envs.step_async(np.zeros(2, int))
    assert [envs._state] == [AsyncState.WAITING_STEP]
    assert envs.step_wait()[1].tolist() == [4, 4]
    envs.call_async("length")
    assert [envs._state] == [AsyncState.WAITING_CALL]
    assert envs.call_wait(timeout=30) == (5, 5)
    assert [envs._state] == [AsyncState.DEFAULT]


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("pending", ["reset", "step", "call"])
@pytest.mark.parametrize("verb", ["reset_async", "step_async", "call_async", "set_attr"])
def test_two_calls_at_once(kind: Make, pending: str, verb: str, close_later: Make) -> None:
    envs = close_later(kind, counting(2))
    arguments: dict[str, tuple[Any, ...]] = {
        "reset": (),
        "step": (np.zeros(2, int),),
        "call": ("length",),
        "set_attr": ("length", 3),
    }
    envs.reset(seed=0)
    getattr(envs, f"{pending}_async")(*arguments[pending])
    message = f"Calling `{verb}` while waiting for a pending call to `{pending}` to complete"
    with pytest.raises(AlreadyPendingCallError, match=message) as caught:
        getattr(envs, verb)(*arguments.get(verb, arguments.get(verb.removesuffix("_async"), ())))
    assert caught.value.name == pending
    getattr(envs, f"{pending}_wait")(timeout=30)
    assert envs.step(np.zeros(2, int))[1][0] == (2 if pending == "step" else 1)


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("verb", ["reset", "step", "call"])
@pytest.mark.parametrize("pending", [None, "reset", "step", "call"])
def test_waiting_for_what_was_not_started(kind: Make, verb: str, pending: str | None, close_later: Make) -> None:
    if verb == pending:
        return
    envs = close_later(kind, counting(2))
    envs.reset(seed=0)
    if pending is not None:
        getattr(envs, f"{pending}_async")(*{"step": (np.zeros(2, int),), "call": ("length",)}.get(pending, ()))
    message = f"Calling `{verb}_wait` without any prior call to `{verb}_async`."
    with pytest.raises(NoAsyncCallError, match=message) as caught:
        getattr(envs, f"{verb}_wait")()
    assert caught.value.name == verb
    if pending is not None:
        getattr(envs, f"{pending}_wait")(timeout=30)


@pytest.mark.parametrize("kind", ASYNC)
@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_wait_times_out(kind: Make, verb: str, close_later: Make) -> None:
    slow_in: Any = {"reset": "reset", "step": "step", "call": "render"}[verb]
    nth = 2 if verb == "reset" else 1
    envs = close_later(kind, [functools.partial(FaultyEnv, "slow", slow_in, nth=nth, duration_s=1.0)] * 2)
    envs.reset(seed=0)
    getattr(envs, f"{verb}_async")(*{"step": (np.zeros(2, int),), "call": ("render",)}.get(verb, ()))
    message = re.escape(f"The call to `{verb}_wait` has timed out after 0.05 second(s).")
    with pytest.raises(multiprocessing.TimeoutError, match=message):
        getattr(envs, f"{verb}_wait")(timeout=0.05)
    envs.close(terminate=True)
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True, False, True], "`options['reset_mask': mask]` must be a numpy array, got <class 'list'>"),
        (np.array([True, False]), "`options['reset_mask': mask]` must have shape `(3,)`, got (2,)"),
        (np.array([1, 0, 1]), "`options['reset_mask': mask]` must have `dtype=np.bool_`, got int64"),
        (np.zeros(3, bool), "`options['reset_mask': mask]` must contain a boolean array, got reset_mask="),
    ],
    ids=["list", "shape", "dtype", "empty"],
)
def test_bad_masks(kind: Make, mask: Any, message: str, close_later: Make) -> None:
    envs = close_later(kind, counting(3))
    envs.reset(seed=0)
    with pytest.raises(AssertionError, match=re.escape(message)):
        envs.reset(options={"reset_mask": mask})


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_bad_seeds(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(3))
    message = "If seeds are passed as a list the length must match num_envs=3 but got length=2."
    with pytest.raises(AssertionError, match=re.escape(message)):
        envs.reset(seed=[1, 2])
    envs.reset(seed=[1, 2, None])


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("count", [1, 4])
def test_wrong_number_of_actions(kind: Make, count: int, close_later: Make) -> None:
    envs = close_later(kind, counting(3))
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=r"shape|argument"):
        envs.step(np.zeros(count, int))


ONE_WORKER = functools.partial(AsyncFleet, workers=1)


@pytest.mark.parametrize("kind", [*ASYNC, ONE_WORKER, *SYNC])
@pytest.mark.parametrize(
    ("mode", "other", "message"),
    [
        ("same", (2.0,), r"observation_mode='same'\) however .* observation spaces are not equivalent\..*If this is"),
        ("different", (1.0, 4), "shape"),
        ("same", (1.0, 5, 3), "action space"),
    ],
    ids=["bounds", "shape", "actions"],
)
def test_spaces_that_differ(kind: Make, mode: str, other: tuple[Any, ...], message: str, close_later: Make) -> None:
    env_fns = [functools.partial(BoundedEnv, 1.0), functools.partial(BoundedEnv, *other)]
    error = AssertionError if kind in SYNC or mode == "different" else RuntimeError
    with pytest.raises(error, match=message):
        close_later(kind, env_fns, observation_mode=mode)


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_observation_modes(kind: Make, close_later: Make) -> None:
    env_fns = [functools.partial(BoundedEnv, high) for high in (1.0, 2.0)]
    different = close_later(kind, env_fns, observation_mode="different")
    assert different.single_observation_space == spaces.Box(-1, 1, (5,), np.float64)
    assert different.observation_space == spaces.Box(
        np.repeat([[-1.0], [-2.0]], 5, axis=1), np.repeat([[1.0], [2.0]], 5, axis=1), (2, 5), np.float64
    )
    custom = (spaces.Box(-3, 3, (2, 5), np.float64), spaces.Box(-3, 3, (5,), np.float64))
    envs = close_later(kind, env_fns, observation_mode=custom)
    assert (envs.observation_space, envs.single_observation_space) == custom
    observations, _ = envs.reset(seed=0)
    assert observations in envs.observation_space
    with pytest.raises(ValueError, match="Invalid `observation_mode`, expected: 'same' or 'different' or tuple"):
        kind(env_fns, observation_mode="other")
    with pytest.raises(AssertionError):
        kind(env_fns, observation_mode=("same", custom[1]))


@pytest.mark.parametrize(
    ("kind", "error"), [(kind, RuntimeError) for kind in ASYNC] + [(k, AssertionError) for k in SYNC]
)
def test_custom_space_of_another_shape(kind: Make, error: type[Exception], close_later: Make) -> None:
    custom = (spaces.Box(-3, 3, (2, 4), np.float64), spaces.Box(-3, 3, (4,), np.float64))
    with pytest.raises(error, match="do not share a common shape and dtype"):
        close_later(kind, counting(2), observation_mode=custom)


# ------------------------------------------------------------------------------------------------ failures, the end


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("when", ["reset", "step"])
def test_errors_keep_their_type(kind: Make, when: Any, close_later: Make) -> None:
    faulty = functools.partial(FaultyEnv, "raise", when, nth=2)
    envs = close_later(kind, [functools.partial(FaultyEnv, None), faulty])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(PlainError):
        envs.reset() if when == "reset" else envs.step(np.zeros(2, int))


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_errors_of_calls_keep_their_type(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, [AttributeEnv] * 2)
    with pytest.raises(LookupError, match="no"):
        envs.call("refuse", "no")


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_errors_of_constructors_keep_their_type(kind: Make) -> None:
    with pytest.raises(PlainError):
        kind([functools.partial(FaultyEnv, "raise", "constructor")])


@pytest.mark.parametrize("kind", SYNC)
def test_goes_on_after_an_error(kind: Make, close_later: Make) -> None:
    """An exception in one sub-environment is no reason to make all of them again."""
    faulty = functools.partial(FaultyEnv, "raise", "step", nth=2)
    envs = close_later(kind, [functools.partial(FaultyEnv, None), faulty])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(PlainError):
        envs.step(np.zeros(2, int))
    observations, _ = envs.reset(seed=0)
    assert observations[:, 0].tolist() == [0, 0]
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ASYNC)
def test_use_after_close(kind: Make) -> None:
    envs = kind(counting(2))
    envs.close()
    envs.close()
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)
    message = f"Trying to operate on `{kind.__name__}`, after a call to `close\\(\\)`."
    for verb, arguments in (
        ("reset", ()),
        ("reset_async", ()),
        ("reset_wait", ()),
        ("step_async", (np.zeros(2, int),)),
        ("step_wait", ()),
        ("call_async", ("length",)),
        ("call_wait", ()),
        ("set_attr", ("length", 2)),
        ("render", ()),
    ):
        with pytest.raises(ClosedEnvironmentError, match=message):
            getattr(envs, verb)(*arguments)


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"timeout": 0}, {"terminate": True}])
def test_close(kind: Make, options: dict[str, Any]) -> None:
    envs = kind(counting(2))
    envs.reset(seed=0)
    envs.close(**options)
    assert envs.closed


@pytest.mark.parametrize("kind", ASYNC)
def test_close_while_a_call_is_under_way(kind: Make) -> None:
    envs = kind(counting(2))
    envs.reset(seed=0)
    envs.step_async(np.zeros(2, int))
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step` to complete"):
        envs.close(timeout=10)
    assert not any(process.is_alive() for process in envs.processes)


@pytest.mark.parametrize("kind", ASYNC)
def test_close_extras_of_a_child_is_called(kind: Any) -> None:
    """Classes derived from Gymnasium's release what is theirs in `close_extras`."""

    class Child(kind):
        released = False

        def close_extras(self, **kwargs: Any) -> None:
            self.released = True
            super().close_extras(**kwargs)

    envs = Child(counting(1))
    envs.close(terminate=True)
    assert envs.released


@pytest.mark.parametrize("kind", ASYNC)
def test_processes(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(1))
    (process,) = envs.processes
    assert process.name == f"Worker<{kind.__name__}>-0"
    assert process.is_alive()
    assert [process.exitcode] == [None]
    assert process.daemon
    assert isinstance(process.pid, int)
    process.join(timeout=0.01)
    assert process.is_alive()
    process.terminate()
    process.join(timeout=10)
    assert not process.is_alive()
    assert process.exitcode == -15
    envs.close(terminate=True)
    assert process.exitcode == -15


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_under_gymnasiums_wrappers(kind: Make) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(kind(counting(2, length=2)))
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["episode"]["r"].tolist() == [3, 3]
    assert infos["episode"]["l"].tolist() == [2, 2]
    envs.close()
