"""Gymnasium's vector wrappers, and loops written for its API, do the same over a fleet as over its SyncVectorEnv."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import gymnasium.wrappers.vector as wrappers
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.conftest import Backend

from envfleet.testing import CountingEnv, InfoEnv, mismatches
from envfleet.testing.envs import ActionKeeperEnv, SpaceEnv

Wrap = Callable[[Any], Any]


def to_torch(env: Any) -> Any:
    return wrappers.NumpyToTorch(env)


def double(observations: Any) -> Any:
    return observations * 2


NUM_ENVS = 3
LIMIT = 6

cartpole = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=LIMIT)
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
        return {key: as_numpy(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(map(as_numpy, value))
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
        expected, actual = reference.step(actions), subject.step(actions)
        assert not mismatches(as_numpy(expected), as_numpy(actual), f"step {step}")


@pytest.mark.parametrize("name", CASES)
def test_wrapper(name: str, backend: Backend) -> None:
    env_fn, wrap = CASES[name]
    reference = wrap(SyncVectorEnv([env_fn] * NUM_ENVS))
    with backend([env_fn] * NUM_ENVS) as fleet:
        subject = wrap(fleet)
        compare(reference, subject)
        assert subject.observation_space == reference.observation_space


@pytest.mark.parametrize(
    "wrap", [wrappers.NormalizeObservation, wrappers.NormalizeReward, to_torch, wrappers.DictInfoToList]
)
def test_wrapper_on_every_fleet(make_fleet: Any, wrap: Wrap) -> None:
    mode = AutoresetMode.NEXT_STEP
    reference = wrap(SyncVectorEnv([cartpole] * NUM_ENVS))
    with make_fleet(num_envs=NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT) as fleet:
        assert fleet.autoreset_mode is fleet.metadata["autoreset_mode"] is mode
        compare(reference, wrap(fleet), num_steps=20)


def test_record_episode_statistics_on_every_fleet(make_fleet: Any, autoreset_mode: AutoresetMode) -> None:
    """The wrapper adds infos["episode"] and refuses a fleet that already reports it, which is not the default."""
    reference = wrappers.RecordEpisodeStatistics(SyncVectorEnv([cartpole] * NUM_ENVS, autoreset_mode=autoreset_mode))
    with make_fleet(num_envs=NUM_ENVS, autoreset_mode=autoreset_mode, max_episode_steps=LIMIT) as fleet:
        subject = wrappers.RecordEpisodeStatistics(fleet)
        reference.reset(seed=0)
        subject.reset(seed=0)
        for _ in range(LIMIT if autoreset_mode is AutoresetMode.DISABLED else 4 * LIMIT):
            actions = np.ones(NUM_ENVS, np.int64)
            expected, actual = reference.step(actions)[4], subject.step(actions)[4]
            assert ("episode" in actual) == ("episode" in expected)
            if "episode" in expected:
                for key in ("r", "l"):
                    assert not mismatches(expected["episode"][key], actual["episode"][key])
                assert not mismatches(expected["_episode"], actual["_episode"])
        assert list(subject.return_queue) == list(reference.return_queue) != []


def test_record_episode_statistics_refuses_recorded_episodes(backend: Backend) -> None:
    with backend([functools.partial(CountingEnv, 1)] * NUM_ENVS, record_episodes=True) as fleet:
        subject = wrappers.RecordEpisodeStatistics(fleet)
        subject.reset(seed=0)
        with pytest.raises(ValueError, match="already exists"):
            subject.step(np.zeros(NUM_ENVS, np.int64))


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
    """infos["episode"] of a fleet equals that of Gymnasium's wrapper over SyncVectorEnv."""
    env_fns = [functools.partial(CountingEnv, 2 + index) for index in range(NUM_ENVS)]
    reference = wrappers.RecordEpisodeStatistics(SyncVectorEnv(env_fns, autoreset_mode=autoreset_mode))
    with backend(env_fns, autoreset_mode=autoreset_mode, record_episodes=True) as fleet:
        reference.reset(seed=0)
        fleet.reset(seed=0)
        for _ in range(2 if autoreset_mode == AutoresetMode.DISABLED else 9):
            actions = np.ones(NUM_ENVS, dtype=np.int64)
            expected, actual = reference.step(actions)[4], fleet.step(actions)[4]
            assert ("_episode" in actual) == ("_episode" in expected)
            if "_episode" in expected:
                assert not mismatches(expected["_episode"], actual["_episode"])
                for key in ("r", "l"):
                    assert not mismatches(expected["episode"][key], actual["episode"][key], key)
                assert (actual["episode"]["t"][actual["_episode"]] > 0).all()


def test_record_video_sees_the_same_frames(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frames RecordVideo gathers; encoding them is moviepy's business."""
    monkeypatch.setitem(sys.modules, "moviepy", types.ModuleType("moviepy"))
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


# ------------------------------------------------------------------------------------------------ learners' loops


def train(envs: Any, num_steps: int = 16, num_iterations: int = 4) -> tuple[list[Any], list[float]]:
    """PPO in one function, as people write it for next-step autoreset: a reset's step is not a transition.

    Returns:
        The weights, and the returns of the episodes that ended.
    """
    torch.manual_seed(0)
    num_envs, size = envs.num_envs, envs.single_observation_space.shape[0]
    actor = torch.nn.Sequential(
        torch.nn.Linear(size, 8), torch.nn.Tanh(), torch.nn.Linear(8, envs.single_action_space.n)
    )
    critic = torch.nn.Linear(size, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 0.01)
    returns: list[float] = []
    observation = torch.from_numpy(envs.reset(seed=1)[0]).float()
    done = torch.zeros(num_envs)
    for _ in range(num_iterations):
        columns: list[list[torch.Tensor]] = [[] for _ in range(6)]
        observations, actions, log_probs, values, dones, rewards = columns
        for _ in range(num_steps):
            with torch.no_grad():
                policy, value = torch.distributions.Categorical(logits=actor(observation)), critic(observation)[:, 0]
                action = policy.sample()
            for column, entry in zip(
                columns[:5], (observation, action, policy.log_prob(action), value, done), strict=True
            ):
                column.append(entry)
            step, reward, terminated, truncated, infos = envs.step(action.numpy())
            rewards.append(torch.from_numpy(reward).float())
            observation, done = torch.from_numpy(step).float(), torch.from_numpy(terminated | truncated).float()
            if "episode" in infos:
                returns += infos["episode"]["r"][infos["_episode"]].tolist()
        with torch.no_grad():
            value, advantage = critic(observation)[:, 0], torch.zeros(num_envs)
            advantages: list[torch.Tensor] = []
            for t in reversed(range(num_steps)):
                goes_on = 1 - (dones[t + 1] if t + 1 < num_steps else done)
                delta = rewards[t] + 0.99 * value * goes_on - values[t]
                advantage = delta + 0.99 * 0.95 * goes_on * advantage
                advantages.insert(0, advantage)
                value = values[t]
        is_step = torch.stack(dones).flatten() == 0  # the others only reset, whatever the action was
        seen = torch.cat(observations)[is_step]
        gain, kept = torch.cat(advantages)[is_step], torch.cat(values)[is_step]
        for _ in range(2):
            policy = torch.distributions.Categorical(logits=actor(seen))
            ratio = (policy.log_prob(torch.cat(actions)[is_step]) - torch.cat(log_probs)[is_step]).exp()
            loss = -torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
            loss += (critic(seen)[:, 0] - gain - kept).pow(2).mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    envs.close()
    return [parameter.detach().numpy() for parameter in (*actor.parameters(), *critic.parameters())], returns


@pytest.mark.usefixtures("one_torch_thread")
def test_a_loop_for_next_step_autoreset(make_fleet: Any) -> None:
    """The same weights, to the last bit, as over Gymnasium's own class."""
    expected, returns = train(wrappers.RecordEpisodeStatistics(SyncVectorEnv([cartpole] * 4)))
    fleet = make_fleet(num_envs=4, autoreset_mode="NEXT_STEP", max_episode_steps=LIMIT)
    actual, own_returns = train(wrappers.RecordEpisodeStatistics(fleet))
    assert own_returns == returns != []
    for one, other in zip(expected, actual, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore")  # TorchRL's own
@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED], ids=lambda mode: mode.name)
def test_torchrl_goes_on_after_episodes(make_fleet: Any, mode: AutoresetMode) -> None:
    """TorchRL's `GymWrapper` refuses next-step autoreset, also of Gymnasium's classes."""
    from torchrl.envs.libs.gym import GymWrapper  # takes seconds

    rollouts, ones = [], torch.nn.functional.one_hot(torch.ones(NUM_ENVS, dtype=torch.int64), 2)
    fleet = make_fleet(num_envs=NUM_ENVS, autoreset_mode=mode, max_episode_steps=LIMIT)
    for envs in (SyncVectorEnv([cartpole] * NUM_ENVS, autoreset_mode=mode), fleet):
        env = GymWrapper(envs)
        env.set_seed(0)
        rollouts.append(env.rollout(20, lambda td: td.set("action", ones), break_when_any_done=False))
        env.close()
    expected, actual = rollouts
    assert expected["next", "done"].sum() == 9
    for name in ("observation", "reward", "done"):
        assert torch.equal(expected["next", name], actual["next", name])
