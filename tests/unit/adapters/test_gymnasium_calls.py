"""`AsyncFleet` and `SyncFleet` beside Gymnasium's own classes: calls in two halves, attributes, refusals."""

from __future__ import annotations

import functools
import multiprocessing
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import (
    AlreadyPendingCallError,
    NoAsyncCallError,
)
from gymnasium.vector.async_vector_env import AsyncState
from tests.unit.adapters.peers import (
    ASYNC,
    SYNC,
    BoundedEnv,
    Make,
    counting,
)

from envfleet.adapters.gymnasium import AsyncFleet
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.envs import AttributeEnv

# Gymnasium's AsyncVectorEnv reports what a sub-environment raised as a warning, before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")


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
