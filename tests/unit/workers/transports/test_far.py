"""Workers that share no memory with their owner return what those return that do."""

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL, Backend
from tests.unit.workers.far_envs import Hasty, ImageEnv, SilentEnv, TableEnv
from tests.unit.workers.far_transport import FarTransport, MixedTransport
from tests.waiting import PATIENCE_S

from envfleet.errors import WorkerDied
from envfleet.testing import InfoEnv, check_backend
from envfleet.testing.compare import mismatches
from envfleet.workers.board import FLAGS, MAIL

FAR = Backend("process", 2)
MODES = tuple(AutoresetMode)


@pytest.fixture(params=[FarTransport, MixedTransport], ids=["far", "mixed"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """Worker processes of which all, or all but the first, are reached over TCP."""
    monkeypatch.setattr("envfleet.workers.transports.process.ProcessTransport", request.param)
    return FAR


def test_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.workers.transports.process.ProcessTransport", FarTransport)
    check_backend(FAR, autoreset_modes=[AutoresetMode.SAME_STEP], copy_modes=[True])


BUILDERS = {
    "infos": [functools.partial(InfoEnv, "numbers", index, length=3 + index % 3) for index in range(5)],
    "images": [functools.partial(ImageEnv, 9 + index) for index in range(5)],
}


def record(backend: Any, env_fns: Any, mode: AutoresetMode) -> list[Any]:
    """Everything a fleet can be asked, in one life."""
    steps: list[Any] = []
    with backend(env_fns, autoreset_mode=mode) as fleet:
        fleet.action_space.seed(3)

        def act(count: int) -> None:
            for _ in range(count):
                if mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                    steps.append(fleet.reset_envs(fleet.terminated_indices))
                steps.append((fleet.step(fleet.action_space.sample()), fleet.episode_ids.copy()))

        steps.append(fleet.reset(seed=3))
        act(6)
        for rows in ([0, 1], [3], [1, 4]):  # of one worker, of the other, of both
            mask = np.zeros(5, np.bool_)
            mask[rows] = True
            steps.append(fleet.reset(options={"reset_mask": mask}))
            states = fleet.get_state()
            steps.append([state[0].observation for state in states])
            act(2)
            steps.append(fleet.set_state(states))
            act(3)
        steps.append(fleet.call("count"))
        fleet.set_attr("count", list(range(5)))
        steps.append(fleet.get_attr("count"))
        act(3)
    return steps


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())
def test_identical_to_serial(backend: Backend, name: str, mode: AutoresetMode) -> None:
    expected, actual = (record(one, BUILDERS[name], mode) for one in (SERIAL, backend))
    assert mismatches(expected, actual) == []


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("name", BUILDERS)
def test_rows_that_step_by_themselves(backend: Backend, name: str, batch_size: int) -> None:
    """Each sub-environment returns what it would in steps of all."""
    count = 12
    rng = np.random.default_rng(0)
    actions: list[list[Any]] = [
        [(int(rng.integers(3)), (1,) * int(rng.integers(3))) for _ in range(5)] for _ in range(count)
    ]
    if name == "infos":
        actions = [[int(first) % 2 for first, _ in step] for step in actions]
    with SERIAL(BUILDERS[name]) as serial, backend(BUILDERS[name], batch_size=batch_size) as fleet:
        expected = [serial.reset(seed=0)[0], *(serial.step(as_batch(step))[:3] for step in actions)][1:]
        fleet.reset(seed=0)
        seen = [0] * 5
        fleet.send(as_batch(actions[0]))
        while min(seen) < count:
            batch = fleet.recv(timeout_s=PATIENCE_S)
            again = []
            for place, row in enumerate(batch.env_indices.tolist()):
                one = row_of(batch.observations, place), batch.rewards[place], batch.terminated[place]
                observations, rewards, terminated = expected[seen[row]]
                assert mismatches((row_of(observations, row), rewards[row], terminated[row]), one) == []
                seen[row] += 1
                if seen[row] < count:
                    again.append(row)
            if again:
                fleet.send(as_batch([actions[seen[row]][row] for row in again]), again)
    assert seen == [count] * 5


def as_batch(actions: list[Any]) -> Any:
    if isinstance(actions[0], int):
        return np.array(actions)
    return np.array([first for first, _ in actions]), tuple(second for _, second in actions)


def row_of(observations: Any, row: int) -> Any:
    if isinstance(observations, dict):
        return {name: part[row] for name, part in observations.items()}
    return observations[row]


def fleet_with(backend: Backend, act: Any, **options: Any) -> Any:
    """The last of four sub-environments misbehaves in its second step."""
    env_fns = [functools.partial(Hasty, 2 if index == 3 else 0, act) for index in range(4)]
    return backend(env_fns, **options)


ZEROS = np.zeros(4, np.int64)


def test_death_is_told_with_its_exit_code(backend: Backend) -> None:
    with fleet_with(backend, functools.partial(os._exit, 5)) as fleet:
        fleet.reset(seed=0)
        fleet.step(ZEROS)
        with pytest.raises(WorkerDied) as caught:
            fleet.step(ZEROS)
        assert (caught.value.exitcode, caught.value.env_indices) == (5, (2, 3))


def exit_once(marker: Path) -> None:
    if not marker.exists():
        marker.touch()
        os._exit(5)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name.lower())
def test_successor_takes_over(backend: Backend, mode: AutoresetMode, tmp_path: Path) -> None:
    act = functools.partial(exit_once, tmp_path / "marker")
    with fleet_with(backend, act, on_failure="restart", autoreset_mode=mode) as fleet:
        observations, _ = fleet.reset(seed=0)
        before = fleet.step(ZEROS)
        _, rewards, _, truncated, infos = fleet.step(ZEROS)
        assert truncated.tolist() == [False, False, True, True]
        assert rewards[2:].tolist() == [0.0, 0.0]
        assert "exited with code 5" in infos["env_error"][3]
        if mode == AutoresetMode.DISABLED:
            last = [state[0].observation for state in fleet.get_state()]
            assert mismatches(list(before[0][2:]), last[2:]) == []  # the new worker knows the last observations
            fleet.reset_envs([2, 3])
        for _ in range(3):
            assert not fleet.step(ZEROS)[3].any()
        assert [worker.restarts for worker in fleet.stats().workers] == [0, 1]
        assert observations.shape == before[0].shape


def test_worker_ends_with_its_owner(backend: Backend) -> None:
    """Whatever it is doing, once the lifeline is cut."""
    with fleet_with(backend, functools.partial(time.sleep, 3600)) as fleet:
        fleet.reset(seed=0)
        fleet.step(ZEROS)
        fleet.send(ZEROS)
        transport = fleet.engine._pool.transport
        pid = transport.pid(1)
        transport._lifelines[1].close()
        with pytest.raises(WorkerDied) as caught:
            fleet.recv(timeout_s=PATIENCE_S)
        assert (caught.value.exitcode, caught.value.pid) == (-signal.SIGKILL, pid)


def test_shared_data_and_columns(backend: Backend) -> None:
    table = np.arange(1000.0)
    with backend([functools.partial(TableEnv)] * 4, shared={"table": table}) as fleet:
        fleet.reset(seed=0)
        for _ in range(3):
            rewards, infos = fleet.step(np.array([3, 999, 5, 7]))[1::3]
            assert rewards.tolist() == [3.0, 999.0, 5.0, 7.0]
            assert infos["double"].tolist() == [6.0, 1998.0, 10.0, 14.0]


def test_an_end_without_infos_is_not_mailed(backend: Backend) -> None:
    """The owner adds the empty `final_info` that Gymnasium has, which is a tenth of a step of many short episodes."""
    with backend([functools.partial(SilentEnv, 2)] * 2, autoreset_mode=AutoresetMode.SAME_STEP) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(2, np.int64))
        _, _, terminated, _, infos = fleet.step(np.zeros(2, np.int64))
        flags = [line[FLAGS] & MAIL for line in fleet.engine._pool.lines]
    assert terminated.all()
    assert infos["final_info"] == {}
    assert infos["_final_info"].all()
    assert flags == [0, 0]
