"""After the loss of its worker, an episode ends once, with the last returned observation, and is reset once."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL, Backend
from tests.fault.programs import is_running
from tests.waiting import PATIENCE_S, wait_until

from envfleet.errors import CallTimeout, SubEnvError
from envfleet.testing import CountingEnv
from envfleet.workers.board import ASKED, DONE

DIE, RAISE, GO = 3, 2, 0


class DeadlyEnv(CountingEnv):
    """Ends its process, or raises, if an action says so."""

    def step(self, action: Any) -> Any:
        if action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == RAISE:
            raise RuntimeError("broken on purpose")
        return super().step(action)


def fleet_of(num_envs: int = 4, workers: int = 2, **options: Any) -> Any:
    return Backend("process", workers)([partial(DeadlyEnv, 50)] * num_envs, **{"on_failure": "restart", **options})


def kill(fleet: Any, worker: int) -> None:
    """Kill a worker and wait for its end."""
    pid = fleet.stats().workers[worker].pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))


def wait_for_rows(fleet: Any) -> None:
    """Wait until workers have done what they were asked."""
    lines = fleet.engine._pool.lines
    wait_until(lambda: all(line[DONE] == line[ASKED] for line in lines))


def test_a_lost_row_is_reset_once() -> None:
    """The reset of the row that was lost in its step ran again, as the other row of its worker was lost too."""
    with fleet_of(autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        fleet.send(np.array([DIE]), [2])
        first = fleet.recv(env_indices=[2]).observations[0]
        assert first[:2].tolist() == [0, 1]
        observations, _, _, truncated, infos = fleet.step(np.zeros(4, int))
        assert observations[2][:2].tolist() == [1, 1]
        assert truncated.tolist() == infos["_env_error"].tolist() == [False, False, False, True]


def test_two_losses_of_a_row_are_reported_once() -> None:
    """The second worker was lost before its episode was seen; the step after the report reported it again."""
    with fleet_of(4, workers=1, autoreset_mode="NEXT_STEP") as fleet:
        fleet.reset(seed=0)
        kill(fleet, 0)
        fleet.reset_envs([2, 3])
        kill(fleet, 0)
        assert fleet.step(np.zeros(4, int))[4]["_env_error"].all()
        observations, *_, infos = fleet.step(np.zeros(4, int))
        assert "env_error" not in infos
        assert (observations[:, 0] == 0).all()


def test_a_loss_elsewhere_repeats_no_reset() -> None:
    with fleet_of(2, autoreset_mode="DISABLED") as fleet:
        fleet.reset(seed=0)
        kill(fleet, 1)
        fleet.send(np.zeros(1, int), [1])
        fleet.recv(env_indices=[1])
        kill(fleet, 1)
        observations, infos = fleet.reset_envs([0])
        assert (observations[0, 1], infos["episodes"][0]) == (2, 2)
        fleet.reset_envs([1])
        assert fleet.step(np.zeros(2, int))[0][:, 1].tolist() == [2, 1]


@pytest.mark.parametrize("size", [1, 1 << 16])
def test_the_last_observation_is_the_one_that_was_shown(autoreset_mode: AutoresetMode, size: int) -> None:
    """With halves that step in turn, the observation of the step under way stood where the last one should."""
    env_fns = [partial(_WritingEnv, size)] * 4
    options: Any = {"on_failure": "restart", "autoreset_mode": autoreset_mode}
    with Backend("process", 2)(env_fns, **options) as fleet:
        fleet.reset(seed=0)
        for rows in ([0, 1], [2, 3]):
            fleet.send(np.zeros(2, int), rows)
        shown = {rows[0]: fleet.recv(env_indices=rows).observations for rows in ([0, 1], [2, 3])}
        fleet.send(np.array([GO, DIE]), [2, 3])  # the first of them has written its next observation by then
        fleet.send(np.array([GO, GO]), [0, 1])
        batch = fleet.recv(env_indices=[2, 3])
        assert batch.truncated.tolist() == [True, True]
        is_same = autoreset_mode is AutoresetMode.SAME_STEP
        for place in range(2):
            last = batch.infos["final_obs"][place] if is_same else {k: v[place] for k, v in batch.observations.items()}
            np.testing.assert_equal(last, {name: part[place] for name, part in shown[2].items()})
        assert fleet.recv(env_indices=[0, 1]).observations["first"][:, 0].tolist() == [2, 2]


class _WritingEnv(DeadlyEnv):
    """Dies, or fails, with the second part of its observation, when the first is written."""

    def __init__(self, size: int) -> None:
        super().__init__(50)
        box = spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.observation_space = spaces.Dict({"first": box, "second": box})
        self.size = size

    def observe(self) -> Any:
        parts: dict[str, Any] = dict.fromkeys(("first", "second"), np.full(self.size, float(self.count)))
        broken: dict[int, Any] = {DIE: {"second": _Deadly()}, RAISE: {"second": np.zeros(self.size + 1)}}
        return {**parts, **broken.get(self.action, {})}

    def step(self, action: Any) -> Any:
        return CountingEnv.step(self, action)


class _Deadly:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_partial", [False, True])
@pytest.mark.parametrize("backend", [SERIAL, Backend("thread", 2), Backend("process", 2)], ids=str)
def test_no_half_of_an_observation_that_does_not_fit(
    backend: Backend, is_partial: bool, autoreset_mode: AutoresetMode
) -> None:
    with backend([partial(_WritingEnv, 2)] * 4, on_failure="restart", autoreset_mode=autoreset_mode) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(4, int))
        actions = np.array([GO, RAISE, GO])
        if is_partial:
            fleet.send(actions, [0, 1, 2])
            observations, _, _, truncated, infos = fleet.recv(env_indices=[0, 1, 2])[:5]
        else:
            observations, _, _, truncated, infos = fleet.step([*actions, GO])
        assert truncated[:3].tolist() == [False, True, False]
        is_same = autoreset_mode is AutoresetMode.SAME_STEP
        last = infos["final_obs"][1] if is_same else {name: part[1] for name, part in observations.items()}
        np.testing.assert_equal(last, {"first": np.ones(2), "second": np.ones(2)})


def test_a_whole_step_while_another_worker_rebuilds(autoreset_mode: AutoresetMode) -> None:
    """A row that is lost in such a step ends with what was shown before it."""
    with fleet_of(autoreset_mode=autoreset_mode) as fleet:
        fleet.reset(seed=0)
        kill(fleet, 0)
        before = fleet.step(np.zeros(4, int))[0]
        if autoreset_mode is AutoresetMode.DISABLED:
            fleet.reset_envs([0, 1])
        observations, _, _, truncated, infos = fleet.step(np.array([GO, GO, GO, DIE]))
        assert truncated[2:].tolist() == [True, True]
        last = infos["final_obs"][2:] if autoreset_mode is AutoresetMode.SAME_STEP else observations[2:]
        np.testing.assert_array_equal(np.stack(list(last)), before[2:])


def test_states_are_brought_back_to_successors() -> None:
    """A state replaces all that was lost; rows of other workers were changed, and their episodes were not."""
    with fleet_of() as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(4, int))
        states, lengths = fleet.get_state(), fleet.episode_lengths
        expected = fleet.step(np.ones(4, int))[0]
        kill(fleet, 1)
        assert fleet.set_state(states)[:, 0].tolist() == [1] * 4
        np.testing.assert_array_equal(fleet.episode_lengths, lengths)
        observations, _, _, truncated, infos = fleet.step(np.ones(4, int))
        np.testing.assert_array_equal(observations, expected)
        assert not truncated.any()
        assert "env_error" not in infos


def test_states_that_fit_only_in_part() -> None:
    """Rows with an accepted state continue from it; rows with a refused state continue as before."""
    with fleet_of(2, workers=1) as fleet, Backend("process", 1)([CountingEnv] * 2) as other:
        for one in (fleet, other):
            one.reset(seed=0)
            one.step(np.zeros(2, int))
        states = fleet.get_state()
        fleet.step(np.zeros(2, int))
        with pytest.raises(SubEnvError) as caught:
            fleet.set_state([states[0], other.get_state()[1]])
        assert [failure.env_index for failure in caught.value.failures] == [1]
        assert fleet.episode_lengths.tolist() == [1, 2]
        assert fleet.step(np.zeros(2, int))[0][:, 0].tolist() == [2, 3]


def test_a_death_names_the_seed_of_the_rebuilt_one() -> None:
    with fleet_of(workers=1, num_envs=2) as fleet:
        fleet.reset(seed=7)
        errors = [fleet.step(np.array([GO, DIE]))[4]["env_error"][0]]
        fleet.step(np.zeros(2, int))
        seeds = fleet.np_random_seed
        errors.append(fleet.step(np.array([GO, DIE]))[4]["env_error"][0])
    assert "0 after 0 steps, last seeded with 7; 1 after 0 steps, last seeded with 8" in errors[0]
    assert f"0 after 0 steps, last seeded with {seeds[0]}; 1 after 0 steps, last seeded with {seeds[1]}" in errors[1]


def test_a_death_names_the_seed_of_a_rebuilt_sub_env() -> None:
    with fleet_of(workers=1, num_envs=2) as fleet:
        fleet.reset(seed=7)
        fleet.step(np.array([RAISE, GO]))
        fleet.step(np.zeros(2, int))
        seed = fleet.np_random_seed[0]
        assert seed != 7
        error = fleet.step(np.array([GO, DIE]))[4]["env_error"][0]
    assert f"0 after 0 steps, last seeded with {seed}; 1 after 2 steps, last seeded with 8" in error


def test_a_state_has_no_seed_to_name() -> None:
    """The generator is the state's, whatever this fleet was seeded with."""
    with fleet_of(workers=1, num_envs=2) as fleet:
        fleet.reset(seed=7)
        states = fleet.get_state([0])
        fleet.set_state(states, [0])
        error = fleet.step(np.array([GO, DIE]))[4]["env_error"][0]
        assert "0 after 0 steps; 1 after 0 steps, last seeded with 8" in error


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_failure_is_told_to_the_call_that_asks_for_its_row(is_whole: bool) -> None:
    """`recv` of some rows raised what others had done."""
    with fleet_of(on_failure="raise") as fleet:
        fleet.reset(seed=0)
        for actions, rows in (([GO, RAISE], [0, 1]), ([GO, GO], [2, 3])) if not is_whole else ():
            fleet.send(np.array(actions), rows)
        if is_whole:
            fleet.send(np.array([GO, RAISE, GO, GO]))
        wait_for_rows(fleet)
        assert fleet.recv(env_indices=[2, 3], timeout_s=PATIENCE_S).observations[:, 0].tolist() == [1, 1]
        assert fleet.recv(env_indices=[0], timeout_s=PATIENCE_S).observations[:, 0].tolist() == [1]
        with pytest.raises(SubEnvError, match="sub-environment 1 "):
            fleet.recv(env_indices=[1], timeout_s=PATIENCE_S)


def test_unreadable_infos_fail_only_calls_for_their_row() -> None:
    with Backend("process", 2)([partial(_StrangeEnv, row == 0) for row in range(2)]) as fleet:
        fleet.reset(seed=0)
        fleet.send(np.zeros(1, int), [0])
        fleet.send(np.zeros(1, int), [1])
        wait_for_rows(fleet)
        assert fleet.recv(env_indices=[1], timeout_s=PATIENCE_S).observations[:, 0].tolist() == [1]
        with pytest.raises(Exception, match="cannot be unpickled here"):
            fleet.recv(env_indices=[0], timeout_s=PATIENCE_S)


class _Unreadable:
    def __reduce__(self) -> Any:
        return _refuse_here, (os.getpid(),)


def _refuse_here(pid: int) -> Any:
    """Return a copy in the process that pickled it, and raise elsewhere."""
    if os.getpid() != pid:
        raise ValueError("not here")
    return _Unreadable()


class _StrangeEnv(CountingEnv):
    def __init__(self, is_strange: bool) -> None:
        super().__init__(50)
        self.is_strange = is_strange

    def step(self, action: Any) -> Any:
        *values, info = super().step(action)
        return *values, {"strange": _Unreadable()} if self.is_strange else info


def test_two_deaths_at_once_are_both_seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a second worker, while the first is replaced, was noticed a quarter of `start_timeout_s` later."""
    with fleet_of(start_timeout_s=300) as fleet:
        fleet.reset(seed=0)
        transport = fleet.engine._pool.transport
        replace = transport.replace

        def replace_late(worker: int, plan: Any) -> None:
            if worker == 0:
                kill(fleet, 1)
            replace(worker, plan)

        monkeypatch.setattr(transport, "replace", replace_late)
        kill(fleet, 0)
        os.kill(fleet.stats().workers[1].pid, signal.SIGSTOP)  # so that it is still at work then
        assert fleet.step(np.zeros(4, int))[3].all()


def test_numbers_of_a_step_survive_the_death_of_its_worker() -> None:
    """A successor cleared the infos of a row that had stepped before its worker died, and was received after that."""
    with fleet_of() as fleet:
        fleet.reset(seed=0)
        expected = [fleet.step(np.zeros(4, int))[4]["draw"] for _ in range(2)]
        assert (expected[0] != expected[1]).all()
        fleet.send(np.zeros(1, int), [2])
        for action in (GO, DIE):
            fleet.send(np.array([action]), [3])
            fleet.recv(env_indices=[3])  # which sees that the other one is done, too
        fleet.reset_envs([3])
        batch = fleet.recv(env_indices=[2])
        assert batch.truncated.tolist() == [False]
        assert batch.infos["_draw"].tolist() == [True]
        assert batch.infos["draw"][0] == batch.observations[0, 2]


def test_actions_that_cannot_be_read_are_refused_by_row() -> None:
    """The row was waited for without end."""
    env_fns = [partial(_TextActionEnv, 50)] * 2
    with Backend("process", 2)(env_fns) as fleet:
        fleet.reset(seed=0)
        fleet.send((_UnreadableText("a"),), [1])
        with pytest.raises(SubEnvError, match="cannot be unpickled in worker 1"):
            fleet.recv(env_indices=[1], timeout_s=PATIENCE_S)


class _TextActionEnv(CountingEnv):
    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.action_space = spaces.Text(3)

    def step(self, action: Any) -> Any:
        return super().step(0)


class _UnreadableText(str):
    __slots__ = ()

    def __reduce__(self) -> Any:
        return _refuse_here, (os.getpid(),)


class GatedEnv(DeadlyEnv):
    """Can be built again only once there is a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(50)
        wait_until(lambda: not (folder / "built").exists() or (folder / "open").exists())
        (folder / "built").touch()


@pytest.mark.parametrize("is_whole", [True, False], ids=["all", "some"])
def test_timeout_of_recv_bounds_the_wait_for_a_rebuild(is_whole: bool, tmp_path: Path) -> None:
    env_fns = [partial(DeadlyEnv, 50), partial(GatedEnv, tmp_path)]
    with Backend("process", 2)(env_fns, on_failure="restart", autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        rows = [0, 1] if is_whole else [1]
        fleet.send(np.array([GO, DIE])[rows], rows)
        for _ in range(2):
            with pytest.raises(CallTimeout, match=r"0\.3"):
                fleet.recv(timeout_s=0.3, env_indices=rows)
        (tmp_path / "open").touch()
        batch = fleet.recv(env_indices=rows)
        assert (batch.truncated[-1], batch.observations[-1][:2].tolist()) == (True, [0, 1])
        assert fleet.reset(seed=0)[0][:, 0].tolist() == [0, 0]


def test_recycling_counts_episodes_of_the_successor_only() -> None:
    with fleet_of(1, 1, recycle_episodes=2) as fleet:
        pids = [fleet.stats().workers[0].pid]
        fleet.reset(seed=0)
        end_episode(fleet)
        fleet.reset_envs([0])
        kill(fleet, 0)
        assert fleet.step(np.zeros(1, int))[3].tolist() == [True]
        for _ in range(3):
            fleet.reset_envs([0])
            pids.append(fleet.stats().workers[0].pid)
            end_episode(fleet)
        assert pids[0] != pids[1] == pids[2] != pids[3]


def end_episode(fleet: Any) -> None:
    while not fleet.terminated_indices:
        fleet.step(np.zeros(fleet.num_envs, int))
