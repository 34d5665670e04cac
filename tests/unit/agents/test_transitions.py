"""Transitions against a loop that holds one environment at a time and never heard of autoreset."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import envfleet
from envfleet.agents.n_step import NStepWriter
from envfleet.agents.replay import COLUMNS, ReplayBuffer
from envfleet.agents.transitions import Transitions, TransitionWriter
from envfleet.errors import InvalidArgument

MODES = tuple(AutoresetMode)
END = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}
Script = list[tuple[int, str]]
scripts = st.lists(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(sorted(END))), min_size=1, max_size=3), min_size=1, max_size=4
)


class Scripted(gym.Env[Any, Any]):
    """Episodes of given lengths and ends, over and over; observes (sub-environment, episode, step, last action)."""

    observation_space = gym.spaces.Box(-1, 10_000, (4,), np.float32)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, number: int, script: Script) -> None:
        self.number, self.script, self.episode = number, script, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._observe(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        length, kind = self.script[self.episode % len(self.script)]
        terminated, truncated = END[kind] if self.steps == length else (False, False)
        return self._observe(action), 100.0 * self.episode + self.steps, terminated, truncated, {}

    def _observe(self, action: Any) -> Any:
        return np.array([self.number, self.episode, self.steps, action], np.float32)


def choose(observations: Any) -> Any:
    """An action that any loop finds again from the observation."""
    return (np.asarray(observations) @ np.array([7, 31, 11, 1]) % 1000).astype(np.int64)


def in_rows(transitions: Transitions) -> list[tuple[Any, ...]]:
    columns = (transitions.env_indices, transitions.observations, transitions.actions, transitions.rewards,
               transitions.terminated, transitions.truncated, transitions.next_observations)  # fmt: skip
    return [tuple(np.asarray(column[row]).tolist() for column in columns) for row in range(len(transitions))]


def n_steps_into(count: int, num_steps: int, space: Any, action_shape: tuple[int, ...] = ()) -> Any:
    """A writer over n steps, with the buffer it writes to."""
    action_dtype = torch.int64 if action_shape == () else torch.uint8
    replay = ReplayBuffer(1000, space, action_shape, action_dtype, rng=np.random.default_rng(0))
    return NStepWriter(replay, count, num_steps, 0.9), replay


def columns_of(replay: ReplayBuffer) -> list[Any]:
    columns = replay.state_dict()["columns"]
    return [columns[name].numpy() for name in COLUMNS]


def alone(number: int, script: Script, num_transitions: int) -> list[tuple[Any, ...]]:
    """The first transitions of one environment."""
    env, found = Scripted(number, script), list[tuple[Any, ...]]()
    observation, _ = env.reset()
    for _ in range(num_transitions):
        action = choose(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        found.append((number, observation.tolist(), int(action), reward, terminated, truncated, following.tolist()))
        observation = env.reset()[0] if terminated or truncated else following
    return found


def check(found: list[tuple[Any, ...]], all_scripts: list[Script], least: int) -> None:
    for number, script in enumerate(all_scripts):
        own = [row for row in found if row[0] == number]
        assert len(own) >= least
        assert own == alone(number, script, len(own))


@given(scripts, st.sampled_from(MODES))
@settings(max_examples=60)
def test_every_mode_tells_what_a_single_loop_sees(all_scripts: list[Script], mode: Any) -> None:
    envs = [functools.partial(Scripted, *pair) for pair in enumerate(all_scripts)]
    found: list[tuple[Any, ...]] = []
    with envfleet.make(envs, backend="serial", autoreset_mode=mode, copy=False) as fleet:
        writer = TransitionWriter(fleet)
        observations, _ = fleet.reset(seed=0)
        writer.reset(observations)
        for _ in range(20):
            actions = choose(observations)
            step = fleet.step(actions)
            observations = step[0]
            found += in_rows(writer.step(actions, *step))
            ended = fleet.terminated_indices
            if mode is AutoresetMode.DISABLED and ended:
                firsts, _ = fleet.reset_envs(ended)
                writer.reset(firsts, ended)
                observations = np.array(observations)
                observations[ended] = firsts
    check(found, all_scripts, 10)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasiums_own_vector_environment(mode: Any) -> None:
    all_scripts: list[Script] = [[(3, "terminated")], [(1, "truncated"), (2, "both")], [(4, "truncated")]]
    envs = envfleet.adopt(
        SyncVectorEnv([functools.partial(Scripted, n, all_scripts[n]) for n in range(3)], autoreset_mode=mode)
    )
    writer, found = TransitionWriter(envs), list[tuple[Any, ...]]()
    observations, _ = envs.reset()
    writer.reset(observations)
    for _ in range(20):
        actions = choose(observations)
        step = envs.step(actions)
        observations = step[0]
        found += in_rows(writer.step(actions, *step))
    envs.close()
    check(found, all_scripts, 10)


@given(scripts, st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]), st.randoms())
@settings(max_examples=30)
def test_parts_of_a_fleet_that_were_received(all_scripts: list[Script], mode: Any, random: Any) -> None:
    count = len(all_scripts)
    envs = [functools.partial(Scripted, *pair) for pair in enumerate(all_scripts)]
    found: list[tuple[Any, ...]] = []
    with envfleet.make(envs, backend="serial", autoreset_mode=mode) as fleet:
        writer = TransitionWriter(fleet)
        current, _ = fleet.reset(seed=0)
        writer.reset(current)
        for _ in range(20):
            rows = sorted(random.sample(range(count), random.randint(1, count)))
            actions = choose(current[rows])
            fleet.send(actions, rows)
            batch = fleet.recv()
            order = [rows.index(row) for row in batch.env_indices.tolist()]
            found += in_rows(
                writer.step(actions[order], batch.observations, batch.rewards, batch.terminated, batch.truncated,
                            batch.infos, env_indices=batch.env_indices)
            )  # fmt: skip
            current[batch.env_indices] = batch.observations
    check(found, all_scripts, 0)


@given(scripts, st.integers(1, 4), st.sampled_from(MODES[:2]))
@settings(max_examples=60)
def test_n_steps_against_their_definition(all_scripts: list[Script], num_steps: int, mode: Any) -> None:
    gamma, count = 0.9, len(all_scripts)
    envs = envfleet.adopt(
        SyncVectorEnv([functools.partial(Scripted, n, all_scripts[n]) for n in range(count)], autoreset_mode=mode)
    )
    writer, (n_step, replay) = TransitionWriter(envs), n_steps_into(count, num_steps, Scripted.observation_space)
    observations, _ = envs.reset()
    writer.reset(observations)
    for _ in range(20):
        actions = choose(observations)
        step = envs.step(actions)
        observations = step[0]
        happened = writer.step(actions, *step)
        n_step.write(happened, happened.actions)
    n_step.cut(np.arange(count))
    envs.close()
    found = list(zip(*(column.tolist() for column in columns_of(replay)), strict=True))
    for number, script in enumerate(all_scripts):
        own = [row for row in found if row[0][0] == number]
        single = alone(number, script, len(own))
        for start, (observation, action, reward, discount, following) in enumerate(own):
            steps, total = 0, 0.0
            for _, _, _, step_reward, terminated, truncated, _ in single[start : start + num_steps]:
                total += gamma**steps * step_reward
                steps += 1
                if terminated or truncated:
                    break
            after = single[start + steps - 1][6]
            assert (observation, action, following) == (single[start][1], single[start][2], after)
            assert reward == pytest.approx(total)
            assert discount == pytest.approx(0.0 if terminated else gamma**steps)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2, 3)])
def test_n_steps_of_any_shape_go_on_from_their_state(shape: tuple[int, ...]) -> None:
    rng, rows, nobody = np.random.default_rng(0), np.arange(2), np.zeros(2, np.bool_)
    seen = rng.integers(0, 256, (12, 2, *shape)).astype(np.uint8)
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    (first, held), (second, others) = (n_steps_into(2, 3, space, shape) for _ in range(2))
    for step in range(11):
        happened = Transitions(seen[step], seen[step], np.ones(2), nobody, nobody, seen[step + 1], rows)
        first.write(happened, happened.actions)
        if step == 6:
            second.load_state_dict(first.state_dict())
            others.load_state_dict(held.state_dict())
        elif step > 6:
            second.write(happened, happened.actions)
    observations, actions, rewards, discounts, following = columns_of(held)
    assert np.array_equal(observations, seen[:9].reshape(-1, *shape))
    assert np.array_equal(actions, observations)
    assert np.array_equal(following, seen[3:].reshape(-1, *shape))
    assert set(rewards.tolist()) == {np.float32(1 + 0.9 + 0.81)}
    assert set(discounts.tolist()) == {np.float32(0.9**3)}
    assert all(np.array_equal(*pair) for pair in zip(columns_of(held), columns_of(others), strict=True))


def test_a_writer_continues_from_its_state() -> None:
    scripts: list[Script] = [[(1, "terminated")], [(4, "truncated")]]
    envs = [functools.partial(Scripted, *pair) for pair in enumerate(scripts)]
    with envfleet.make(envs, backend="serial", autoreset_mode="NEXT_STEP") as fleet:
        first, second = TransitionWriter(fleet), TransitionWriter(fleet)
        actions = np.zeros(2, np.int64)
        first.reset(fleet.reset(seed=0)[0])
        expected = first.step(actions, *fleet.step(actions))
        second.load_state_dict(first.state_dict())
        step = second.step(actions, *fleet.step(actions))
    assert expected.ended.tolist() == [True, False]
    assert step.env_indices.tolist() == [1]
    np.testing.assert_array_equal(step.observations, expected.next_observations[1:])


def test_misuse_is_explained() -> None:
    envs = [functools.partial(Scripted, number, [(1, "terminated")]) for number in range(2)]
    no, rows = np.zeros(2, bool), np.zeros((3, 4), np.float32)
    with envfleet.make(envs, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        writer = TransitionWriter(fleet)
        with pytest.raises(InvalidArgument, match="before the first reset"):
            writer.step(no, rows[:2], no, no, no, {})
        with pytest.raises(InvalidArgument, match="1 of 2 sub-environments"):
            writer.reset(rows[:1], [0])
        writer.reset(rows[:2])
        with pytest.raises(InvalidArgument, match="3 rows of observations for 2"):
            writer.step(no, rows, no, no, no, {})


def test_dict_observations_and_final_ones_are_packed() -> None:
    class Named(gym.Env[Any, Any]):
        observation_space = gym.spaces.Dict(steps=gym.spaces.Box(0, 9, (1,), np.float32))
        action_space = gym.spaces.Discrete(2)

        def reset(self, **options: Any) -> Any:
            self.steps = 0
            return {"steps": np.zeros(1, np.float32)}, {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return {"steps": np.full(1, self.steps, np.float32)}, 0.0, self.steps == 2, False, {}

    with envfleet.make(Named, 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        writer, found = TransitionWriter(fleet), []
        writer.reset(fleet.reset(seed=0)[0])
        for _ in range(3):
            actions = np.zeros(2, np.int64)
            found.append(writer.step(actions, *fleet.step(actions)))
    pairs = [(one.observations.view(np.float32)[0, 0], one.next_observations.view(np.float32)[0, 0]) for one in found]
    assert pairs == [(0, 1), (1, 2), (0, 1)]
