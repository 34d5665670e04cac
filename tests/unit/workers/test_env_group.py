"""The sub-environments of one worker against the same environments one by one."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.unit.workers.alone import arrays_of, plan_of

from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.faults import PlainError
from envfleet.workers.arrays import FleetArrays
from envfleet.workers.board import ROW, STEPS, lines_of
from envfleet.workers.env_group import EnvGroup
from envfleet.workers.messages import Reply, ResetPlan

FIRST = 3
"""Index in the fleet of the group's first sub-environment."""


def group_of(env_fns: Any, **options: Any) -> tuple[EnvGroup, FleetArrays, Any]:
    line = lines_of(bytearray, 1)[0]
    group = EnvGroup(plan_of(env_fns, FIRST, **options), {}, line)
    spec, arrays = arrays_of(group.envs[0], group.num_envs, has_finals=options.get("autoreset_mode") == "SAME_STEP")
    group.attach(spec, arrays)
    return group, arrays, line


def reset(group: EnvGroup, seed: int) -> Reply | None:
    rows = range(group.num_envs)
    return group.reset(0, ResetPlan(rows, [seed + row for row in rows], [None for _ in rows]))


@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
def test_steps_equal_those_of_single_environments(mode: AutoresetMode) -> None:
    env_fns = [functools.partial(CountingEnv, length, vary=True) for length in (3, 4, 6)]
    group, arrays, _ = group_of(env_fns, autoreset_mode=mode.name)
    alone: list[gym.Env[Any, Any]] = [env_fn() for env_fn in env_fns]
    reset(group, 7)
    expected = [env.reset(seed=7 + row)[0] for row, env in enumerate(alone)]
    np.testing.assert_array_equal(arrays.outputs[0].observations[0], expected)
    ended = np.zeros(3, np.bool_)
    rng = np.random.default_rng(0)
    for number in range(20):
        if mode is AutoresetMode.DISABLED and ended.any():
            rows = np.flatnonzero(ended).tolist()
            group.reset(0, ResetPlan(rows, [None for _ in rows], [None for _ in rows]))
            for row in rows:
                alone[row].reset()
        arrays.actions[0][...] = rng.integers(0, 4, 3)
        out = arrays.outputs[number % 2]
        group.step(number % 2)
        for row, env in enumerate(alone):
            if mode is AutoresetMode.NEXT_STEP and ended[row]:
                result: Any = (env.reset()[0], 0.0, False, False)
            else:
                result = env.step(arrays.actions[0][row])
            ended[row] = result[2] or result[3]
            assert (out.rewards[row], *out.flags[:, row]) == result[1:4]
            observation = result[0]
            if mode is AutoresetMode.SAME_STEP and ended[row]:
                np.testing.assert_array_equal(out.finals[0][row], observation)
                observation = env.reset()[0]
            np.testing.assert_array_equal(out.observations[0][row], observation)


def test_some_rows_step_in_the_order_that_is_asked_for() -> None:
    group, arrays, line = group_of([CountingEnv] * 3)
    reset(group, 0)
    arrays.actions[0][...] = (1, 2, 3)
    group.step(0, [2, 0])
    assert arrays.outputs[0].rewards.tolist() == [1.1, 0.0, 1.3]
    assert (line[STEPS], line[ROW]) == (2, 0)


def test_a_failure_names_the_row_and_the_others_step() -> None:
    group, arrays, _ = group_of([CountingEnv, functools.partial(FaultyEnv, "raise", nth=2), CountingEnv])
    reset(group, 0)
    group.step(0)
    reply = group.step(1)
    assert reply is not None
    (failure,) = reply.failures
    assert (failure.env_index, failure.verb, failure.step) == (FIRST + 1, "step", 1)
    assert arrays.outputs[1].rewards.tolist() == [2.0, 0.0, 2.0]


def test_a_failed_environment_is_rebuilt_and_truncated() -> None:
    group, arrays, _ = group_of([functools.partial(FaultyEnv, "raise", nth=2), CountingEnv], on_failure="restart")
    reset(group, 0)
    before = group.envs[0]
    group.step(0)
    reply = group.step(1)
    assert reply is not None
    assert [failure.env_index for failure in reply.restarts] == [FIRST]
    assert reply.failures == []
    assert group.envs[0] is not before
    assert arrays.outputs[1].flags.tolist() == [[False, False], [True, False]]
    reply = group.step(0)  # resets it, with a new seed
    assert reply is not None
    assert list(reply.seeds) == [FIRST]


def test_all_are_closed_although_one_fails() -> None:
    group, _, _ = group_of([functools.partial(FaultyEnv, "raise", "close"), functools.partial(FaultyEnv, None)])
    envs: list[Any] = list(group.envs)
    assert [failure.env_index for failure in group.close()] == [FIRST]
    assert [env.calls for env in envs] == [{"close": 1}, {}]
    assert group.close() == []


def test_a_failed_build_closes_those_already_built() -> None:
    closed = []

    class Recording(CountingEnv):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(SubEnvError, match="PlainError") as caught:
        group_of([Recording, Recording, functools.partial(FaultyEnv, "raise", "constructor")])
    assert isinstance(caught.value.__cause__, PlainError)
    assert len(closed) == 2


def test_a_reply_is_divided_by_row() -> None:
    infos: Any = [(4, {"a": 1}), (3, {"a": 2}), (4, {"b": 3})]
    parts = Reply(infos=infos, seeds={3: 8, 5: None}, objects={4: ["x"]}).by_row()
    assert sorted(parts) == [3, 4, 5]
    assert (parts[3].infos, parts[3].seeds) == ([(3, {"a": 2})], {3: 8})
    assert (parts[4].infos, parts[4].objects) == ([(4, {"a": 1}), (4, {"b": 3})], {4: ["x"]})
    assert parts[5].seeds == {5: None}
