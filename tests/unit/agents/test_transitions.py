"""Transitions against a loop that holds one environment at a time and never heard of autoreset."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agents.scripted import MODES, Script, Scripted, alone, choose, play, scripts

import envfleet
from envfleet.agents.transitions import Transitions, TransitionWriter
from envfleet.errors import InvalidArgument


def in_rows(transitions: Transitions) -> list[tuple[Any, ...]]:
    columns = (transitions.env_indices, transitions.observations, transitions.actions, transitions.rewards,
               transitions.terminated, transitions.truncated, transitions.next_observations)  # fmt: skip
    return [tuple(np.asarray(column[row]).tolist() for column in columns) for row in range(len(transitions))]


def check(transitions: list[tuple[Any, ...]], all_scripts: list[Script], least: int) -> None:
    for number, script in enumerate(all_scripts):
        own = [row for row in transitions if row[0] == number]
        assert len(own) >= least
        assert own == alone(number, script, len(own))


@given(scripts, st.sampled_from(MODES))
@settings(max_examples=60)
def test_every_mode_tells_what_a_single_loop_sees(all_scripts: list[Script], mode: Any) -> None:
    envs = [functools.partial(Scripted, *pair) for pair in enumerate(all_scripts)]
    transitions: list[tuple[Any, ...]] = []
    with envfleet.make(envs, backend="serial", autoreset_mode=mode, copy=False) as fleet:
        writer = TransitionWriter(fleet)
        observations, _ = fleet.reset(seed=0)
        writer.reset(observations)
        for _ in range(20):
            actions = choose(observations)
            step = fleet.step(actions)
            observations = step[0]
            transitions += in_rows(writer.step(actions, *step))
            ended = fleet.terminated_indices
            if mode is AutoresetMode.DISABLED and ended:
                firsts, _ = fleet.reset_envs(ended)
                writer.reset(firsts, ended)
                observations = np.array(observations)
                observations[ended] = firsts
    check(transitions, all_scripts, 10)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasiums_own_vector_environment(mode: Any) -> None:
    all_scripts: list[Script] = [[(3, "terminated")], [(1, "truncated"), (2, "both")], [(4, "truncated")]]
    check([row for step in play(all_scripts, mode) for row in in_rows(step)], all_scripts, 10)


@given(scripts, st.sampled_from([AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]), st.randoms())
@settings(max_examples=30)
def test_parts_of_a_fleet_that_were_received(all_scripts: list[Script], mode: Any, random: Any) -> None:
    count = len(all_scripts)
    envs = [functools.partial(Scripted, *pair) for pair in enumerate(all_scripts)]
    transitions: list[tuple[Any, ...]] = []
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
            transitions += in_rows(
                writer.step(actions[order], batch.observations, batch.rewards, batch.terminated, batch.truncated,
                            batch.infos, env_indices=batch.env_indices)
            )  # fmt: skip
            current[batch.env_indices] = batch.observations
    check(transitions, all_scripts, 0)


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
        writer, written = TransitionWriter(fleet), []
        writer.reset(fleet.reset(seed=0)[0])
        for _ in range(3):
            actions = np.zeros(2, np.int64)
            written.append(writer.step(actions, *fleet.step(actions)))
    pairs = [(one.observations.view(np.float32)[0, 0], one.next_observations.view(np.float32)[0, 0]) for one in written]
    assert pairs == [(0, 1), (1, 2), (0, 1)]
