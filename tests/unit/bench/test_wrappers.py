"""Wrappers of the measurements."""

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from envfleet.bench.synthetic import InfoEnv, NullEnv, StaggeredStart, WithoutInfos
from envfleet.bench.workloads import resolve, synthetic


def episode_lengths(env, seed, count=4):
    lengths = []
    env.reset(seed=seed)
    for _ in range(count):
        length, ended = 0, False
        while not ended:
            _, _, terminated, truncated, _ = env.step(np.int64(0))
            length, ended = length + 1, terminated or truncated
        lengths.append(length)
        env.reset()
    env.close()
    return lengths


def test_with_a_known_limit_the_first_episode_is_cut():
    found = [episode_lengths(synthetic("NullEnv").staggered().build(), seed) for seed in range(20)]
    assert all(lengths[1:] == [200, 200, 200] for lengths in found)
    firsts = [lengths[0] for lengths in found]
    assert len(set(firsts)) > 10
    assert 1 <= min(firsts) <= max(firsts) <= 200


def test_with_an_unknown_limit_the_second_episode_is_cut():
    found = [episode_lengths(StaggeredStart(TimeLimit(NullEnv(), 50)), seed) for seed in range(20)]
    assert all((lengths[0], *lengths[2:]) == (50, 50, 50) for lengths in found)
    assert len({lengths[1] for lengths in found}) > 8


def test_the_same_seed_cuts_at_the_same_step():
    assert len({tuple(episode_lengths(synthetic("NullEnv").staggered().build(), 3)) for _ in range(3)}) == 1


def test_afterwards_it_is_out_of_the_way():
    env = StaggeredStart(TimeLimit(NullEnv(), 5))
    episode_lengths(env, 0)
    assert env.step == env.env.step


def test_infos_are_dropped():
    env = WithoutInfos(InfoEnv())
    assert env.reset(seed=0)[1] == env.step(np.int64(0))[4] == {}


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "tests.unit.bench.fakes:slow_reset", "tests.unit.bench.fakes:of_other_actions"]
)
def test_a_wrapped_workload_builds_and_the_original_stays(name):
    workload = resolve(name)
    assert isinstance(workload.staggered().build(), StaggeredStart)
    assert workload.staggered().wrapped("WithoutInfos").build().reset(seed=0)[1] == {}
    assert not isinstance(workload.build(), StaggeredStart)
