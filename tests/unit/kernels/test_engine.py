"""A kernel's fleet beyond what Gymnasium's vector environments do: arrays, states, parameters, lifecycle."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.unit.kernels.samples import Dials, Drifter, Painter, Switches, Walker, ones

import envfleet
from envfleet.errors import FleetClosed, InvalidArgument, KernelError, ResetNeeded
from envfleet.kernels.engine import KernelEngine

# ---------------------------------------------------------------------------------------- arrays that are handed out


@pytest.mark.parametrize("order", [None, [2, 0, 3, 1]], ids=["all", "all_in_another_order"])
def test_restoring_all_ends_what_an_interrupt_left_under_way(
    walkers: Any, order: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    walkers.reset(seed=0)
    saved = walkers.get_state(order)
    walkers.send(ones(walkers))
    with monkeypatch.context() as patch:
        patch.setattr(walkers.engine, "collect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            walkers.recv()
    walkers.set_state(saved, order)
    walkers.send(ones(walkers))
    assert len(walkers.recv().rewards) == 4


# ---------------------------------------------------------------------------------------- parameters


def test_parameters_may_differ_and_change() -> None:
    goals = np.array([1.0, 2.0, 3.0, 4.0])
    with envfleet.make(Walker, 4, backend="kernel", goal=goals, push=2.0) as fleet:
        fleet.reset(seed=[5, 5, 5, 5])
        assert fleet.get_attr("goal") == (1.0, 2.0, 3.0, 4.0)
        assert fleet.get_attr("push") == (2.0,) * 4
        for row, goal in enumerate(goals):
            with envfleet.make(Walker, 1, backend="kernel", goal=goal, push=2.0) as one:
                one.reset(seed=5)
                fleet.reset(seed=[5, 5, 5, 5])
                for _ in range(9):
                    expected, actual = one.step(ones(one)), fleet.step(ones(fleet))
                    for left, right in zip(expected[:4], actual[:4], strict=True):
                        np.testing.assert_array_equal(left[0], right[row])
        fleet.reset(options={"params": {"goal": 7.0}, "reset_mask": np.array([True, False, False, True])})
        assert fleet.get_attr("goal") == (7.0, 2.0, 3.0, 7.0)
        fleet.reset_envs([2, 1], options={"params": {"goal": [8.0, 9.0]}})
        assert fleet.get_attr("goal") == (7.0, 9.0, 8.0, 7.0)
        fleet.set_attr("goal", 1.5)
        assert fleet.get_attr("goal") == (1.5,) * 4
        saved = fleet.get_state()
        fleet.set_attr("goal", [1.0, 2.0, 3.0, 4.0])
        fleet.set_state(saved)
        assert fleet.get_attr("goal") == (1.5,) * 4


WRONG_PARAMS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"gaol": 1.0}, "has no parameter 'gaol', its parameters are push, goal, limit: did you mean goal?"),
    ({"goal": "far"}, "goal='far' cannot be converted to float64"),
    ({"goal": [1.0, 2.0, 3.0]}, r"goal has shape \(3,\), expected \(\) for all sub-environments or \(4,\)"),
    ({"limit": 1.5}, "limit=1.5 cannot be converted to int64"),
    ({"limit": None}, "limit=None cannot be converted to int64"),
)


@pytest.mark.parametrize(("params", "message"), WRONG_PARAMS)
def test_wrong_parameters_are_refused(walkers: Any, params: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        envfleet.make(Walker, 4, backend="kernel", **params)
    before = walkers.engine.params
    with pytest.raises(InvalidArgument, match=message):
        walkers.reset(options={"params": params})
    assert walkers.engine.params == before


# ---------------------------------------------------------------------------------------- actions, seeds, rows


@pytest.mark.parametrize(
    ("kernel", "actions", "message"),
    [
        (Walker, [0, 2], "the action of sub-environment 1 is 2, which is not in Discrete"),
        (Walker, [-2, 0], "the action of sub-environment 0 is -2"),
        (Walker, [0], r"actions have shape \(1,\), expected \(2,\)"),
        (Walker, [0.0, 1.0], "actions have dtype float64, expected int64"),
        (Painter, [[0, 3], [3, 0]], r"the action of sub-environment 1 is \[3 0\]"),
        (Painter, [[0, -1], [0, 0]], r"the action of sub-environment 0 is \[ 0 -1\]"),
        (Switches, [[0, 1, 0, 2], [0, 0, 0, 0]], "the action of sub-environment 0"),
        (Switches, [[0, 0, 0, 0], [0, 0, 0, 256]], r"sub-environment 1 is \[  0   0   0 256\]"),
        (Drifter, [0.0, np.nan], "the action of sub-environment 1 is nan"),
        (Drifter, ["a", "b"], "actions have dtype"),
        (Dials, [[0, 9], [4, 5]], r"the action of sub-environment 1 is \[4 5\], which is not in Box"),
        (Dials, [[0, 4], [0, 5]], r"the action of sub-environment 0 is \[0 4\]"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_wrong_actions_are_refused_and_nothing_is_stepped(
    kernel: Any, actions: Any, message: str, workers: int
) -> None:
    with envfleet.make(kernel, 2, backend="kernel", workers=workers) as fleet:
        fleet.reset(seed=0)
        before = pickle.dumps(fleet.get_state())
        with pytest.raises(InvalidArgument, match=message):
            fleet.step(actions)
        assert pickle.dumps(fleet.get_state()) == before


@pytest.mark.parametrize("seed", [-1, 2**64, [1, 2, 3], [1, 2, 3, -4], [0, 0, 0, 2**64], "abc", True])
def test_wrong_seeds_are_refused(walkers: Any, seed: Any) -> None:
    with pytest.raises(InvalidArgument, match="seed"):
        walkers.reset(seed=seed)


def test_wrong_rows_and_options_are_refused(walkers: Any) -> None:
    for rows in ([], [4], [-1], [1, 1], [0.5], [[0]]):
        with pytest.raises(InvalidArgument, match="indices"):
            walkers.reset_envs(rows)
        with pytest.raises(InvalidArgument, match="indices"):
            walkers.get_state(rows)
    for mask in (np.zeros(4, np.bool_), np.ones(3, np.bool_), np.ones(4), [True] * 4):
        with pytest.raises(InvalidArgument, match="reset_mask"):
            walkers.reset(options={"reset_mask": mask})
    with pytest.raises(InvalidArgument, match="'start'"):
        walkers.reset(options={"start": 1})


def test_the_largest_seeds_are_gymnasiums(walkers: Any) -> None:
    walkers.reset(seed=[2**64 - 1, 2**63, 2**32, 0])
    for generator, seed in zip(walkers.np_random, walkers.np_random_seed, strict=True):
        other, _ = gym.utils.seeding.np_random(seed)
        other.uniform()
        other.standard_normal()
        other.integers(0, 9)
        assert generator.bit_generator.state == other.bit_generator.state


# ---------------------------------------------------------------------------------------- states


def test_states_of_others_are_refused(walkers: Any) -> None:
    with envfleet.make(Drifter, 4, backend="kernel") as other:
        other.reset(seed=0)
        with pytest.raises(InvalidArgument, match="other fields than Walker"):
            walkers.set_state(other.get_state())
    before = walkers.get_state()
    walkers.step(ones(walkers))
    place = walkers.get_attr("x")
    with pytest.raises(InvalidArgument, match="other fields than Walker: pass one of the same"):
        walkers.set_state(dataclasses.replace(before, params={"goal": before.params["goal"]}))
    assert walkers.get_attr("x") == place
    for state, rows in ((walkers.get_state([0]), None), (walkers.get_state(), [0]), (None, None), ({}, [1])):
        with pytest.raises(InvalidArgument, match="set_state requires "):
            walkers.set_state(state, rows)


# ---------------------------------------------------------------------------------------- lifecycle


def test_nothing_but_attributes_before_the_first_reset() -> None:
    with envfleet.make(Walker, 2, backend="kernel") as fleet:
        assert fleet.get_attr("goal") == (4.0, 4.0)
        for call in (
            lambda: fleet.step(ones(fleet)),
            fleet.get_state,
            lambda: fleet.reset_envs([0]),
            lambda: fleet.reset(options={"reset_mask": np.array([True, False])}),
            lambda: fleet.set_attr("x", 1.0),
        ):
            with pytest.raises(ResetNeeded, match="before the first reset"):
                call()


def test_nothing_after_close() -> None:
    fleet: Any = envfleet.make(Walker, 4, backend="kernel", workers=3)
    fleet.reset(seed=0)
    fleet.close()
    fleet.close()
    for call in (fleet.reset, lambda: fleet.step(ones(fleet)), fleet.get_state, lambda: fleet.get_attr("goal")):
        with pytest.raises(FleetClosed, match="make a new one"):
            call()
    assert "closed" in repr(fleet)


def test_without_autoreset_an_ended_episode_is_not_stepped() -> None:
    with envfleet.make(Switches, 3, backend="kernel", autoreset_mode=AutoresetMode.DISABLED) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.zeros((3, 4), np.int8))
        before = pickle.dumps(fleet.get_state())
        with pytest.raises(ResetNeeded, match=r"\[0, 1, 2\] have ended"):
            fleet.step(np.zeros((3, 4), np.int8))
        assert pickle.dumps(fleet.get_state()) == before
        fleet.reset_envs([0, 2])
        assert fleet.terminated_indices == [1]
        assert fleet.engine.episodes().ended.tolist() == [False, True, False]
        with pytest.raises(ResetNeeded, match=r"\[1\] have ended"):
            fleet.send(np.zeros((2, 4), np.int8), [0, 1])
        fleet.send(np.zeros((2, 4), np.int8), [2, 0])
        assert fleet.recv().truncated.tolist() == [True, True]


def test_fleets_do_not_share_the_generators_of_their_spaces(walkers: Any) -> None:
    with envfleet.make(Walker, 4, backend="kernel") as other:
        walkers.single_action_space.seed(1)
        expected = [walkers.single_action_space.sample() for _ in range(9)]
        walkers.single_action_space.seed(1)
        other.single_action_space.seed(2)
        assert [walkers.single_action_space.sample() for _ in range(9)] == expected


def test_attributes(walkers: Any) -> None:
    walkers.set_attr("crossings", [1, 2, 3, 4])
    assert walkers.get_attr("crossings") == walkers.call("crossings") == (1, 2, 3, 4)
    assert walkers.get_attr("render_fps") == (30,) * 4
    with pytest.raises(AttributeError, match="no attribute 'speed': it has push, goal, limit, x"):
        walkers.get_attr("speed")
    with pytest.raises(KernelError, match="no attribute 'speed': it has push, goal, limit, x"):
        walkers.set_attr("speed", 1.0)
    with pytest.raises(InvalidArgument, match="leave them out"):
        walkers.call("x", 1)
    for name, values in (
        ("x", [1.0, 2.0]),
        ("x", "far"),
        ("crossings", [[1], 2, 3, 4]),
        ("crossings", 1.5),
        ("goal", [1.0, 2.0]),
    ):
        words = rf"{name}.*(one for each of the 4|one per sub-environment|array)|Values must be a list"
        with pytest.raises(InvalidArgument, match=words):
            walkers.set_attr(name, values)


def test_send_and_recv_are_a_step_in_two_calls(walkers: Any) -> None:
    with envfleet.make(Walker, 4, backend="kernel") as stepper:
        stepper.reset(seed=0)
        walkers.send(ones(walkers))
        batch = walkers.recv()
        for sent, stepped in zip(batch[:4], stepper.step(ones(stepper))[:4], strict=True):
            np.testing.assert_array_equal(sent, stepped)
        np.testing.assert_array_equal(batch.env_indices, np.arange(4))


def test_after_an_error_in_the_midst_of_a_step_a_reset_is_needed(walkers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(actions: Any, now: int) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(walkers.engine._batch, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            walkers.step(ones(walkers))
    with pytest.raises(ResetNeeded):
        walkers.step(ones(walkers))
    walkers.reset(seed=1)
    walkers.step(ones(walkers))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fleet_of_threads_goes_on_in_a_forked_child() -> None:
    with envfleet.make(Walker, 4, backend="kernel", workers=2) as fleet:
        fleet.reset(seed=0)
        fleet.step(ones(fleet))
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            fleet.step(ones(fleet))
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


class Unready:
    """As a tensor that requires a gradient, or lies on a device."""

    def __array__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("use detach() first")


@pytest.mark.parametrize(("actions", "name"), [([[0], [0, 1], 0, 0], "list"), (Unready(), "Unready")])
def test_actions_that_are_not_arrays_are_refused(walkers: Any, actions: Any, name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"actions of type {name} cannot be converted .*cpu\(\)\.numpy\(\)"):
        walkers.step(actions)
    walkers.step(ones(walkers))


def test_parameters_that_could_not_be_changed_are_as_they_were(walkers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = walkers.get_attr("goal")

    def interrupted(*_args: Any, **_options: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("envfleet.kernels.batch.compile_kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            walkers.set_attr("goal", [1.0, 2.0, 3.0, 4.0])
    walkers.reset(seed=0)
    assert walkers.get_attr("goal") == before
    walkers.step(ones(walkers))  # on parameters that are still in memory
    walkers.set_attr("goal", 0.0)
    assert walkers.step(ones(walkers))[2].all()


def test_actions_that_would_wrap_around_are_refused() -> None:
    """256 as an int8 is 0, which is in the space."""
    with envfleet.make(Switches, 2, backend="kernel") as fleet:
        fleet.reset(seed=0)
        wrong = np.zeros((2, 4), np.int64)
        wrong[1, 2] = 256
        with pytest.raises(InvalidArgument, match="sub-environment 1 is"):
            fleet.step(wrong)
        with pytest.raises(InvalidArgument, match="at step 0 the action of sub-environment 1 is"):
            fleet.rollout(wrong[None], 1)


PatientWalker = type("Walker", (Walker,), {"has_own_params": True})
"""Walks like `Walker`, and is compiled for its parameters at once."""


def test_a_kernel_with_own_params_is_compiled_once() -> None:
    is_same, observations = {}, {}
    for kernel in (Walker, PatientWalker):
        with envfleet.make(kernel, 4, backend="kernel", goal=3.0) as fleet:
            batch: Any = cast("KernelEngine", fleet.engine)._batch
            program = batch.program
            fleet.set_attr("goal", [3.0, 4.0, 5.0, 6.0])
            is_same[kernel] = batch.program is program
            fleet.reset(seed=0)
            observations[kernel] = [fleet.step(ones(fleet))[0].tolist() for _ in range(20)]
    assert is_same == {Walker: False, PatientWalker: True}
    assert observations[Walker] == observations[PatientWalker]


def test_without_a_render_mode_there_is_no_picture_of_any():
    with envfleet.make("envfleet/CartPole-v1", 3, backend="kernel") as fleet:
        fleet.reset(seed=0)
        assert fleet.render() == (None, None, None)
