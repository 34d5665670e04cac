"""`adopt(…, autoreset_mode="SAME_STEP")`: ended rows are reset within the step."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

import envfleet
from envfleet.errors import InvalidArgument

NEXT, SAME, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
OWN_SPACES = "ignore:.*precision lowered by casting"  # EnvPool's


class Countdown(gym.Env[Any, Any]):
    """Observations count steps; episodes are `length` steps long, and alternately terminated and truncated."""

    observation_space = spaces.Dict({"steps": spaces.Box(0, 99, (1,), np.float32), "draw": spaces.Discrete(1_000)})
    action_space = spaces.Discrete(2)

    def __init__(self, length: int) -> None:
        self.length, self.episodes, self.steps = length, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return self._observe(), {"episode_index": self.episodes}

    def step(self, action: Any) -> Any:
        self.steps += 1
        is_over = self.steps == self.length
        is_even = self.episodes % 2 == 0
        return (
            self._observe(),
            float(action),
            is_over and is_even,
            is_over and not is_even,
            {"steps": {"n": self.steps}},
        )

    def _observe(self) -> Any:
        return {"steps": np.array([self.steps], np.float32), "draw": int(self.np_random.integers(1_000))}


FNS = [lambda: Countdown(2), lambda: Countdown(3), lambda: Countdown(7)]


class Restarting(VectorEnv):
    """A vector environment that ignores `reset_mask`."""

    num_envs = 2
    single_observation_space, single_action_space = spaces.Box(0, 99, (1,), np.int64), spaces.Discrete(2)
    observation_space, action_space = (batch_space(one, 2) for one in (single_observation_space, single_action_space))
    steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.steps = 0
        return np.zeros((2, 1), np.int64), {}

    def step(self, actions: Any) -> Any:
        self.steps += 1
        ended = np.array([self.steps == 2, False])
        return np.full((2, 1), self.steps), np.zeros(2), ended, np.zeros(2, np.bool_), {}


def assert_alike(ours: Any, theirs: Any) -> None:
    """Compare nested infos and observations, dtypes of numbers left out."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_alike(ours[key], value)
    elif isinstance(theirs, np.ndarray) and theirs.dtype.hasobject:
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    else:
        np.testing.assert_array_equal(ours, theirs)


def test_equal_to_gymnasiums_own_same_step() -> None:
    with closing(SyncVectorEnv(FNS, autoreset_mode=SAME)) as reference:
        ours = envfleet.adopt(SyncVectorEnv(FNS), autoreset_mode="SAME_STEP")
        assert ours.autoreset_mode is SAME
        assert ours.metadata["autoreset_mode"] is SAME
        assert_alike(ours.reset(seed=3)[0], reference.reset(seed=3)[0])
        rng = np.random.default_rng(0)
        for _ in range(40):
            actions = rng.integers(0, 2, 3)
            step, expected = ours.step(actions), tuple[Any, ...](reference.step(actions))
            for one, other in zip(step[:4], expected[:4], strict=True):
                assert_alike(one, other)
            assert_alike(step[4].get("final_obs"), expected[4].get("final_obs"))
            assert_alike(step[4].get("final_info"), expected[4].get("final_info"))
            assert_alike(step[4].get("episode_index"), expected[4].get("episode_index"))
            if "final_obs" in expected[4]:
                finals = ours.final_observations["steps"]
                for row in np.flatnonzero(expected[2] | expected[3]):
                    assert_alike(finals[row], expected[4]["final_obs"][row]["steps"])
        ours.close()


def test_observations_stay_the_callers() -> None:
    fleet = envfleet.adopt(SyncVectorEnv(FNS), autoreset_mode=SAME)
    fleet.reset(seed=0)
    fleet.step(np.zeros(3, int))
    first = fleet.step(np.zeros(3, int))
    kept = first[0]["steps"].copy(), first[4]["final_obs"][0]["steps"].copy()
    fleet.step(np.zeros(3, int))
    np.testing.assert_array_equal(first[0]["steps"], kept[0])
    np.testing.assert_array_equal(first[4]["final_obs"][0]["steps"], kept[1])
    fleet.close()


def test_a_vector_environment_without_partial_reset() -> None:
    fleet = envfleet.adopt(Restarting(), autoreset_mode="SAME_STEP")
    fleet.reset()
    fleet.step([0, 0])
    with pytest.raises(InvalidArgument, match="Restarting changed other rows when rows \\[0\\] were reset"):
        fleet.step([0, 0])
    fleet.close()


@pytest.mark.parametrize(("own", "mode"), [(SAME, "NEXT_STEP"), (NEXT, "DISABLED"), (DISABLED, "SAME_STEP")])
def test_other_conversions_are_refused(own: AutoresetMode, mode: Any) -> None:
    env = SyncVectorEnv(FNS, autoreset_mode=own)
    with closing(env), pytest.raises(InvalidArgument, match=f"{mode}.*SyncVectorEnv in {own.name}"):
        envfleet.adopt(env, autoreset_mode=mode)


def test_a_partial_reset_that_is_followed_by_another() -> None:
    """Gymnasium's AsyncVectorEnv without shared memory resets such rows once more in the next step."""
    env = AsyncVectorEnv(FNS, shared_memory=False)
    with closing(env), pytest.raises(InvalidArgument, match="shared_memory=False"):
        envfleet.adopt(env, autoreset_mode="SAME_STEP")


def test_the_mode_that_it_has_changes_nothing() -> None:
    with closing(SyncVectorEnv(FNS)) as env:
        fleet: Any = envfleet.adopt(env, autoreset_mode="NEXT_STEP")
        assert fleet.engine._env is env
        fleet.close()


@pytest.fixture
def pool() -> Any:
    import envpool

    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=1)


def test_a_pool_that_steps_parts_at_a_time() -> None:
    import envpool

    pool: Any = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=2, seed=1)
    with pytest.raises(InvalidArgument, match=r"batch_size=2 and num_envs=4.*make it with batch_size=num_envs"):
        envfleet.adopt(pool, autoreset_mode="SAME_STEP")


@pytest.mark.filterwarnings(OWN_SPACES)
def test_every_transition_of_envpool_counts(pool: Any) -> None:
    fleet = envfleet.adopt(pool, autoreset_mode="SAME_STEP", record_episodes=True)
    observations, _ = fleet.reset()
    ends = 0
    for _ in range(200):
        before = observations
        observations, rewards, terminated, truncated, infos = fleet.step(np.ones(4, int))
        assert (rewards == 1).all()  # the steps that EnvPool spends on resets have reward 0
        ended = terminated | truncated
        np.testing.assert_array_equal(infos["elapsed_step"] == 0, ended)
        for row in np.flatnonzero(ended):
            assert abs(infos["final_obs"][row][2]) > 0.2095 or abs(infos["final_obs"][row][0]) > 2.4
            assert (np.abs(observations[row]) <= 0.05).all()
            assert infos["final_info"]["elapsed_step"][row] == infos["episode"]["l"][row] > 1
            ends += 1
        assert (before != observations).any(axis=1).all()
    assert ends > 40
    fleet.close()


@pytest.mark.filterwarnings(OWN_SPACES)
@pytest.mark.filterwarnings("ignore:EnvPool seeds are fixed")
def test_stable_baselines_learns_on_envpool(pool: Any) -> None:
    from stable_baselines3 import PPO

    from envfleet.adapters.sb3 import FleetVecEnv

    env = FleetVecEnv(envfleet.adopt(pool, autoreset_mode="SAME_STEP"))
    model = PPO("MlpPolicy", env, n_steps=64, n_epochs=1, device="cpu", seed=0)
    model.learn(512)
    assert len(model.ep_info_buffer or ()) > 0
    env.step_async(np.ones(4, int))
    _, _, dones, infos = env.step_wait()
    while not dones.any():
        _, _, dones, infos = env.step(np.ones(4, int))
    assert infos[int(np.flatnonzero(dones)[0])]["terminal_observation"].shape == (4,)
    env.close()
