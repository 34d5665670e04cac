"""`AsyncFleet` and `SyncFleet` beside Gymnasium's own classes: what is returned, by the same arguments.

Each test runs on theirs and ours. What is unlike Gymnasium's on purpose is in `test_gymnasium_unlike.py`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from tests.unit.adapters.peers import (
    ASYNC,
    SYNC,
    EnvFns,
    Make,
    TypedEnv,
    cartpole,
    counting,
)

from envfleet.testing import CountingEnv, InfoEnv, mismatches
from envfleet.testing.envs import SpaceEnv

# Gymnasium's AsyncVectorEnv reports what a sub-environment raised as a warning, before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")


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
    env_fns = [functools.partial(cartpole, render_mode="rgb_array")] * 2
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
