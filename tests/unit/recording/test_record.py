from __future__ import annotations

import contextlib
import errno
import functools
import gc
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage
from tests.fleets import LOCAL_FLEETS
from tests.unit.recording.counting import Counting, check_counting

import envfleet
from envfleet.errors import CallPending, FleetClosed, InvalidArgument
from envfleet.recording import episodes as cutting
from envfleet.recording.dataset import Dataset

MODES = [pytest.param(mode, id=mode.name.lower()) for mode in AutoresetMode]


def read(path: Path) -> list[Any]:
    return list(minari.MinariDataset(path / "data").iterate_episodes())


def counters(count: int) -> list[Any]:
    return [functools.partial(Counting, row) for row in range(count)]


def step_and_reset(fleet: Any, actions: Any) -> Any:
    """Step a fleet; reset what has ended if the fleet does not."""
    result = fleet.step(actions)
    ended = result[2] | result[3]
    if fleet.autoreset_mode is AutoresetMode.DISABLED and ended.any():
        fleet.reset(options={"reset_mask": ended})
    return result


def is_out(observation: Any) -> bool:
    """Return whether CartPole ends with this observation."""
    return bool(abs(observation[0]) > 2.4 or abs(observation[2]) > 12 * 2 * np.pi / 360)


@pytest.mark.parametrize("make_fleet", LOCAL_FLEETS)  # tests/remote has that of a service
def test_episodes_are_whole_on_every_fleet(make_fleet: Any, autoreset_mode: Any, tmp_path: Path) -> None:
    path, limit = tmp_path / "cartpole", 30
    with make_fleet(num_envs=3, autoreset_mode=autoreset_mode, max_episode_steps=limit) as fleet:
        recording = envfleet.record(fleet, path)
        fleet.reset(seed=7)
        fleet.action_space.seed(7)
        for _ in range(100):
            step_and_reset(fleet, fleet.action_space.sample())
    dataset = minari.MinariDataset(path / "data")
    episodes = list(dataset.iterate_episodes())
    assert dataset.total_episodes == recording.num_episodes == len(episodes) > 6
    assert dataset.total_steps == recording.num_steps == sum(len(episode.rewards) for episode in episodes)
    assert 300 - dataset.total_episodes <= dataset.total_steps <= 300
    unfinished = 0
    for episode in episodes:
        count = len(episode.rewards)
        assert episode.observations.shape == (count + 1, 4)
        assert not any(is_out(one) for one in episode.observations[:-1])
        assert bool(episode.terminations[-1]) == is_out(episode.observations[-1])
        assert bool(episode.truncations[-1]) or bool(episode.terminations[-1])
        unfinished += count < limit and not episode.terminations[-1]
    assert unfinished <= 3
    seeds = [one.get("seed") for one in dataset.storage.get_episode_metadata(range(len(episodes)))]
    assert sorted(seed for seed in seeds if seed is not None) == [7, 8, 9]
    env = gym.make("CartPole-v1")
    for seed, episode in zip(seeds, episodes, strict=True):
        if seed is not None:
            observations = [env.reset(seed=seed)[0], *(env.step(action)[0] for action in episode.actions)]
            assert np.array_equal(observations, episode.observations)
    env.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most_steps", [2, 3, 500])
def test_every_step_of_every_episode(mode: Any, most_steps: int, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cutting, "_MOST_STEPS", most_steps)
    with envfleet.make(counters(4), backend="serial", autoreset_mode=mode) as fleet:
        with envfleet.record(fleet, tmp_path / "counting"):
            fleet.reset()
            for t in range(90):
                step_and_reset(fleet, np.arange(4) + 10 * t)
        numbers = dict(zip(range(4), fleet.get_attr("episode"), strict=True))
        times = fleet.get_attr("t")
    cut = {(row, number) for row, number in numbers.items() if 0 < times[row] <= (3 * row + number) % 7}
    played = check_counting(read(tmp_path / "counting"), cut)
    begun = {(row, number) for row, number in numbers.items() if times[row] > 0}
    assert played == {(row, k) for row, number in numbers.items() for k in range(number)} | begun


@pytest.mark.parametrize("mode", MODES)
def test_partial_steps(mode: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(cutting, "_MOST_STEPS", 4)
    with envfleet.make(counters(5), backend="thread", workers=2, autoreset_mode=mode, batch_size=2) as fleet:
        recording = envfleet.record(fleet, tmp_path / "counting")
        fleet.reset()
        fleet.send(np.zeros(5, np.int64))
        for k in range(200):
            batch = fleet.recv()
            rows, ended = batch.env_indices, batch.terminated | batch.truncated
            if mode is AutoresetMode.DISABLED and ended.any():
                fleet.reset_envs(rows[ended])
            fleet.send(rows + 3 * k, rows)
        fleet.recv(env_indices=np.arange(5))
        numbers = fleet.get_attr("episode")
        recording.close()
    episodes = read(tmp_path / "counting")
    last = {(row, number) for row, number in enumerate(numbers)}
    cut = {key for key in last if key not in _finished(episodes)}
    played = check_counting([one for one in episodes if len(one.rewards)], cut)
    assert {(row, k) for row, number in enumerate(numbers) for k in range(number)} <= played


def _finished(episodes: list[Any]) -> set[tuple[int, int]]:
    numbers = [tuple(one.observations[0][:2].astype(int).tolist()) for one in episodes]
    return {(r, n) for (r, n), one in zip(numbers, episodes, strict=True) if len(one.rewards) == (3 * r + n) % 7 + 1}


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("backend", ["kernel", "serial"])
def test_rollouts(backend: Any, mode: Any, tmp_path: Path) -> None:
    env = "envfleet/CartPole-v1" if backend == "kernel" else "CartPole-v1"
    with envfleet.make(env, 3, backend=backend, autoreset_mode=mode) as fleet:
        fleet.reset(seed=1)
        with envfleet.record(fleet, tmp_path / "stepped"):
            fleet.reset(seed=1)
            rollout = fleet.rollout("random", 60, seed=5)
        with envfleet.record(fleet, tmp_path / "played"):
            fleet.reset(seed=1)
            for actions in rollout.actions:
                fleet.step(actions)
    episodes, others = read(tmp_path / "stepped"), read(tmp_path / "played")
    assert len(episodes) == len(others) > 3
    for one, other in zip(episodes, others, strict=True):
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("mode", MODES)
def test_the_step_that_fails_is_left_out(mode: Any, tmp_path: Path) -> None:
    env_fns: list[Any] = [Counting, functools.partial(Counting, 1, (0, 3)), functools.partial(Counting, 2, (0, 1))]
    with envfleet.make(
        env_fns, backend="serial", on_failure="restart", autoreset_mode=mode, max_restarts=1000
    ) as fleet:
        recording = envfleet.record(fleet, tmp_path / "counting")
        fleet.reset()
        for t in range(4):
            step_and_reset(fleet, np.arange(3) + 10 * t)
        recording.close()
    episodes = read(tmp_path / "counting")
    of_the_second = [one for one in episodes if one.observations[0][0] == 1]
    assert len(of_the_second[0].rewards) == 2
    assert of_the_second[0].truncations.tolist() == [False, True]
    assert of_the_second[0].observations[:, 2].tolist() == [0, 1, 2]
    assert not [one for one in episodes if one.observations[0][0] == 2]  # its first step always fails


def test_a_reset_in_the_middle_truncates(tmp_path: Path) -> None:
    with envfleet.make([lambda: Counting(1)] * 2, backend="serial") as fleet:  # episodes of 4, 5, 6 steps
        fleet.reset()
        fleet.step(np.zeros(2, np.int64))
        recording = envfleet.record(fleet, tmp_path / "counting")
        fleet.step(np.zeros(2, np.int64))  # of episodes that began before the recording
        fleet.reset(options={"reset_mask": np.array([True, False])})
        for _ in range(2):
            fleet.step(np.zeros(2, np.int64))
        fleet.reset()
        fleet.step(np.zeros(2, np.int64))
        assert recording.num_episodes == 1
        assert repr(recording).endswith("counting: 1 episodes, 2 steps, open>")
        recording.close()
        recording.close()
        fleet.step(np.zeros(2, np.int64))
    episodes = read(tmp_path / "counting")
    assert [len(one.rewards) for one in episodes] == [2, 1, 1]
    assert [one.truncations[-1] for one in episodes] == [True] * 3


class Nested(gym.Env[Any, Any]):
    observation_space = gym.spaces.Dict(
        {
            "picture": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8),
            "pair": gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.MultiBinary(2)]),
        }
    )
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.Box(-1, 1, (2,), np.float32)])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.5, False, bool(self.np_random.random() < 0.1), {}


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, tuple):
        for parts in zip(one, other, strict=True):
            assert_same(*parts)
    else:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert np.array_equal(one, other)


def test_files_are_those_of_minaris_own_writer(tmp_path: Path) -> None:
    with envfleet.make(Nested, 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        fleet.action_space.seed(3)
        with envfleet.record(fleet, tmp_path / "ours"):
            fleet.reset(seed=3)
            for _ in range(40):
                fleet.step(fleet.action_space.sample())
        spaces = fleet.single_observation_space, fleet.single_action_space
    ours = read(tmp_path / "ours")
    (tmp_path / "theirs").mkdir()
    storage = MinariStorage.new(tmp_path / "theirs" / "data", *spaces, jpeg_encoding=False)
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    storage.update_episodes([EpisodeBuffer(**{name: getattr(one, name) for name in names}) for one in ours])
    storage.update_metadata({"dataset_id": "nested-v0", "minari_version": minari.__version__})
    theirs = read(tmp_path / "theirs")
    assert len(ours) == len(theirs) > 2
    for one, other in zip(ours, theirs, strict=True):
        for name in names:
            assert_same(getattr(one, name), getattr(other, name))
    meta = [MinariStorage.read(tmp_path / name / "data").metadata for name in ("ours", "theirs")]
    for name in ("total_episodes", "total_steps", "data_format", "observation_space", "action_space"):
        assert meta[0][name] == meta[1][name]


def test_minari_finds_it_by_its_id(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        with envfleet.record(
            fleet,
            tmp_path / "cartpole" / "random-v3",
            dataset_id="cartpole/random-v3",
            author="Ann",
            author_email="ann@example.org",
            algorithm_name="random",
            description="balance",
            code_permalink="none",
        ):
            fleet.reset(seed=0)
            fleet.rollout("random", 50, seed=0)
        assert not fleet.closed
    dataset = minari.load_dataset("cartpole/random-v3")
    assert dataset.id == "cartpole/random-v3"
    assert dataset.env_spec is not None
    assert dataset.env_spec.id == "CartPole-v1"
    metadata = dataset.storage.metadata
    assert (metadata["author"], metadata["algorithm_name"]) == ({"Ann"}, "random")
    dataset.recover_environment().close()
    assert "cartpole/random-v3" in minari.list_local_datasets()


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        for path, keywords, message in (
            (tmp_path, {}, "exists: pass a path"),
            (tmp_path / "new", {"dataset_id": "a b"}, "dataset_id='a b': pass an id such as"),
            (tmp_path / "a b", {}, "dataset_id='a b'"),
        ):
            with pytest.raises(InvalidArgument, match=message):
                envfleet.record(fleet, path, **keywords)
        with pytest.raises(InvalidArgument, match="fleet is of type str"):
            envfleet.record("fleet", tmp_path / "new")  # type: ignore[arg-type]
        fleet.reset(seed=0)
        state = fleet.get_state()
        with envfleet.record(fleet, tmp_path / "new"):
            with pytest.raises(InvalidArgument, match="is recorded already"):
                envfleet.record(fleet, tmp_path / "other")
            with pytest.raises(InvalidArgument, match=r"set_state\(\) during a recording"):
                fleet.set_state(state)
            fleet.step([0, 1])  # of lists, and the fleet is unharmed
        fleet.set_state(state)
    with pytest.raises(FleetClosed):
        envfleet.record(fleet, tmp_path / "other")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["new"]
    assert len(minari.MinariDataset(tmp_path / "new" / "data")) == 0

    class Text(Counting):
        observation_space: Any = gym.spaces.Text(5)

    with (
        envfleet.make(Text, 1, backend="serial") as fleet,
        pytest.raises(InvalidArgument, match="has no fixed shape"),
    ):
        envfleet.record(fleet, tmp_path / "text")


PROGRAM = """
import os, sys, signal
import envfleet
fleet = envfleet.make("CartPole-v1", 2, backend="serial")
recording = envfleet.record(fleet, sys.argv[1])
fleet.reset(seed=0)
fleet.rollout("random", 100, seed=0)
assert recording.num_episodes > 2
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_a_program_that_ends_leaves_all_or_nothing(end: str, tmp_path: Path) -> None:
    path = tmp_path / "cartpole"
    program = subprocess.run([sys.executable, "-c", PROGRAM, str(path), end], check=False)
    assert program.returncode == (-signal.SIGKILL if end == "kill" else 0)
    assert path.exists() == (end == "leave")
    if end == "leave":
        assert all(one.terminations[-1] for one in read(path))


def test_an_interruption_leaves_whole_episodes(tmp_path: Path, monkeypatch: Any) -> None:
    count, add = 0, Dataset._add

    def interrupted(self: Any, group: Any, name: str, value: Any) -> None:
        nonlocal count
        count += 1
        if count == 13:  # in the middle of the third episode
            raise KeyboardInterrupt
        add(self, group, name, value)

    monkeypatch.setattr(Dataset, "_add", interrupted)
    with envfleet.make(counters(4), backend="serial", autoreset_mode="SAME_STEP") as fleet:
        with envfleet.record(fleet, tmp_path / "counting"):
            fleet.reset()
            with pytest.raises(KeyboardInterrupt):
                fleet.rollout("random", 20)
            fleet.reset()
            for t in range(7):
                fleet.step(np.arange(4) + 10 * t)
        numbers, times = fleet.get_attr("episode"), fleet.get_attr("t")
    last = {(r, n) for r, (n, t) in enumerate(zip(numbers, times, strict=True)) if 0 < t <= (3 * r + n) % 7}
    assert len(check_counting(read(tmp_path / "counting"), last)) > 8


def test_an_episode_that_cannot_be_begun_costs_no_other(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with envfleet.make(counters(2), backend="serial", autoreset_mode="SAME_STEP") as fleet:
        recording = envfleet.record(fleet, tmp_path / "counting")
        fleet.reset()
        fleet.rollout("random", 20)
        count = recording.num_episodes
        with monkeypatch.context() as patch:
            patch.setattr("envfleet.recording.dataset.h5g.create", fail)
            with pytest.raises(OSError, match="the disk is full"):
                fleet.rollout("random", 20)
        recording.close()
    assert len(read(tmp_path / "counting")) >= count > 0


@contextlib.contextmanager
def full_disk(limit_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a limit, which fails as on a full disk, with another number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_costs_no_episode_before(tmp_path: Path) -> None:
    path = tmp_path / "counting"
    with envfleet.make(counters(20), backend="serial", autoreset_mode="SAME_STEP") as fleet:
        recording = envfleet.record(fleet, path)
        fleet.reset()
        with full_disk(8 << 20):
            with pytest.raises(OSError, match="File too large") as caught:
                fleet.rollout("random", 3_000)
            recording.close()
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))
    episodes = read(path)
    assert len(episodes) == recording.num_episodes > 100
    check_counting(episodes)
    assert (path / "data" / "main_data.hdf5").stat().st_size < 8 << 20


def test_close_can_be_repeated_once_the_disk_has_room(tmp_path: Path) -> None:
    path = tmp_path / "counting"
    with envfleet.make(counters(4), backend="serial", autoreset_mode="SAME_STEP") as fleet:
        recording = envfleet.record(fleet, path)
        fleet.reset()
        with full_disk(1 << 10):
            with pytest.raises(OSError, match="File too large"):
                fleet.rollout("random", 20)
            for _ in range(2):
                with pytest.raises(OSError, match="File too large"):
                    recording.close()
        assert not path.exists()
        recording.close()
        assert repr(recording).endswith("closed>")
    assert read(path) == []


def test_a_recording_nobody_closes_is_finished(tmp_path: Path) -> None:
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        envfleet.record(fleet, tmp_path / "cartpole")
        fleet.reset(seed=0)
        fleet.rollout("random", 100, seed=0)
    gc.collect()
    assert len(read(tmp_path / "cartpole")) > 2


def test_another_thread_in_the_fleet(tmp_path: Path) -> None:
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        fleet._calls.lock.acquire()
        try:
            errors: list[BaseException] = []

            def try_it() -> None:
                try:
                    envfleet.record(fleet, tmp_path / "new")
                except CallPending as error:
                    errors.append(error)

            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()
        finally:
            fleet._calls.lock.release()
    assert len(errors) == 1
    assert list(tmp_path.iterdir()) == []
