"""Gymnasium's own vector wrappers do the same over a fleet as over its SyncVectorEnv."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium.wrappers.vector as wrappers
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.conftest import Backend

from envfleet.testing import CountingEnv, InfoEnv, mismatches
from envfleet.testing.duel import OUR_INFOS
from envfleet.testing.envs import ActionKeeperEnv, SpaceEnv

Wrap = Callable[[Any], Any]


def to_torch(env: Any) -> Any:
    return wrappers.NumpyToTorch(env)


def double(observations: Any) -> Any:
    return observations * 2


NUM_ENVS = 3

counting = functools.partial(CountingEnv, 3)
in_dict = functools.partial(CountingEnv, 3, dict_obs=True)
halved: dict[str, Any] = {"min_action": np.float32(-0.5), "max_action": np.float32(2)}
unit: dict[str, Any] = {"min_obs": np.float32(0), "max_obs": np.float32(10)}
acting = functools.partial(ActionKeeperEnv, 3)
picture = functools.partial(SpaceEnv, "image", "discrete", 3)
unit_box = functools.partial(SpaceEnv, "box", "discrete", 3)

CASES: dict[str, tuple[Callable[[], Any], Wrap]] = {
    "NormalizeObservation": (counting, wrappers.NormalizeObservation),
    "NormalizeReward": (counting, wrappers.NormalizeReward),
    "NumpyToTorch": (in_dict, to_torch),
    "DictInfoToList": (functools.partial(InfoEnv, "nested", 1, 3), wrappers.DictInfoToList),
    "ClipAction": (acting, wrappers.ClipAction),
    "RescaleAction": (
        acting,
        functools.partial(wrappers.RescaleAction, **halved),
    ),
    "ClipReward": (counting, functools.partial(wrappers.ClipReward, min_reward=0, max_reward=2)),
    "TransformObservation": (
        counting,
        functools.partial(wrappers.TransformObservation, func=double),
    ),
    "TransformReward": (counting, functools.partial(wrappers.TransformReward, func=lambda reward: reward - 1)),
    "FlattenObservation": (picture, wrappers.FlattenObservation),
    "GrayscaleObservation": (picture, wrappers.GrayscaleObservation),
    "DtypeObservation": (picture, functools.partial(wrappers.DtypeObservation, dtype=np.int32)),
    "FilterObservation": (in_dict, functools.partial(wrappers.FilterObservation, filter_keys=["vector"])),
    "RescaleObservation": (
        unit_box,
        functools.partial(wrappers.RescaleObservation, **unit),
    ),
}


def as_numpy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {key: as_numpy(item) for key, item in value.items() if key not in OUR_INFOS}
    if isinstance(value, (tuple, list)):
        kept = (
            {k: v for k, v in item.items() if k not in OUR_INFOS} if isinstance(item, dict) else item for item in value
        )
        return type(value)(as_numpy(item) for item in kept)
    return value


def compare(reference: Any, subject: Any, num_steps: int = 8, scale: float = 1.5) -> None:
    """Drive both with the same actions; box actions go beyond the bounds, for wrappers that clip."""
    reference.action_space.seed(1)
    assert not mismatches(as_numpy(reference.reset(seed=2)), as_numpy(subject.reset(seed=2)), "reset")
    for step in range(num_steps):
        actions = reference.action_space.sample()
        if isinstance(reference.action_space, spaces.Box):
            actions = (actions * scale).astype(actions.dtype)
        if type(reference).__name__ == "NumpyToTorch":
            actions = torch.from_numpy(actions)
        expected, found = reference.step(actions), subject.step(actions)
        assert not mismatches(as_numpy(expected), as_numpy(found), f"step {step}")


@pytest.mark.parametrize("name", CASES)
def test_wrapper(name: str, backend: Backend) -> None:
    env_fn, wrap = CASES[name]
    reference = wrap(SyncVectorEnv([env_fn] * NUM_ENVS))
    with backend([env_fn] * NUM_ENVS) as fleet:
        subject = wrap(fleet)
        compare(reference, subject)
        assert subject.observation_space == reference.observation_space


@pytest.mark.parametrize("record_episodes", [True, False])
def test_record_episode_statistics(backend: Backend, autoreset_mode: AutoresetMode, record_episodes: bool) -> None:
    """The wrapper adds infos["episode"] itself, and refuses to if somebody did before it."""
    env_fns = [functools.partial(CountingEnv, 2 + index) for index in range(NUM_ENVS)]
    reference = wrappers.RecordEpisodeStatistics(SyncVectorEnv(env_fns, autoreset_mode=autoreset_mode))
    with backend(env_fns, autoreset_mode=autoreset_mode, record_episodes=record_episodes) as fleet:
        subject = wrappers.RecordEpisodeStatistics(fleet)
        reference.reset(seed=0)
        subject.reset(seed=0)
        num_ends = 0
        for step in range(2 if autoreset_mode == AutoresetMode.DISABLED else 9):
            actions = np.full(NUM_ENVS, step % 4)
            expected, found = reference.step(actions)[4], subject.step(actions)[4]
            assert ("episode" in found) == ("episode" in expected)
            if "episode" in expected:
                num_ends += 1
                for key in ("r", "l"):
                    assert not mismatches(expected["episode"][key], found["episode"][key])
                assert not mismatches(expected["_episode"], found["_episode"])
        assert num_ends
        assert list(subject.return_queue) == list(reference.return_queue)


def test_record_episode_statistics_after_a_masked_reset(backend: Backend) -> None:
    """Gymnasium's SyncVectorEnv takes the mask out of the options before the wrapper sees it; ours does not."""
    with backend([counting] * NUM_ENVS, autoreset_mode=AutoresetMode.DISABLED) as fleet:
        subject = wrappers.RecordEpisodeStatistics(fleet)
        subject.reset(seed=0)
        subject.step(np.zeros(NUM_ENVS, dtype=np.int64))
        subject.reset(options={"reset_mask": np.array([True, False, False])})
        assert subject.episode_lengths.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "autoreset_mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name
)
def test_our_own_episode_statistics(backend: Backend, autoreset_mode: AutoresetMode) -> None:
    """What infos["episode"] says without any wrapper is what Gymnasium's wrapper says over SyncVectorEnv."""
    env_fns = [functools.partial(CountingEnv, 2 + index) for index in range(NUM_ENVS)]
    reference = wrappers.RecordEpisodeStatistics(SyncVectorEnv(env_fns, autoreset_mode=autoreset_mode))
    with backend(env_fns, autoreset_mode=autoreset_mode) as fleet:
        reference.reset(seed=0)
        fleet.reset(seed=0)
        for _ in range(2 if autoreset_mode == AutoresetMode.DISABLED else 9):
            actions = np.ones(NUM_ENVS, dtype=np.int64)
            expected, found = reference.step(actions)[4], fleet.step(actions)[4]
            assert ("_episode" in found) == ("_episode" in expected)
            if "_episode" in expected:
                assert not mismatches(expected["_episode"], found["_episode"])
                for key in ("r", "l"):
                    assert not mismatches(expected["episode"][key], found["episode"][key], key)
                assert (found["episode"]["t"][found["_episode"]] > 0).all()


def test_record_video_sees_the_same_frames(backend: Backend, tmp_path: Path) -> None:
    """The frames RecordVideo gathers; encoding them is moviepy's business."""
    pytest.importorskip("moviepy")
    env_fns = [functools.partial(CountingEnv, 3, render_mode="rgb_array")] * NUM_ENVS
    frames = []
    for name, fleet in (("reference", SyncVectorEnv(env_fns)), ("subject", backend(env_fns))):
        video = wrappers.RecordVideo(fleet, str(tmp_path / name), episode_trigger=lambda _: True, video_length=100)
        video.reset(seed=0)
        for _ in range(2):
            video.step(np.zeros(NUM_ENVS, dtype=np.int64))
        frames.append(list(video.recorded_frames))
        video.recorded_frames.clear()
        video.recording = False
        video.close()
    assert not mismatches(frames[0], frames[1])
