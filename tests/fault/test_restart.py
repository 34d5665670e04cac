"""on_failure="restart": the failed sub-environment ends truncated and is rebuilt; the others do not notice."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import ONE_OF_EACH, SERIAL, Backend
from tests.fault.builders import FAULTY, NUM_ENVS, actions, assert_rows_equal, env_fns_with, run, step_often
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import EnvfleetError, RestartBudgetSpent, SubEnvError, WorkerDied
from envfleet.testing import CountingEnv, FaultyEnv, once_marker
from envfleet.testing.envs import SpaceEnv
from envfleet.testing.faults import When

NUM_STEPS = 14
IN_PLACE = (
    "raise",
    "raise_two_arguments",
    "raise_unpicklable",
    "raise_bad_repr",
    "raise_stop_iteration",
    "sys_exit",
    "wrong_shape",
    "no_observation",
    "too_few_values",
    "text_reward",
)
DEATHS = ("os_exit", "sigkill", "sigsegv")


def combinations() -> list[Any]:
    pairs = [(backend, fault) for backend in ONE_OF_EACH for fault in IN_PLACE]
    pairs += [(Backend("process", workers), fault) for workers in (2, NUM_ENVS) for fault in DEATHS]
    return [pytest.param(*pair, id=f"{pair[0]}-{pair[1]}") for pair in pairs]


@functools.cache
def healthy(mode: AutoresetMode) -> list[list[Any]]:
    return run(SERIAL, env_fns_with("raise", faulty=()), NUM_STEPS, mode)[0]


@pytest.mark.parametrize(("backend", "fault"), combinations())
def test_step(backend: Backend, fault: str, autoreset_mode: AutoresetMode, tmp_path: Path) -> None:
    env_fns = env_fns_with(fault, nth=3, once=once_marker(str(tmp_path)))
    rows, all_infos = run(backend, env_fns, NUM_STEPS, autoreset_mode, on_failure="restart")
    hit = [step for step, infos in enumerate(all_infos) if "env_error" in infos]
    assert len(hit) == 1
    infos = all_infos[hit[0]]
    is_death = fault in DEATHS
    lost = {0, 1} if is_death and backend.workers == 2 else {FAULTY}
    assert set(np.flatnonzero(infos["_env_error"]).tolist()) == lost
    assert infos["restarted"][FAULTY]
    assert (f"sub-environment {FAULTY}" in infos["env_error"][FAULTY]) or is_death
    for index in range(NUM_ENVS):
        if index not in lost:
            assert_rows_equal(healthy(autoreset_mode)[index], rows[index], f"sub-environment {index}")
            continue
        before, at = rows[index][hit[0] - 1], rows[index][hit[0]]
        assert_rows_equal(healthy(autoreset_mode)[index][: hit[0]], rows[index][: hit[0]], "before the failure")
        assert at[1:] == (0.0, False, True)
        if autoreset_mode != AutoresetMode.SAME_STEP:
            np.testing.assert_array_equal(at[0], before[0])  # the last observation there is
        else:
            assert at[0][0] == 0  # the first of the new episode
        assert any(row[1] > 0 for row in rows[index][hit[0] + 1 :])  # and the fleet stays usable
        assert rows[index][-1][0][2] != healthy(autoreset_mode)[index][-1][0][2]  # with a new seed


def test_new_seeds_are_the_same_everywhere() -> None:
    """A rebuilt sub-environment is deterministic: equal on every backend, different for each rebuild."""
    runs = []
    for backend in ONE_OF_EACH:
        env_fns = env_fns_with("raise", nth=4, length=50, vary=False)  # every rebuilt one fails again
        runs.append(run(backend, env_fns, 20, AutoresetMode.NEXT_STEP, on_failure="restart", seed=5)[0][FAULTY])
    for other in runs[1:]:
        assert_rows_equal(runs[0], other)
    firsts = [row[0][2] for row in runs[0] if row[0][0] == 0]
    assert len(set(firsts)) == len(firsts) >= 3


def test_other_workers_rebuild_where_their_deaths_differ() -> None:
    """A worker that dies again and again gets fresh seeds each time."""
    env_fns = [functools.partial(FaultyEnv, "sigkill", nth=3, length=50)]
    rows, _ = run(Backend("process", 1), env_fns, 14, AutoresetMode.NEXT_STEP, on_failure="restart", seed=5)
    firsts = [row[0][2] for row in rows[0] if row[0][0] == 0]
    assert len(set(firsts)) == len(firsts) >= 2


@pytest.mark.parametrize("when", ["reset", "constructor", "close"])
@pytest.mark.parametrize("fault", ["raise", "sys_exit"])
def test_elsewhere(backend: Backend, when: When, fault: str, tmp_path: Path) -> None:
    """A reset gets a second chance; a constructor that fails at the start is an error of the caller's."""
    env_fns = env_fns_with(fault, when, once=once_marker(str(tmp_path)))
    if when == "constructor":
        with pytest.raises(SubEnvError):
            backend(env_fns, on_failure="restart")
        return
    fleet = backend(env_fns, on_failure="restart")
    observations, _ = fleet.reset(seed=0)
    assert observations[:, 0].tolist() == [0] * NUM_ENVS
    fleet.step(actions(0))
    if when == "close":
        with pytest.raises(SubEnvError):
            fleet.close()
    else:
        assert fleet.stats().restarts == 1
    fleet.close()


@pytest.mark.parametrize("fault", ["raise", "wrong_shape"])
def test_the_last_step_stands_whatever_becomes_of_the_autoreset(
    fault: str, autoreset_mode: AutoresetMode, tmp_path: Path
) -> None:
    """An episode that ended has ended: its reward, flags, last observation and statistics are its own."""
    if autoreset_mode == AutoresetMode.DISABLED:
        pytest.skip("no reset")
    env_fns = env_fns_with(
        fault, "reset", nth=2, once=once_marker(str(tmp_path)), length=2, vary=False, ends="terminated"
    )
    rows, all_infos = run(SERIAL, env_fns, 4, autoreset_mode, on_failure="restart", record_episodes=True)
    is_same = autoreset_mode == AutoresetMode.SAME_STEP
    assert [row[1:] for row in rows[FAULTY]][:2] == [row[1:] for row in healthy_pairs(autoreset_mode)[:2]]
    assert rows[FAULTY][1][2:] == (True, False)
    assert all_infos[1]["episode"]["l"].tolist() == [2] * NUM_ENVS
    if is_same:
        assert all_infos[1]["final_obs"][FAULTY][0] == 2
        assert all_infos[1]["final_info"]["draw"][FAULTY] == all_infos[1]["final_obs"][FAULTY][2]
    reset = 1 if is_same else 2
    assert all_infos[reset]["_restarted"].tolist() == [index == FAULTY for index in range(NUM_ENVS)]
    assert "in reset" in all_infos[reset]["env_error"][FAULTY]
    assert rows[FAULTY][reset][0][0] == 0
    assert [row[2:] for row in rows[FAULTY][2:]] == [row[2:] for row in healthy_pairs(autoreset_mode)[2:]]
    assert "episode" not in all_infos[2]


@functools.cache
def healthy_pairs(mode: AutoresetMode) -> list[Any]:
    env_fns = env_fns_with("raise", faulty=(), length=2, vary=False, ends="terminated")
    return run(SERIAL, env_fns, 4, mode)[0][FAULTY]


def test_constructor_fails_when_rebuilt(backend: Backend, tmp_path: Path) -> None:
    """Step and rebuild fail: the error names the rebuild."""
    marker = tmp_path / "built-once"
    env_fns = [functools.partial(_BuiltOnceEnv, str(marker) if index == FAULTY else None) for index in range(NUM_ENVS)]
    with backend(env_fns, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step(actions(0))
        assert FAULTY in [failure.env_index for failure in caught.value.failures]
        assert "cannot be built twice" in str(caught.value)


class _BuiltOnceEnv(FaultyEnv):
    def __init__(self, marker: str | None) -> None:
        if marker is not None and Path(marker).exists():
            raise RuntimeError("cannot be built twice")
        super().__init__("raise" if marker else None)
        if marker is not None:
            Path(marker).touch()


@pytest.mark.parametrize("fault", ["raise", "sigkill"])
def test_budget(backend: Backend, fault: str) -> None:
    if fault == "sigkill" and not backend.has_processes:
        pytest.skip("would end the tests")
    with backend(env_fns_with(fault, nth=1), on_failure="restart", max_restarts=2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(RestartBudgetSpent, match="max_restarts=2") as caught:
            step_often(fleet, 20)
        assert fleet.stats().restarts == 2
        assert "broken on purpose" in str(caught.value) or "SIGKILL" in str(caught.value)
        with pytest.raises(EnvfleetError):
            fleet.step(actions(0))


def test_budget_of_zero(backend: Backend) -> None:
    with backend(env_fns_with("raise"), on_failure="restart", max_restarts=0) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(RestartBudgetSpent):
            fleet.step(actions(0))


def test_last_observation_of_a_row_that_was_sent(backend: Backend, tmp_path: Path) -> None:
    """A row that fails after a send ends with its last observation, also where all rows of its worker are sent."""
    env_fns = env_fns_with("raise", nth=3, once=once_marker(str(tmp_path)))
    rows = list(range(NUM_ENVS))
    with backend(env_fns, on_failure="restart", batch_size=NUM_ENVS) as fleet:
        last = fleet.reset(seed=0)[0]
        for step in range(4):
            fleet.send(actions(step), rows)
            batch = fleet.recv(env_indices=rows)
            if "env_error" in batch.infos:
                np.testing.assert_array_equal(batch.observations[FAULTY], last[FAULTY])
                return
            last = batch.observations
    pytest.fail("nothing failed")


@pytest.mark.parametrize("fault", ["raise", "sigkill"])
def test_send_and_recv(backend: Backend, fault: str, tmp_path: Path) -> None:
    """Asynchronously too: every row sent comes back once, the lost ones truncated."""
    if fault == "sigkill" and not backend.has_processes:
        pytest.skip("would end the tests")
    env_fns = env_fns_with(fault, nth=3, once=once_marker(str(tmp_path)), length=1000, vary=False)
    with backend(env_fns, on_failure="restart", batch_size=1) as fleet:
        fleet.reset(seed=0)
        fleet.send(actions(0))
        counts = np.zeros(NUM_ENVS, int)
        truncations = []
        while counts.min() < 6 and counts.max() < 500:
            batch = fleet.recv(timeout_s=PATIENCE_S)
            index = int(batch.env_indices[0])
            counts[index] += 1
            if batch.truncated[0]:
                truncations.append(index)
                assert batch.infos["restarted"][0]
            elif index > 1:
                assert batch.observations[0, 0] == counts[index]
            fleet.send(np.zeros(1, int), [index])
        assert FAULTY in truncations
        assert set(truncations) <= {0, FAULTY}
        assert len(truncations) == len(set(truncations))
        assert counts.min() >= 6


def test_statistics_of_the_lost_episode(backend: Backend, tmp_path: Path) -> None:
    """The episode that was lost is reported as one that ended, with the return it had."""
    env_fns = env_fns_with("raise", nth=3, once=once_marker(str(tmp_path)), length=50, vary=False)
    _, all_infos = run(backend, env_fns, 4, AutoresetMode.NEXT_STEP, on_failure="restart", record_episodes=True)
    infos = all_infos[2]
    assert infos["_episode"].tolist() == [index == FAULTY for index in range(NUM_ENVS)]
    assert infos["episode"]["l"][FAULTY] == 3
    expected = sum(step + 1 + actions(step)[FAULTY] / 10 for step in range(2))
    assert infos["episode"]["r"][FAULTY] == pytest.approx(expected)


@pytest.mark.parametrize("call", ["get_attr", "set_attr", "get_state"])
def test_a_call_is_lost_but_not_the_fleet(call: str) -> None:
    """A call to a dead worker that cannot be repeated elsewhere fails, and the fleet stays usable."""
    with Backend("process", 2)(env_fns_with("raise", faulty=()), on_failure="restart") as fleet:
        fleet.reset(seed=0)
        os.kill(fleet.stats().workers[0].pid, signal.SIGKILL)
        arguments: dict[str, list[Any]] = {"get_attr": ["count"], "set_attr": ["length", 3]}
        with pytest.raises(WorkerDied) as caught:
            getattr(fleet, call)(*arguments.get(call, []))
        assert "on_failure" not in str(caught.value)
        observations, _, _, truncated, infos = fleet.step(actions(0))
        assert truncated.tolist() == [True, True, False, False]
        assert infos["_restarted"].tolist() == [True, True, False, False]
        assert observations[2:, 0].tolist() == [1, 1]


def test_shared_data_reaches_the_rebuilt_one(backend: Backend) -> None:
    prices = np.arange(3.0)
    with backend(_NeedsPricesEnv, num_envs=2, shared={"prices": prices}, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        fleet.step(actions(0, 2))
        fleet.step(actions(1, 2))
        assert fleet.get_attr("total") == (3.0, 3.0)


class _NeedsPricesEnv(FaultyEnv):
    def __init__(self, *, prices: np.ndarray) -> None:
        super().__init__("raise", nth=1, length=50)
        self.total = float(prices.sum())


def test_a_fault_in_every_one(backend: Backend) -> None:
    """Sub-environments that all fail in one step are all rebuilt in that step."""
    env_fns = env_fns_with("raise", nth=2, faulty=tuple(range(NUM_ENVS)), length=50, vary=False)
    with backend(env_fns, on_failure="restart", max_restarts=NUM_ENVS) as fleet:
        fleet.reset(seed=0)
        fleet.step(actions(0))
        truncated, infos = fleet.step(actions(1))[3:]
        assert truncated.all()
        assert infos["_restarted"].all()
        assert fleet.step(actions(2))[0][:, 0].tolist() == [0] * NUM_ENVS
        assert fleet.step(actions(3))[0][:, 0].tolist() == [1] * NUM_ENVS


# ---------------------------------------------------------------------------------- two things at once, processes only


class _GatedEnv(CountingEnv):
    """Waits in its resets, but for the first, until there is a file; steps stay while the action is 3."""

    def __init__(self, gate: Path, is_gated: bool) -> None:
        super().__init__(50)
        self.gate, self.is_gated, self.resets = gate, is_gated, 0

    def reset(self, **options: Any) -> Any:
        self.resets += 1
        if self.is_gated and self.resets > 1:
            self._stay()
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        if action == 3:
            self._stay()
        return super().step(action)

    def _stay(self) -> None:
        self.gate.with_suffix(".there").touch()
        wait_until(self.gate.exists)


@contextlib.contextmanager
def open_once_replaced(fleet: Any, worker: int, gate: Path) -> Iterator[None]:
    """Kill the worker once an environment waits at the gate; open the gate once a successor has started."""

    def act() -> None:
        wait_until(gate.with_suffix(".there").exists)
        pid = fleet.stats().workers[worker].pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: fleet.stats().workers[worker].pid != pid)
        gate.touch()

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()


def gated(gate: Path, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Any:
    env_fns = [functools.partial(_GatedEnv, gate, index == 0) for index in range(NUM_ENVS)]
    return Backend("process", 2)(env_fns, on_failure="restart", autoreset_mode=mode)


def test_a_death_that_is_seen_while_others_are_reset(tmp_path: Path) -> None:
    """Pending rows of a dead worker are returned as lost; waiting for them never ended."""
    gate = tmp_path / "gate"
    with gated(gate) as fleet:
        fleet.reset(seed=0)
        fleet.send(np.array([3]), [2])
        with open_once_replaced(fleet, 1, gate):
            fleet.reset_envs([0])
        batch = fleet.recv(timeout_s=PATIENCE_S)
        assert batch.env_indices.tolist() == [2]
        assert batch.truncated.tolist() == [True]
        assert "SIGKILL" in batch.infos["env_error"][0]
        truncated, infos = fleet.step(np.zeros(NUM_ENVS, int))[3:]
        assert truncated.tolist() == [False, False, False, True]  # the other one of that worker
        assert infos["_restarted"].tolist() == truncated.tolist()


def test_a_death_after_a_reset_that_waits_for_others(autoreset_mode: AutoresetMode, tmp_path: Path) -> None:
    """Rows that the dead worker had already reset are reset again, without reporting a loss."""
    gate = tmp_path / "gate"
    with gated(gate, autoreset_mode) as fleet:
        fleet.reset(seed=0)
        with open_once_replaced(fleet, 1, gate):
            first, _ = fleet.reset(seed=7)
        observations, _, _, truncated, infos = fleet.step(np.zeros(NUM_ENVS, int))
        with SERIAL([functools.partial(CountingEnv, 50)] * NUM_ENVS) as healthy:
            np.testing.assert_array_equal(first[:, [0, 2]], healthy.reset(seed=7)[0][:, [0, 2]])
            np.testing.assert_array_equal(observations[:, [0, 2]], healthy.step(np.zeros(NUM_ENVS, int))[0][:, [0, 2]])
        assert not truncated.any()
        assert "env_error" not in infos


def test_infos_of_a_lost_row_are_those_of_its_loss(tmp_path: Path) -> None:
    """Numbers that a worker reported before it died in the same step are discarded."""
    env_fns = env_fns_with("sigkill", nth=3, once=once_marker(str(tmp_path)), length=50, vary=False)
    _, all_infos = run(Backend("process", 2), env_fns, 5, AutoresetMode.NEXT_STEP, on_failure="restart")
    for step, infos in enumerate(all_infos):
        is_lost = np.zeros(NUM_ENVS, bool) if step != 2 else np.array([True, True, False, False])
        assert infos.get("_env_error", np.zeros(NUM_ENVS, bool)).tolist() == is_lost.tolist()
        if step == 2:
            assert infos["_draw"].tolist() == [False, False, True, True]
            assert infos["draw"][:2].tolist() == [0, 0]


def test_final_observations_of_lost_rows_that_are_objects(tmp_path: Path) -> None:
    """The last observation of a lost episode is the last that was returned, whatever its space."""
    env_fns = [functools.partial(_FatalTextEnv, index == 0, once_marker(str(tmp_path))) for index in range(2)]
    with Backend("process", 2)(env_fns, on_failure="restart", autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        for _ in range(2):
            before = fleet.step(("a", "a"))[0]
        _, _, _, truncated, infos = fleet.step(("die", "a"))
        assert truncated.tolist() == [True, False]
        assert infos["final_obs"][0] == before[0]


class _FatalTextEnv(SpaceEnv):
    def __init__(self, is_faulty: bool, once: str) -> None:
        super().__init__("text", "text", 2)
        self.is_faulty, self.once = is_faulty, once

    def step(self, action: Any) -> Any:
        if self.is_faulty and action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)
