"""Rewards that are vectors, as environments with a `reward_space` return them, which is MO-Gymnasium's convention."""

from __future__ import annotations

import contextlib
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.adapters.gymnasium import AsyncFleet
from envfleet.adapters.sb3 import FleetVecEnv
from envfleet.agents.rollouts import Collector
from envfleet.errors import InvalidArgument, SpacesDiffer, SubEnvError
from envfleet.testing.envs import CountingEnv

_SPACE = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


class _Vectors(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, length: int = 3) -> None:
        super().__init__(CountingEnv(length))
        self.reward_space = _SPACE
        self.reward: Any = None

    def step(self, action: Any) -> Any:
        observation, reward, *rest = self.env.step(action)
        return observation, np.array([reward, -1.0]) if self.reward is None else self.reward, *rest


class LinearReward(gym.Wrapper[Any, Any, Any, Any]):
    """Like MO-Gymnasium's wrapper of this name, which lacks a `reward_space`."""

    def step(self, action: Any) -> Any:
        result: Any = self.env.step(action)
        return result[0], float(result[1].sum()), *result[2:]


def _makers(num_envs: int = 3) -> list[Any]:
    return [lambda length=2 + k: _Vectors(length) for k in range(num_envs)]


class _Lockstep:
    """Steps environments one after the other, with Gymnasium's rules for the ends of episodes."""

    def __init__(self, mode: AutoresetMode) -> None:
        self._envs, self._mode, self._awaiting = [make() for make in _makers()], mode, [False] * 3
        for k, env in enumerate(self._envs):
            env.reset(seed=k)

    def step(self, actions: Any) -> tuple[np.ndarray[Any, Any], list[bool]]:
        rewards, ended = np.zeros((3, 2), np.float32), [False] * 3
        for k, env in enumerate(self._envs):
            if self._awaiting[k]:
                env.reset()
                self._awaiting[k] = False
                continue
            _, rewards[k], terminated, truncated, _ = env.step(actions[k])
            ended[k] = bool(terminated or truncated)
            self._awaiting[k] = ended[k] and self._mode is AutoresetMode.NEXT_STEP
            if ended[k] and self._mode is AutoresetMode.SAME_STEP:
                env.reset()
        return rewards, ended


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_row_of_numbers_for_each_sub_environment(backend: Any, mode: AutoresetMode) -> None:
    reference, returns = _Lockstep(mode), np.zeros((3, 2))
    workers = None if backend == "serial" else 2
    with envfleet.make(_makers(), backend=backend, workers=workers, autoreset_mode=mode, record_episodes=True) as fleet:
        assert fleet.reward_space == _SPACE
        fleet.reset(seed=0)
        for t in range(9):
            actions = np.array([t % 4, 1, 2])
            if t % 3 == 2:
                fleet.send(actions[[2]], [2])
                fleet.send(actions[:2], [0, 1])
                parts = [fleet.recv(env_indices=rows) for rows in ([0, 1], [2])]
                rewards = np.concatenate([part.rewards for part in parts])
                infos: dict[str, Any] = {}
            else:
                _, rewards, _, _, infos = fleet.step(actions)
            expected, ended = reference.step(actions)
            assert rewards.dtype == np.float32  # that of `reward_space`, as in MOSyncVectorEnv
            np.testing.assert_array_equal(rewards, expected)
            returns += expected
            if "episode" in infos:
                np.testing.assert_array_equal(infos["_episode"], ended)
                np.testing.assert_array_equal(infos["episode"]["r"], np.where(np.array(ended)[:, None], returns, 0))
            if mode is AutoresetMode.SAME_STEP:
                returns[ended] = 0
                np.testing.assert_array_equal(fleet.episode_returns, returns)
            else:
                np.testing.assert_array_equal(fleet.episode_returns[ended], returns[ended])
                returns[ended] = 0


def test_states_rollouts_and_lost_episodes() -> None:
    with envfleet.make(_makers(), backend="process", workers=2, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros(3, np.int64))
        states, returns = fleet.get_state(), fleet.episode_returns
        rollout = fleet.rollout("random", 6, seed=1)
        assert rollout.rewards.shape == (6, 3, 2)
        assert (rollout.rewards[:, :, 1][~rollout.is_reset] == -1).all()
        assert (rollout.episodes.returns[:, 1] == -rollout.episodes.lengths).all()
        again = fleet.rollout("random", 6, seed=1, out=rollout)
        assert again.rewards is rollout.rewards
        fleet.set_state(states)
        np.testing.assert_array_equal(fleet.episode_returns, returns)
        fleet.set_attr("reward", [None, "broken", None])
        _, rewards, _, truncated, infos = fleet.step(np.zeros(3, np.int64))
        assert truncated.tolist() == [False, True, False]
        assert rewards[1].tolist() == [0, 0]
        assert "shape (2,) as in reward_space" in infos["env_error"][1]


@pytest.mark.parametrize("reward", [1.0, [1.0], np.ones(1), np.ones((2, 1)), np.ones(3)])
def test_another_shape_is_never_broadcast(reward: Any) -> None:
    with envfleet.make(_Vectors, 1, backend="serial") as fleet:
        fleet.reset()
        fleet.set_attr("reward", [reward])
        with pytest.raises(SubEnvError, match=r"expected shape \(2,\) as in reward_space"):
            fleet.step(np.array([0]))


def test_all_rewards_of_a_fleet_have_one_shape() -> None:
    with pytest.raises(SpacesDiffer, match="reward_space of sub-environment 1 is None"):
        envfleet.make([_Vectors, lambda: CountingEnv(3)], backend="serial")


def test_a_wrapper_that_makes_them_numbers() -> None:
    with envfleet.make(lambda: LinearReward(_Vectors()), 2, backend="serial") as fleet:
        fleet.reset()
        assert fleet.step(np.array([1, 2]))[1].tolist() == pytest.approx([0.1, 0.2])
        assert fleet.reward_space is None


class _Adopted(gym.vector.SyncVectorEnv):
    """As MO-Gymnasium's `MOSyncVectorEnv`."""

    def __init__(self) -> None:
        super().__init__(_makers())
        self._rewards: Any = np.zeros((3, 2), np.float32)


def test_a_vector_environment_that_has_them() -> None:
    vector_env: Any = _Adopted()
    vector_env.reward_space = _SPACE
    with envfleet.adopt(vector_env, record_episodes=True) as fleet:
        fleet.reset(seed=0)
        for _ in range(2):
            _, rewards, _, _, infos = fleet.step(np.zeros(3, np.int64))
        assert rewards.shape == (3, 2)
        assert infos["episode"]["r"].tolist() == [[3, -2], [0, 0], [0, 0]]
        assert fleet.rollout("random", 4, seed=0).rewards.shape == (4, 3, 2)
    with envfleet.adopt(_Adopted()) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="vector rewards, set the attribute reward_space"):
            fleet.step(np.zeros(3, np.int64))


def test_drop_in_classes_have_them_too() -> None:
    with contextlib.closing(AsyncFleet(_makers(2))) as fleet:
        fleet.reset(seed=0)
        assert fleet.step(np.zeros(2, np.int64))[1].tolist() == [[1, -1], [1, -1]]


@pytest.mark.parametrize("use", [FleetVecEnv, lambda fleet: Collector(fleet, 4)])
def test_what_learns_from_numbers_refuses_vectors(use: Any) -> None:
    with (
        envfleet.make(_Vectors, 2, backend="serial", autoreset_mode="SAME_STEP") as fleet,
        pytest.raises(InvalidArgument, match="rewards of this environment are vectors"),
    ):
        use(fleet)


def test_a_list_of_rewards_points_to_the_adapter_for_agents() -> None:
    class Agents(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, [0.0, 1.0], *rest

    with envfleet.make(Agents, 1, backend="serial") as fleet:
        fleet.reset()
        with pytest.raises(SubEnvError, match=r"2 rewards in a list.*envfleet\.adapters\.pettingzoo"):
            fleet.step(np.array([0]))
