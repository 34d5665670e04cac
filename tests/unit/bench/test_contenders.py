"""Every contender counts the same thing: transitions, not rows that were only resets."""

import time

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.unit.bench.fakes import NULL

from envfleet.bench import contenders
from envfleet.bench.contenders import (
    CONTENDERS,
    BareLoop,
    EnvFleet,
    EnvPool,
    GymnasiumVector,
    StableBaselines3,
    _LoopRunner,
)
from envfleet.bench.measure import draw_actions, measure_rate
from envfleet.bench.workloads import resolve
from envfleet.testing import CountingEnv

# Episodes of 200 steps in lockstep: after 402 vector steps a next-step fleet has spent two on resets.
STEPS, NUM_ENVS = 402, 2
WITH_RESET_ROWS, WITHOUT = NUM_ENVS * (STEPS - 2), NUM_ENVS * STEPS

IN_PROCESS = [
    (BareLoop(), WITHOUT),
    (GymnasiumVector("sync"), WITH_RESET_ROWS),
    (EnvFleet("serial"), WITH_RESET_ROWS),
    (EnvFleet("thread"), WITH_RESET_ROWS),
    (EnvFleet("serial", {"autoreset_mode": AutoresetMode.SAME_STEP}), WITHOUT),
]


@pytest.mark.parametrize(("contender", "expected"), IN_PROCESS, ids=lambda value: getattr(value, "name", ""))
def test_transitions(contender, expected):
    runner = contender.make(NULL, NUM_ENVS, None)
    actions = np.zeros(NUM_ENVS, np.int64)
    try:
        assert sum(runner.step(actions) for _ in range(STEPS)) == expected
    finally:
        runner.close()


class Checks(CountingEnv):
    """Takes actions of its space alone."""

    def __init__(self, space):
        super().__init__()
        self.action_space = space

    def step(self, action):
        assert action in self.action_space
        return super().step(0)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 3]),
        spaces.Dict(move=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)), more=spaces.Tuple([spaces.MultiBinary(2)])),
        spaces.Tuple([spaces.Discrete(2), spaces.Dict(name=spaces.Text(4))]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_the_bare_loop_takes_actions_of_any_space(space):
    envs = [Checks(space) for _ in range(3)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
    runner = _LoopRunner(envs)
    for actions in draw_actions(space, 3)[:5]:
        assert runner.step(actions) == 3


def test_transitions_of_stable_baselines3():
    runner = StableBaselines3("dummy").make(NULL, NUM_ENVS, None)
    assert sum(runner.step(np.zeros(NUM_ENVS, np.int64)) for _ in range(STEPS)) == WITHOUT
    runner.close()


def test_absent_peers_say_why(monkeypatch):
    monkeypatch.setattr(contenders, "is_installed", lambda name: name in {"gymnasium", "envfleet"})
    cheap = resolve("cheap")
    assert "pip install stable-baselines3" in str(StableBaselines3("dummy").absence(cheap))
    assert "pip install envpool" in str(EnvPool().absence(cheap))
    assert "rewritten in C++" in str(EnvPool().absence(NULL))
    assert BareLoop().absence(cheap) is None


def test_kernels_take_part_where_there_is_one():
    kernel, ours = resolve("envfleet/CartPole-v1"), EnvFleet("kernel")
    assert "lacks a compiled twin" in str(ours.absence(resolve("LunarLander-v3")))
    assert "lacks a compiled twin" in str(ours.absence(resolve("CartPole-v1", {"sutton_barto_reward": True})))
    assert EnvPool().absence(kernel) is None  # it has the same environment
    assert "rewritten in C++" in str(EnvPool().absence(resolve("envfleet/GridWorld-v0")))
    for workload in (kernel, resolve("cheap")):
        assert ours.absence(workload) is None
        runner = ours.make(workload, NUM_ENVS, None)
        assert runner.step(np.zeros(NUM_ENVS, np.int64)) == NUM_ENVS
        runner.close()


def test_names_are_unique_and_labels_differ():
    labels = [contender.label for contender in CONTENDERS.values()]
    assert len(set(labels)) == len(labels)
    assert EnvFleet("process", tag="4-workers").label == "envfleet process (4 workers)"
    assert EnvFleet("process", tag="4-workers").name == "envfleet-process-4-workers"


class Counter:
    def __init__(self):
        self.seen = []

    def step(self, actions):
        self.seen.append(actions)
        return 3

    def close(self):
        raise NotImplementedError


def test_the_rate_is_of_the_steps_after_the_warm_up(monkeypatch):
    times = iter([0.0, 5.0, 10.0, 12.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    runner = Counter()
    assert measure_rate(runner, ["a", "b", "c"], seconds=0.0) == 3 / 2
    assert runner.seen == ["a", "b"], "one step of warm-up, one measured, actions in turn"


def test_actions_are_the_same_for_all():
    space = NULL.build().action_space
    first, second = draw_actions(space, 4), draw_actions(space, 4)
    np.testing.assert_array_equal(first, second)
    assert np.asarray(first).shape == (64, 4)


def test_a_fleet_has_the_line_of_code_that_makes_it() -> None:
    workload = resolve("cheap")
    assert EnvFleet("auto").line(workload, 8, None) == 'envfleet.make("CartPole-v1", num_envs=8)'
    line = 'envfleet.make("CartPole-v1", num_envs=8, backend="process", workers=2)'
    assert EnvFleet("process").line(workload, 8, 2) == line
    twin = 'envfleet.make("envfleet/CartPole-v1", num_envs=8, backend="kernel")'
    assert EnvFleet("kernel").line(workload, 8, None) == twin
    assert BareLoop().line(workload, 8, None) == ""
