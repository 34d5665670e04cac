"""Kernels with `Dict` or `Tuple` observations and actions: several arrays of one sub-environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.kernels.parts import Pair, Rover

import envfleet
from envfleet.errors import InvalidArgument, KernelError
from envfleet.kernels import Kernel
from envfleet.kernels.kernel import read_kernel
from envfleet.testing import check_kernel

KERNELS = [Rover, Pair]


def test_dicts_are_as_right_as_others(check_without_indices: Callable[..., int]) -> None:
    assert check_without_indices(Rover, num_steps=30, seeds=[0, 5]) == 60


def test_tuples_are_as_right_as_others() -> None:
    assert check_kernel(Pair, num_steps=30, seeds=[0, 5]) == 60


def assert_equal(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(actual, dict):
        assert list(actual) == list(expected)
        actual, expected = tuple(actual.values()), tuple(expected.values())
    if not isinstance(actual, tuple):
        np.testing.assert_array_equal(actual, expected)
        return
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype


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
        by_actions = fleet.rollout(random.actions, 12)
        assert_equal(by_actions.all_observations, random.all_observations)
        assert_equal(by_actions.episodes.observations, random.episodes.observations)
        assert len(by_actions.episodes) > 0
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


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_compiled_rollouts_keep_the_parts(mode: Any) -> None:
    with envfleet.make(Buttons, 3, backend="kernel", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        state = fleet.get_state()
        rollout = fleet.rollout("random", 20, seed=4)
        assert rollout.episodes.observations["map"].shape == (len(rollout.episodes), 3, 4)
        fleet.set_state(state)
        for t in range(20):
            observations = fleet.step(rollout.actions[t])[0]
            assert_equal(observations, {key: part[t + 1] for key, part in rollout.all_observations.items()})


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
    with pytest.raises(InvalidArgument, match="has spaces of several parts, and device='cuda' requires"):
        envfleet.make(Rover, 2, backend="kernel", device="cuda")
