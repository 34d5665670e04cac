"""Features for long runs: recycling, shared data, saved states, replay files."""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.vector import AutoresetMode
from tests.conftest import BACKENDS, Backend
from tests.fault.builders import FAULTY, NUM_ENVS, actions, env_fns_with, receive_often, reset_and_step, run
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import InvalidArgument, StateUnsupported, SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.envs import LockedEnv, SavableEnv
from envfleet.workers.replay import replay

# ------------------------------------------------------------------------------------------------ recycling


PROCESS = Backend("process", NUM_ENVS)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name.lower())
def test_recycling_changes_no_trajectory(mode: AutoresetMode) -> None:
    """Workers are replaced at episode ends; observations, rewards and flags are those of a run without."""
    env_fns = [functools.partial(CountingEnv, 2 + index) for index in range(NUM_ENVS)]
    expected, _ = run(Backend("serial"), env_fns, 20, mode)
    actual, _ = run(PROCESS, env_fns, 20, mode, recycle_episodes=2)
    for index in range(NUM_ENVS):
        lengths = [[int(row[0][0]) for row in rows[index]] for rows in (expected, actual)]
        assert lengths[0] == lengths[1]
        assert [row[1:] for row in expected[index]] == [row[1:] for row in actual[index]]


def test_recycling_replaces_processes() -> None:
    env_fns = [functools.partial(CountingEnv, 3)] * NUM_ENVS
    with PROCESS(env_fns, recycle_episodes=2) as fleet:
        fleet.reset(seed=0)
        before = [worker.pid for worker in fleet.stats().workers]
        for step in range(30):
            fleet.step(actions(step))
        after = [worker.pid for worker in fleet.stats().workers]
        assert not set(before) & set(after)
        assert fleet.stats().restarts == 0  # nothing failed


def test_recycling_between_episodes_only() -> None:
    for options in ({"autoreset_mode": "SAME_STEP"}, {"workers": 2}):
        with pytest.raises(InvalidArgument, match=r"only be replaced between episodes, so pass envs_per_worker=1 and"):
            PROCESS([CountingEnv] * NUM_ENVS, recycle_episodes=2, **options)


def test_each_is_closed_once(backend: Backend, tmp_path: Path) -> None:
    """However often they were rebuilt: as many were closed as were built."""
    with backend([functools.partial(_FailingTallyEnv, str(tmp_path))] * 3, on_failure="restart") as fleet:
        reset_and_step(fleet, 4, num_envs=3)
        assert fleet.stats().restarts >= 3
    built, closed = (len(list(tmp_path.glob(f"{what}-*"))) for what in ("built", "closed"))
    assert built == closed >= 6


class _TallyEnv(CountingEnv):
    def __init__(self, folder: str) -> None:
        super().__init__(2)
        self.folder = folder
        Path(folder, f"built-{id(self)}-{time.monotonic_ns()}").touch()

    def close(self) -> None:
        Path(self.folder, f"closed-{id(self)}-{time.monotonic_ns()}").touch()


class _FailingTallyEnv(_TallyEnv):
    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.left = 3

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        if not self.left:
            raise RuntimeError("third step")
        return super().step(action)


# ------------------------------------------------------------------------------------------------ shared data


class _MarketEnv(CountingEnv):
    def __init__(self, prices: np.ndarray) -> None:
        super().__init__()
        self.prices = prices

    def price(self, place: int) -> float:
        return float(self.prices[place])

    def is_writable(self) -> bool:
        return bool(self.prices.flags.writeable)

    def overwrite(self) -> None:
        self.prices[0] = 1.0

    def mapping(self) -> tuple[str, str]:
        """Mode and inode of the mapped memory that holds the prices, by the kernel's account."""
        address = self.prices.ctypes.data
        for line in Path("/proc/self/maps").read_text().splitlines():
            bounds, mode, _, _, inode, *_ = line.split()
            start, stop = (int(bound, 16) for bound in bounds.split("-"))
            if start <= address and address + self.prices.nbytes <= stop:
                return mode, inode
        raise LookupError("no mapping holds the prices whole")


def _market(prices: np.ndarray) -> _MarketEnv:
    return _MarketEnv(prices)


def test_shared_data(backend: Backend) -> None:
    prices = np.arange(1000, dtype=np.float64)
    with backend(_market, num_envs=3, shared={"prices": prices}) as fleet:
        assert fleet.call("price", 7) == (7.0, 7.0, 7.0)
        assert fleet.call("is_writable") == (False, False, False)
        with pytest.raises(SubEnvError, match="read-only"):
            fleet.call("overwrite")
        fleet.reset(seed=0)
    assert prices[0] == 0.0
    assert prices.flags.writeable


def test_shared_data_is_in_memory_once() -> None:
    prices = np.ones(12_000_000)  # 96 MB
    with Backend("process", 2)(_market, num_envs=4, shared={"prices": prices}) as fleet:
        mappings = fleet.call("mapping")
    assert len(set(mappings)) == 1
    assert mappings[0][0].endswith("s")


def test_shared_data_nobody_asks_for(backend: Backend) -> None:
    with pytest.raises(ValueError, match="prices"):
        backend([CountingEnv] * 2, shared={"prices": np.ones(3)})


# ------------------------------------------------------------------------------------------------ states


@pytest.mark.parametrize("env_class", [CountingEnv, SavableEnv])
def test_a_restored_run_is_bit_equal(env_class: type[CountingEnv], autoreset_mode: AutoresetMode) -> None:
    """Saved on one backend in mid-episode, restored on every other, twice."""
    env_fns = [functools.partial(env_class, 4, vary=True, ends="alternate")] * 3

    def go_on(fleet: Any) -> list[Any]:
        rows = []
        for step in range(10):
            if autoreset_mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                fleet.reset_envs(fleet.terminated_indices)
            observations, rewards, terminated, truncated, _ = fleet.step(actions(step, 3))
            rows.append(np.column_stack([observations, rewards, terminated, truncated]))
        return rows

    with Backend("process", 2)(env_fns, autoreset_mode=autoreset_mode) as fleet:
        fleet.reset(seed=3)
        for step in range(3):
            if autoreset_mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                fleet.reset_envs(fleet.terminated_indices)
            fleet.step(actions(step, 3))
        states = fleet.get_state()
        expected = go_on(fleet)
    for backend in BACKENDS:
        with backend(env_fns, autoreset_mode=autoreset_mode) as fleet:
            fleet.reset(seed=99)
            fleet.step(actions(0, 3))
            for _ in range(2):
                fleet.set_state(states)
                np.testing.assert_array_equal(go_on(fleet), expected)


def test_states_go_anywhere(backend: Backend) -> None:
    """A state of one sub-environment may be put into others: to explore from one point in several ways."""
    with backend([functools.partial(CountingEnv, 9)] * 3) as fleet:
        fleet.reset(seed=0)
        fleet.step(actions(0, 3))
        (state,) = fleet.get_state([2])
        fleet.set_state([state, state], [0, 1])
        observations, *_ = fleet.step(np.array([1, 1, 1]))
        assert observations[0].tolist() == observations[1].tolist() == observations[2].tolist()


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1]], ids=["all", "all_in_another_order"])
def test_restoring_all_ends_what_a_failure_left_under_way(backend: Backend, order: list[int] | None) -> None:
    """Rows of a failed send were returned instead of those sent after the states were restored."""
    with backend(env_fns_with("raise", nth=2, length=50, vary=False), batch_size=1) as fleet:
        reset_and_step(fleet)
        saved = fleet.get_state(order)
        with pytest.raises(SubEnvError):
            receive_often(fleet)
        assert fleet.set_state(saved, order)[:, 0].tolist() == [1] * NUM_ENVS
        fleet.send(actions(0, 1), [3])
        assert fleet.recv(timeout_s=PATIENCE_S).env_indices.tolist() == [3]


class _OtherCartPole(CartPoleEnv):
    """Another class with observations of the same form."""


def test_states_of_other_environments_change_nothing(backend: Backend) -> None:
    """Of another class, and of the same where observations have another form."""
    others: list[tuple[type[Exception], str, Any]] = [
        (SubEnvError, "of <.*OtherCartPole.*expected one of <.*CartPole", _OtherCartPole),
        (InvalidArgument, r"\(6,\).*pass states of the same environment", lambda: gym.make("Acrobot-v1")),
        (InvalidArgument, r"\(2, 4\)", lambda: gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2)),
    ]
    with backend([lambda: gym.make("CartPole-v1")] * 2) as fleet:
        fleet.reset(seed=0)
        saved = fleet.get_state()
        expected = fleet.step(np.array([0, 1]))[0]
        for error, words, make in others:
            fleet.set_state(saved)
            with backend([make] * 2) as other:
                other.reset(seed=0)
                states = other.get_state()
            with pytest.raises(error, match=words):
                fleet.set_state(states)
            np.testing.assert_array_equal(fleet.step(np.array([0, 1]))[0], expected)


def test_no_state_to_be_had(backend: Backend) -> None:
    """A lock and a running generator raise a clear error, and the fleet stays usable."""
    with backend([LockedEnv] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises((StateUnsupported, SubEnvError), match="get_state") as caught:
            fleet.get_state()
        error = caught.value
        assert isinstance(error, StateUnsupported) or isinstance(error.__cause__, StateUnsupported)
        assert fleet.step(actions(0, 2))[0][:, 0].tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------ replay


def test_replay_file(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names a file that runs the failing episode again, with no fleet around it."""
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    env_fns = env_fns_with("raise", nth=4, length=50, vary=False)
    with backend(env_fns) as fleet, pytest.raises(SubEnvError) as caught:
        reset_and_step(fleet, 4, seed=5)
    path = caught.value.replay_file
    assert path is not None
    assert Path(path).parent == tmp_path
    assert f"envfleet replay {path}" in str(caught.value)
    announced: list[str] = []
    report = replay(path, announced.append)
    assert report.reproduced
    assert "PlainError" in report.text
    assert "PlainError in step after 3 steps of its episode: " in announced[0]
    assert "failed in step after 3 steps of its episode, last seeded with 6" in str(caught.value)


def test_replay_of_a_later_episode(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An episode without a seed is replayed from the generator's state."""
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    env_fns = [functools.partial(_UnluckyEnv, index == FAULTY) for index in range(2)]
    with backend(env_fns) as fleet, pytest.raises(SubEnvError) as caught:
        reset_and_step(fleet, 500, num_envs=2, seed=1)
    assert caught.value.replay_file is not None
    report = replay(caught.value.replay_file)
    assert report.reproduced, report.text


class _UnluckyEnv(CountingEnv):
    """Fails at an unlucky draw, some episodes in."""

    def __init__(self, is_faulty: bool) -> None:
        super().__init__(4)
        self.is_faulty = is_faulty

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self.is_faulty and self.draw > 0.97:
            raise ArithmeticError(f"unlucky: {self.draw}")
        return result


def test_replay_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    with envfleet.make(functools.partial(FaultyEnv, "raise"), num_envs=1, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step(np.zeros(1, int))
    command = Path(sys.executable).with_name("envfleet")
    arguments = [str(command), "replay", str(caught.value.replay_file)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "PlainError" in result.stdout + result.stderr
