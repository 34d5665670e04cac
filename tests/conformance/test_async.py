"""send and recv: order within a sub-environment, service to all of them, and no mixing."""

from __future__ import annotations

import collections
import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conformance.model import ModelFleet
from tests.conftest import Backend
from tests.waiting import PATIENCE_S

from envfleet.errors import CallPending, InvalidArgument, NothingPending, ResetNeeded
from envfleet.testing import CountingEnv

varied = functools.partial(CountingEnv, 4, vary=True, ends="alternate")


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_rows_are_right_whatever_the_order(backend: Backend, autoreset_mode: AutoresetMode, batch_size: int) -> None:
    """Act on the rows that are ready, for 100 batches; without autoreset, reset ended rows by hand."""
    env_fns = [varied] * 5
    model = ModelFleet(env_fns, autoreset_mode)
    model.reset(range(5), range(7, 12))
    rng = np.random.default_rng(0)
    with backend(env_fns, autoreset_mode=autoreset_mode, batch_size=batch_size) as fleet:
        fleet.reset(seed=7)
        waiting: dict[int, collections.deque[Any]] = {index: collections.deque() for index in range(5)}

        def send(indices: list[int]) -> None:
            if autoreset_mode == AutoresetMode.DISABLED:
                ended = [index for index in indices if index in model.ended]
                if ended:
                    fleet.reset_envs(ended, seeds=ended)
                    model.reset(ended, ended)
            actions = rng.integers(4, size=len(indices))
            for index, row in zip(indices, model.step(indices, actions), strict=True):
                waiting[index].append(row)
            fleet.send(actions, indices)

        send([3, 1, 0, 4, 2])
        for _ in range(100 // batch_size):
            batch = fleet.recv(timeout_s=PATIENCE_S)
            indices = batch.env_indices.tolist()
            assert len(indices) == batch_size == len(set(indices))
            for row, index in enumerate(indices):
                observation, reward, terminated, truncated, _ = waiting[index].popleft()
                np.testing.assert_array_equal(batch.observations[row], observation)
                row_results = (batch.rewards[row], batch.terminated[row], batch.truncated[row])
                assert row_results == (reward, terminated, truncated)
            send(indices)


def test_first_come_first_served(backend: Backend) -> None:
    """No row starves: sub-environments of equal speed are all received again and again."""
    with backend([functools.partial(CountingEnv, 1000)] * 6, batch_size=2) as fleet:
        fleet.reset(seed=0)
        fleet.send(zeros(6))
        served: collections.Counter[int] = collections.Counter(dict.fromkeys(range(6), 0))
        while min(served.values()) < 15 and served.total() < 30_000:  # a worker may wait long for a core
            indices = fleet.recv(timeout_s=PATIENCE_S).env_indices
            served.update(indices.tolist())
            fleet.send(zeros(len(indices)), indices)
    assert min(served.values()) >= 15, served


def test_calls_and_options_are_named_in_refusals() -> None:
    with Backend("serial", 1)([varied] * 2) as fleet:
        with pytest.raises(ResetNeeded, match=r"^send\(\) before the first reset"):
            fleet.send(zeros(2))
        with pytest.raises(ResetNeeded, match=r"^reset_envs\(\) before the first reset"):
            fleet.reset_envs([0])
        for call in (fleet.reset, functools.partial(fleet.reset_envs, [0, 1])):
            with pytest.raises(InvalidArgument, match=r"options=5 \(type int\), expected a dict"):
                call(options=5)
        fleet.reset(seed=0)
        fleet.send(zeros(2))
        with pytest.raises(CallPending, match=r"^send\(\): sub-environments \[0, 1\] are under way"):
            fleet.send(zeros(2))
        fleet.recv()


def test_misuse_is_refused_without_harm(backend: Backend) -> None:
    with backend([varied] * 3, batch_size=2) as fleet:
        with pytest.raises(ResetNeeded):
            fleet.send(zeros(3))
        fleet.reset(seed=0)
        with pytest.raises(NothingPending):
            fleet.recv()
        fleet.send(zeros(2), [0, 2])
        for call in (
            lambda: fleet.send(zeros(1), [2]),
            lambda: fleet.step(zeros(3)),
            fleet.reset,
            lambda: fleet.reset_envs([0]),
            lambda: fleet.call("count"),
            lambda: fleet.get_attr("count"),
            lambda: fleet.set_attr("length", 3),
            fleet.get_state,
        ):
            with pytest.raises(CallPending):
                call()
        for indices in ([3], [-1], [0, 0], [[1]], [0.5]):
            with pytest.raises(ValueError, match=r"ind|env"):
                fleet.send(zeros(len(indices)), indices)
        with pytest.raises(ValueError, match="action"):
            fleet.send(zeros(2), [1])
        batch = fleet.recv(timeout_s=PATIENCE_S)
        assert sorted(batch.env_indices.tolist()) == [0, 2]
        assert batch.observations[:, 0].tolist() == [1, 1]
        observations, *_ = fleet.step(zeros(3))
        assert observations.shape == (3, 5)


def test_infos_of_a_batch_are_aligned_with_its_rows(backend: Backend) -> None:
    env_fns = [functools.partial(CountingEnv, 2 + index) for index in range(4)]
    with backend(env_fns, batch_size=3, record_episodes=True) as fleet:
        fleet.reset(seed=0)
        fleet.send(zeros(4))
        for _ in range(12):
            batch = fleet.recv(timeout_s=PATIENCE_S)
            ended = batch.terminated | batch.truncated
            if ended.any():
                assert batch.infos["_episode"].tolist() == ended.tolist()
                lengths = batch.infos["episode"]["l"]
                assert [lengths[row] for row in np.flatnonzero(ended)] == [
                    2 + batch.env_indices[row] for row in np.flatnonzero(ended)
                ]
            fleet.send(zeros(3), batch.env_indices)
