"""A fused rollout is nothing but steps: every array is compared, to the bit, with stepping a twin of the fleet."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray
from tests.unit.kernels.samples import policy_generator

import envfleet
from envfleet.errors import InvalidArgument, ResetNeeded
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.rollout import Rollout
from envfleet.kernels import MLP, Kernel, array

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED


class Drift(Kernel):
    """Scalars: rows are stepped all at once, and those that await a reset put back."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3, start=1)
    max_episode_steps = 9
    info_fields = ("x",)

    class State(Kernel.State):
        x: float
        age: int

    class Params(Kernel.Params):
        wall: float = 2.0

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = rng.uniform(-1.0, 1.0)
        state.age = rng.integers(0, 3)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x += 0.7 * (action - 2)
        state.age += 1
        return state.x, state.x > params.wall or state.x < -params.wall

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.x
        out[1] = state.age


class Cells(Kernel):
    """An array in the state, and steps that draw: rows that await a reset are skipped."""

    observation_space = spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))
    max_episode_steps = 6

    class State(Kernel.State):
        cells: NDArray[np.float64] = array((2, 3), np.float64)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        for k in range(3):
            state.cells[0, k] = rng.uniform(0.0, 200.0)
            state.cells[1, k] = 0.0

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.cells[0, 0] += action[0]
        state.cells[1, rng.integers(0, 3)] += action[1]
        return state.cells[1, 0], state.cells[1, 2] > 5.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        for k in range(3):
            out[0, k] = np.uint8(state.cells[0, k])
            out[1, k] = np.uint8(state.cells[1, k])


class Pull(Drift):
    """Two real numbers as action."""

    action_space = spaces.Box(-9.0, 9.0, (2,), np.float32)  # type: ignore[assignment]

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x += action[0]
        return state.x, False


def make(kernel: type[Kernel], num_envs: int, mode: AutoresetMode = NEXT_STEP, workers: int = 1, **options: Any) -> Any:
    options = {"record_episodes": True, **options}
    fleet = envfleet.make(kernel, num_envs, backend="kernel", autoreset_mode=mode, workers=workers, **options)
    fleet.reset(seed=5)
    return fleet


def check_against_steps(rollout: Rollout, twin: Fleet) -> None:
    """Step `twin` with the rollout's actions and compare everything."""
    num_steps, num_envs = rollout.rewards.shape
    is_same_step = twin.autoreset_mode is SAME_STEP
    ended: list[tuple[Any, ...]] = []
    finals = []
    awaiting = np.zeros(num_envs, np.bool_)
    awaiting[twin.terminated_indices] = True
    for t in range(num_steps):
        observations, rewards, terminated, truncated, infos = twin.step(rollout.actions[t])
        np.testing.assert_array_equal(rollout.is_reset[t], awaiting)
        np.testing.assert_array_equal(rollout.all_observations[t + 1], observations)
        np.testing.assert_array_equal(rollout.rewards[t], rewards)
        np.testing.assert_array_equal(rollout.terminated[t], terminated)
        np.testing.assert_array_equal(rollout.truncated[t], truncated)
        for name, column in rollout.infos.items():
            np.testing.assert_array_equal(column[t], infos[name])
        rows = np.flatnonzero(terminated | truncated)
        awaiting = np.zeros(num_envs, np.bool_) if is_same_step else terminated | truncated
        for i in rows:
            episode = infos["episode"]
            ended.append((t, i, episode["r"][i], episode["l"][i], episode["id"][i]))
            finals.append(infos["final_obs"][i] if is_same_step else observations[i])
    actual = rollout.episodes
    assert len(actual) == len(ended) > 0
    columns = (actual.steps, actual.env_indices, actual.returns, actual.lengths, actual.ids)
    for column, expected in zip(columns, zip(*ended, strict=True), strict=True):
        np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(actual.observations, finals)


def check_same_state(one: Fleet, other: Fleet) -> None:
    first, second = one.get_state(), other.get_state()
    for name, values in first.arrays.items():
        for field in ("rng", "episodes") if name == "lives" else (...,):  # not `begun`, which is a time of day
            np.testing.assert_array_equal(values[field], second.arrays[name][field])


def some_actions(fleet: Fleet, num_steps: int) -> NDArray[Any]:
    fleet.action_space.seed(3)
    return np.stack([fleet.action_space.sample() for _ in range(num_steps)])


@pytest.mark.parametrize(
    ("kernel", "mode", "workers"), [*itertools.product([Drift, Cells], [NEXT_STEP, SAME_STEP], [1, 3])]
)
def test_rollout_equals_steps(kernel: type[Kernel], mode: AutoresetMode, workers: int) -> None:
    with make(kernel, 7, mode, workers) as fleet, make(kernel, 7, mode) as twin:
        actions = some_actions(fleet, 60)
        for part in (actions[:31], actions[31:]):  # the second begins with rows that await their reset
            rollout = fleet.rollout(part, len(part))
            assert rollout.observations.shape == (len(part), 7, *fleet.single_observation_space.shape)
            np.testing.assert_array_equal(rollout.last_observations, rollout.all_observations[-1])
            check_against_steps(rollout, twin)
        check_same_state(fleet, twin)
        if mode is SAME_STEP:
            np.testing.assert_array_equal(fleet.final_observations, twin.final_observations)
        assert fleet.stats().steps == 60 * 7


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP])
def test_rollout_of_several_tiles_equals_steps(mode: AutoresetMode) -> None:
    walls: Any = {"wall": np.linspace(0.5, 3.0, 2500)}
    with make(Drift, 2500, mode, 2, **walls) as fleet, make(Drift, 2500, mode, **walls) as twin:
        check_against_steps(fleet.rollout(some_actions(fleet, 12), 12), twin)
        check_same_state(fleet, twin)


def test_final_infos_are_those_before_the_reset() -> None:
    with make(Drift, 4, SAME_STEP) as fleet:
        episodes = fleet.rollout(some_actions(fleet, 30), 30).episodes
        np.testing.assert_array_equal(episodes.infos["x"].astype(np.float32), episodes.observations[:, 0])


@pytest.mark.parametrize("kernel", [Drift, Cells])
def test_random_actions_are_numpys_and_depend_on_the_row_alone(kernel: type[Kernel]) -> None:
    with make(kernel, 70, workers=2) as many, make(kernel, 3) as few, make(kernel, 70) as twin:
        rollout = many.rollout("random", 20, seed=11)
        part = few.rollout("random", 20, seed=11)
        np.testing.assert_array_equal(rollout.actions[:, :3], part.actions)
        np.testing.assert_array_equal(rollout.all_observations[:, :3], part.all_observations)
        space: Any = many.single_action_space
        for i in (0, 1, 69):
            rng = policy_generator(11, i)
            drawn: list[Any]
            if kernel is Drift:
                drawn = [rng.integers(space.start, space.start + space.n) for _ in range(20)]
            else:
                low, high = space.low.astype(np.float64), space.high.astype(np.float64)
                drawn = [[rng.uniform(low[k], high[k]) for k in range(2)] for _ in range(20)]
            np.testing.assert_array_equal(rollout.actions[:, i], np.asarray(drawn, space.dtype))
        check_against_steps(rollout, twin)


def test_seeds_of_rollouts() -> None:
    with make(Drift, 3) as fleet:
        start = fleet.get_state()
        actions = []
        for seed in (1, 1, 2, None, None):
            fleet.set_state(start)
            actions.append(fleet.rollout("random", 40, seed=seed).actions)
        np.testing.assert_array_equal(actions[0], actions[1])
        for one, other in itertools.pairwise(actions[1:]):
            assert not np.array_equal(one, other)
        with pytest.raises(InvalidArgument, match=r"seed=-1: pass a whole number from 0 to 2\*\*32 - 1"):
            fleet.rollout("random", 3, seed=-1)


def test_out_is_written_again() -> None:
    with make(Drift, 4) as fleet, make(Drift, 4) as twin:
        actions = some_actions(fleet, 20)
        kept = actions.copy()
        first = fleet.rollout(actions, 20)
        check_against_steps(first, twin)
        second = fleet.rollout("random", 20, seed=1, out=first)
        for name in ("all_observations", "rewards", "terminated", "truncated", "is_reset"):
            assert getattr(first, name) is getattr(second, name)
        np.testing.assert_array_equal(actions, kept)  # the caller's array is not a slab
        check_against_steps(second, twin)
        assert fleet.rollout("random", 20, out=second).actions is second.actions
        with pytest.raises(InvalidArgument, match=r"out is a rollout of \(T, N\) = \(20, 4\)"):
            fleet.rollout("random", 21, out=second)


def test_mistakes_step_nothing() -> None:
    def act(observation: Any, rng: Any) -> int:
        return 1

    with make(Drift, 4, workers=2) as fleet, make(Drift, 4) as twin:
        actions = some_actions(fleet, 10)
        actions[6, 2] = 0
        with pytest.raises(InvalidArgument, match="at step 6 the action of sub-environment 2 is 0, which is not in"):
            fleet.rollout(actions, 10)
        with pytest.raises(InvalidArgument, match=r"shape \(10, 4\), expected \(9, 4\): \(T, N, …\)"):
            fleet.rollout(actions, 9)
        with pytest.raises(InvalidArgument, match="the policy 'act' takes more than a batch of observations: pass"):
            fleet.rollout(act, 20)
        with pytest.raises(InvalidArgument, match="policy='left': pass 'random', actions"):
            fleet.rollout("left", 20)
        with pytest.raises(InvalidArgument, match="num_steps=0: pass a whole number of at least 1"):
            fleet.rollout("random", 0)
        check_same_state(fleet, twin)


@pytest.mark.parametrize("policy", [MLP([(np.zeros((2, 4)), np.zeros(2))]), None])
def test_what_is_no_policy_outside_kernels(policy: Any) -> None:
    words = f"policy is of type {type(policy).__name__}: pass 'random', actions .*; only kernels take an MLP"
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=words):
            fleet.rollout(policy, 3)


def test_a_network_that_goes_astray_steps_nothing() -> None:
    network = MLP([(np.full((2, 2), 1e30), np.zeros(2)), (np.zeros((2, 2)), np.zeros(2))], "relu", "linear")
    with make(Pull, 4, workers=2) as fleet, make(Pull, 4) as twin:
        for one in (fleet, twin):
            one.set_attr("x", [0.0, 1e30, 0.0, 0.0])
        with pytest.raises(InvalidArgument, match=r"the action of sub-environment 1 is \[nan nan\], which is not in"):
            fleet.rollout(network, 20)
        check_same_state(fleet, twin)


def test_rollout_needs_a_reset_and_autoreset() -> None:
    with envfleet.make(Drift, 2, backend="kernel") as fleet, pytest.raises(ResetNeeded):
        fleet.rollout("random", 3)
    with make(Drift, 2, DISABLED) as fleet, pytest.raises(InvalidArgument, match=r"AutoresetMode\.DISABLED"):
        fleet.rollout("random", 3)


def test_after_an_interruption_a_reset_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> Any:
        raise KeyboardInterrupt

    with make(Drift, 4) as fleet:
        with monkeypatch.context() as patch:
            patch.setattr(fleet.engine._batch.team, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                fleet.rollout("random", 2)
        with pytest.raises(ResetNeeded):
            fleet.step(np.full(4, 2))
