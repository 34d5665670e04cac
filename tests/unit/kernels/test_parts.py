"""Kernels whose observations and actions are a `Dict` or a `Tuple`: several arrays of one sub-environment."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import envfleet
from envfleet.errors import InvalidArgument, KernelError
from envfleet.kernels import Kernel, array
from envfleet.kernels.kernel import read_kernel
from envfleet.testing import check_kernel


class Rover(Kernel):
    """Drives over a grid: gear and steering, a map and where it is."""

    observation_space: ClassVar[Any] = spaces.Dict(
        {
            "map": spaces.Box(0, 255, (3, 4), np.uint8),
            "gear": spaces.Discrete(3),
            "place": spaces.Box(-10.0, 10.0, (2,), np.float32),
            "speed": spaces.Box(-10.0, 10.0, (), np.float32),
        }
    )
    action_space: ClassVar[Any] = spaces.Dict(
        {"gear": spaces.Discrete(3), "steer": spaces.Box(-1.0, 1.0, (2,)), "lamps": spaces.MultiBinary(2)}
    )
    max_episode_steps: ClassVar[int | None] = 5
    info_fields: ClassVar[tuple[str, ...]] = ("gear",)

    class State:
        cells: NDArray[np.uint8] = array((3, 4), np.uint8)
        x: float
        y: float
        gear: int

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        for k in range(12):
            state.cells[k // 4, k % 4] = rng.integers(256)
        state.x = rng.uniform(-1.0, 1.0)
        state.y = 0.0
        state.gear = 0

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.gear = action["gear"]
        state.x = np.clip(state.x + state.gear * action["steer"][0], -9.0, 9.0)
        state.y = np.clip(state.y + action["steer"][1], -9.0, 9.0)
        state.cells[0, 0] = 200 if action["lamps"][1] else 0
        return state.x, abs(state.x) > 4.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out["map"][:, :] = state.cells
        out["gear"] = state.gear
        out["place"][0] = state.x
        out["place"][1] = state.y
        out["speed"] = 0.5 * state.gear


class Pair(Rover):
    """The same as tuples."""

    observation_space: ClassVar[Any] = spaces.Tuple((spaces.Discrete(3), spaces.Box(-10.0, 10.0, (2,), np.float64)))
    action_space: ClassVar[Any] = spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-1.0, 1.0, (2,))))

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.gear = action[0] + 1
        state.x = np.clip(state.x + state.gear * action[1][0], -9.0, 9.0)
        state.y = np.clip(state.y + action[1][1], -9.0, 9.0)
        return state.x, abs(state.x) > 4.0

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.gear
        out[1][0] = state.x
        out[1][1] = state.y


KERNELS = [Rover, Pair]


@pytest.mark.parametrize("kernel", KERNELS)
def test_they_are_as_right_as_others(kernel: type[Kernel]) -> None:
    assert check_kernel(kernel, num_steps=30, seeds=[0, 5]) == 60


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_fleet_of_them_equals_one_of_single_environments(kernel: type[Kernel], mode: Any) -> None:
    with (
        envfleet.make(kernel, 3, backend="kernel", autoreset_mode=mode) as fleet,
        envfleet.make(kernel, 3, backend="serial", autoreset_mode=mode) as other,
    ):
        fleet.action_space.seed(0)
        found, _ = fleet.reset(seed=2)
        assert_equal(found, other.reset(seed=2)[0])
        assert fleet.observation_space.contains(found)
        for _ in range(15):
            actions = fleet.action_space.sample()
            one, two = fleet.step(actions), other.step(actions)
            for mine, theirs in zip(one[:4], two[:4], strict=True):
                assert_equal(mine, theirs)
            assert one[4].keys() == two[4].keys()
            for mine, theirs in zip(one[4].get("final_obs", ()), two[4].get("final_obs", ()), strict=True):
                assert_equal(mine, theirs)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(found, dict):
        assert list(found) == list(expected)
        found, expected = tuple(found.values()), tuple(expected.values())
    if not isinstance(found, tuple):
        np.testing.assert_array_equal(found, expected)
        return
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype


def test_rows_partial_steps_and_states() -> None:
    with envfleet.make(Rover, 4, backend="kernel") as fleet:
        first, _ = fleet.reset(seed=0)
        some, _ = fleet.reset_envs([1, 3], seeds=[1, 3])
        assert_equal(some, {key: value[[1, 3]] for key, value in first.items()})
        state = fleet.get_state()
        actions = {key: value[:2] for key, value in fleet.action_space.sample().items()}
        fleet.send(actions, [2, 0])
        batch = fleet.recv(env_indices=[0, 2])
        assert batch.observations["map"].shape == (2, 3, 4)
        assert batch.observations["gear"].tolist() == actions["gear"][::-1].tolist()
        assert_equal(fleet.set_state(state), first)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rollouts(kernel: type[Kernel], mode: Any) -> None:
    with envfleet.make(kernel, 3, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        state = fleet.get_state()
        random = fleet.rollout("random", 12, seed=4)
        fleet.set_state(state)
        given = fleet.rollout(random.actions, 12)
        assert_equal(given.all_observations, random.all_observations)
        assert_equal(given.episodes.observations, random.episodes.observations)
        assert len(given.episodes) > 0
        fleet.set_state(state)
        for t in range(12):
            actions = random.actions
            leaves = {k: v[t] for k, v in actions.items()} if kernel is Rover else tuple(part[t] for part in actions)
            _, rewards, *_ = fleet.step(leaves)
            assert rewards.tolist() == random.rewards[t].tolist()


class Buttons(Rover):
    """One number as its action."""

    action_space: ClassVar[Any] = spaces.Discrete(3)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.gear = action
        state.x += action - 1.0
        return state.x, abs(state.x) > 4.0


def shift(observation: Any, rng: Any) -> int:
    return 2 if observation["place"][0] > 0.0 else observation["gear"] // 2


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_compiled_policies_read_the_parts(mode: Any) -> None:
    with envfleet.make(Buttons, 3, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        rollout = fleet.rollout(shift, 20)
        places, gears = rollout.observations["place"][..., 0], rollout.observations["gear"]
        assert rollout.actions.tolist() == np.where(places > 0.0, 2, gears // 2).tolist()
        assert rollout.episodes.observations["map"].shape == (len(rollout.episodes), 3, 4)
    with envfleet.make(Rover, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(KernelError, match="pass a callable"):
            fleet.rollout(shift, 2)


def test_actions_are_checked_part_by_part() -> None:
    with envfleet.make(Rover, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        good = {"gear": np.array([0, 1]), "steer": np.zeros((2, 2), np.float32), "lamps": np.zeros((2, 2), np.int8)}
        fleet.step(good)
        bad: list[tuple[Any, str]] = [
            ({**good, "gear": np.array([0, 3])}, r"action of sub-environment 1 is .*not in Dict"),
            ({**good, "gear": np.array([0.5, 1.0])}, r"actions\['gear'\] have dtype float64, expected int64"),
            ({**good, "steer": np.array([[0.0, np.nan], [0.0, 0.0]])}, r"action of sub-environment 0"),
            ({**good, "steer": np.zeros(2)}, r"actions\['steer'\] have shape \(2,\), expected \(2, 2\)"),
            ({**good, "lamps": np.array([[0, 2], [0, 0]])}, r"action of sub-environment 0"),
            ({**good, "lamps": np.array([[0, 256], [0, 0]])}, r"which is not in MultiBinary"),
            ({"gear": good["gear"]}, r"expected one array for each of \['gear', 'lamps', 'steer'\]"),
            (np.zeros(2), r"expected one array for each of"),
        ]
        for actions, message in bad:
            with pytest.raises(InvalidArgument, match=message):
                fleet.step(actions)
    with envfleet.make(Pair, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        fleet.step((np.array([-1, 1]), np.zeros((2, 2))))
        with pytest.raises(InvalidArgument, match="action of sub-environment 0"):
            fleet.step((np.array([-2, 1]), np.zeros((2, 2))))


def test_what_cannot_be_is_refused() -> None:
    class Deep(Rover):
        observation_space = spaces.Dict({"inner": spaces.Dict({"x": spaces.Discrete(2)})})

    class Leaving(Rover):
        @staticmethod
        def observe(state: Any, out: Any) -> None:
            out["map"][:, :] = state.cells
            out["gear"] = 0
            out["place"][0] = 1.0
            out["speed"] = 1.0

    with pytest.raises(KernelError, match=r"Deep\.observation_space\['inner'\] is a Dict, expected.*one level deep"):
        read_kernel(Deep)
    with pytest.raises(KernelError, match=r"elements of `out\['place'\]` unwritten, the first is out\['place'\]\[1\]"):
        envfleet.make(Leaving, 1, backend="kernel")
    with pytest.raises(InvalidArgument, match="with device='cuda' has spaces of several parts"):
        envfleet.make(Rover, 2, backend="kernel", device="cuda")
