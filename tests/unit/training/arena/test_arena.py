"""The arena: episodes keep their opponent, their weights and their observations."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.training.arena.rally import GAME, Rally, RallyGame, record_infos

import envfleet
from envfleet.agents import SAC, SACConfig
from envfleet.errors import InvalidArgument
from envfleet.training.arena.arena import Arena, ArenaStep
from envfleet.training.loop.learners import ReplayLearner, UpdateSchedule
from envfleet.training.opponents.opponents import Entry
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.phases import Phase

NUM_ENVS = 5
WEAK, STRONG = Entry(name="basic_weak", script=1), Entry(name="basic_strong", script=2)


def phase_of(**more: Any) -> Phase:
    return Phase.model_validate({"name": "a", "episodes": 10, "opponent": {"type": "none"}, **more})


@contextmanager
def opened(entries: tuple[Entry, ...], phase: Phase | None = None, seed: int = 1) -> Iterator[Arena]:
    fleet = envfleet.make(Rally, NUM_ENVS, backend="serial", autoreset_mode="SAME_STEP")
    arena = Arena(fleet, GAME, seed=np.random.SeedSequence(seed))
    try:
        arena.begin_phase(phase or phase_of(), entries)
        arena.reset(seed=3)
        yield arena
    finally:
        arena.close()


def step_through(arena: Arena, count: int) -> Iterator[ArenaStep]:
    for _ in range(count):
        arena.send(np.zeros((NUM_ENVS, 2), np.float32))
        yield arena.recv()


def small_sac(arena: Arena, **more: Any) -> SAC:
    config = SACConfig(hidden=(8,), batch_size=4, warmup=0, capacity=500, **more)
    return SAC(arena.single_observation_space, arena.single_action_space, config, num_envs=NUM_ENVS, seed=0)


def test_the_opponent_of_a_row_stays_until_its_episode_ends() -> None:
    names = {1: "basic_weak", 2: "basic_strong"}
    now: NDArray[Any] = np.zeros(NUM_ENVS)
    began = np.ones(NUM_ENVS, np.bool_)
    seen: set[str] = set()
    with opened((WEAK, STRONG)) as arena:
        infos = record_infos(arena)
        for step in step_through(arena, 120):
            ended = step.transitions.ended
            scripts = np.where(ended, infos[-1].get("final_info", {}).get("script", 0), infos[-1]["script"])
            assert (scripts == now)[~began].all()
            if step.results is not None:
                assert step.results.opponents == tuple(names[int(scripts[row])] for row in step.results.env_indices)
                seen.update(step.results.opponents)
            now, began = scripts, ended
    assert seen == set(names.values())


def test_a_mixture_keeps_its_shares() -> None:
    counts = {"basic_weak": 0, "basic_strong": 0}
    weak, strong = (dataclasses.replace(one, weight=weight) for one, weight in ((WEAK, 0.8), (STRONG, 0.2)))
    with opened((weak, strong)) as arena:
        for step in step_through(arena, 600):
            for name in step.results.opponents if step.results else ():
                counts[name] += 1
    total = sum(counts.values())
    assert total > 400
    assert counts["basic_weak"] / total == pytest.approx(0.8, abs=4 * (0.16 / total) ** 0.5)


def test_what_one_phase_sets_is_not_set_in_the_next() -> None:
    with opened((WEAK,), phase_of(environment={"kwargs": {"starter": 2}})) as arena:
        assert arena.fleet.get_attr("starter") == (2,) * NUM_ENVS
        arena.begin_phase(phase_of(), (WEAK,))
        assert arena.fleet.get_attr("starter") == (0,) * NUM_ENVS


class Breaking(Rally):
    """A game that fails at its first step."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise RuntimeError("the ice broke")


def test_an_episode_that_ended_by_a_failure_is_of_no_mode() -> None:
    fleet = envfleet.make(Breaking, 2, backend="serial", autoreset_mode="SAME_STEP", on_failure="restart")
    with contextlib.closing(Arena(fleet, GAME, seed=np.random.SeedSequence(1))) as arena:
        arena.begin_phase(phase_of(), (WEAK,))
        arena.reset(seed=3)
        arena.send(np.zeros((2, 2), np.float32))
        results = arena.recv().results
    assert results is not None
    assert results.modes == ("", "")


def test_a_step_that_failed_is_not_learned_from() -> None:
    class Halting(Rally):
        def step(self, action: Any) -> Any:
            result = super().step(action)
            if self.np_random.random() < 0.2:
                raise RuntimeError("the ice broke")
            return result

    options: Any = {"on_failure": "restart", "max_restarts": 1_000}
    fleet = envfleet.make(Halting, NUM_ENVS, backend="serial", autoreset_mode="SAME_STEP", **options)
    num_failed = 0
    with contextlib.closing(Arena(fleet, GAME, seed=np.random.SeedSequence(1))) as arena:
        arena.begin_phase(phase_of(), (WEAK,))
        arena.reset(seed=3)
        infos = record_infos(arena)
        for step in step_through(arena, 60):
            has_failed = np.asarray(infos[-1].get("_env_error", np.zeros(NUM_ENVS, np.bool_)))
            assert step.failed.tolist() == np.flatnonzero(has_failed).tolist()
            assert step.transitions.env_indices.tolist() == np.flatnonzero(~has_failed).tolist()
            num_failed += len(step.failed)
    assert num_failed > 5


def test_type_none_has_an_opponent_that_does_nothing() -> None:
    with opened((Entry(name="none"),)) as arena:
        infos = record_infos(arena)
        steps = list(step_through(arena, 20))
    assert {name for step in steps if step.results for name in step.results.opponents} == {"none"}
    assert not any(info["two"].any() for info in infos)


def test_networks_act_once_per_step_on_what_player_two_saw() -> None:
    calls = []
    with opened((WEAK,)) as arena:
        learner = small_sac(arena)
        pool = SnapshotPool(learner, 2)
        pool.add()
        arena.begin_phase(phase_of(), (Entry(source=pool),))
        arena.reset()
        (group,) = arena._opponents.groups
        player: Any = arena._opponents._players[group]
        act = player.act_batch

        def spy(observations: Any, deterministic: bool = False, **more: Any) -> Any:
            calls.append((np.array(observations), deterministic))
            return act(observations, deterministic, **more)

        player.act_batch = spy
        steps = list(step_through(arena, 6))
    assert len(calls) == 6
    for (observations, is_deterministic), step in zip(calls[1:], steps, strict=False):
        assert is_deterministic
        assert (observations[:, :2] == step.observations[:, :2]).all()
        assert (observations[:, 2] == 2).all()


def test_no_transition_joins_two_episodes_across_phases() -> None:
    with opened((WEAK, STRONG)) as arena:
        agent = small_sac(arena, num_steps=3)
        learner = ReplayLearner(agent, UpdateSchedule(per_transition=0))
        for _ in range(3):
            arena.begin_phase(phase_of(), (WEAK,))
            observations = arena.reset()
            for _ in range(17):
                actions = agent.act_batch(observations)
                arena.send(actions)
                step = arena.recv()
                learner.take(step.transitions)
                observations = step.observations
            learner.end_phase()
        columns = agent.replay.state_dict()["columns"]
    before, after = columns["observations"].numpy(), columns["next_observations"].numpy()
    assert len(before) == agent.num_transitions == 3 * 17 * NUM_ENVS
    assert (before[:, 0] == after[:, 0]).all()
    assert set(np.unique(after[:, 1] - before[:, 1])) <= {1, 2, 3}


def test_shaping_of_the_last_step_belongs_to_the_old_episode() -> None:
    weights = {f"{name}_{when}": 0.0 for name in ("CLOSENESS", "TOUCH", "DIRECTION") for when in ("START", "FINAL")}
    shaping = {"N": 10**6, "K": 0, **weights, "CLOSENESS_START": 1.0}
    with opened((WEAK,), phase_of(reward_shaping=shaping)) as arena:
        results = [step.results for step in step_through(arena, 60) if step.results]
    numbers: dict[int, int] = dict.fromkeys(range(NUM_ENVS), 0)
    for result in results:
        for row, length, plain, shaped in zip(
            result.env_indices.tolist(), result.lengths.tolist(), result.returns, result.shaped_returns, strict=True
        ):
            expected = sum(10 * numbers[row] + step for step in range(1, length + 1))
            assert (plain, shaped) == (length, pytest.approx(length + expected))
            numbers[row] += 1


def test_a_restored_arena_keeps_opponents_and_rewards() -> None:
    def sequel(arena: Arena) -> list[Any]:
        steps = list(step_through(arena, 30))
        return [
            (s.observations.tolist(), s.transitions.rewards.tolist(), s.results and s.results.opponents) for s in steps
        ]

    with opened((WEAK, STRONG)) as arena:
        learner = small_sac(arena)
        pool = SnapshotPool(learner, 1)
        pool.add()
        entries = (WEAK, STRONG, Entry(source=pool, is_deterministic=False))
        arena.begin_phase(phase_of(), entries)
        arena.reset(seed=9)
        list(step_through(arena, 20))
        saved = arena.state_dict()
        first = sequel(arena)
        arena.begin_phase(phase_of(), entries)
        arena.load_state_dict(saved)
        assert sequel(arena) == first


def test_players_who_see_neither_arrays_nor_numbers_are_refused() -> None:
    class Nested(RallyGame):
        observation_space: Any = spaces.Dict(a=spaces.Discrete(2))

    with (
        envfleet.make(Rally, 2, backend="serial", autoreset_mode="SAME_STEP") as fleet,
        pytest.raises(InvalidArgument, match=r"have the space Dict.*: give players observations and actions"),
    ):
        Arena(fleet, Nested(), seed=np.random.SeedSequence(0))
