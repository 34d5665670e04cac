"""Values of the wrong shape, type or content, from sub-environments and from the caller."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from tests.conftest import Backend
from tests.fault.builders import FAULTY, actions, env_fns_with
from tests.waiting import PATIENCE_S

from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded, SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv, InfoEnv
from envfleet.testing.envs import ActionKeeperEnv, LockedEnv, SpaceEnv
from envfleet.testing.faults import When

# fault -> words the message must contain
BAD_RESULTS: dict[str, tuple[str, ...]] = {
    "wrong_shape": ("(7,)", "(5,)"),
    "shape_that_spreads": ("(1,)", "(5,)"),
    "wrong_dtype": ("float64",),
    "no_observation": ("None",),
    "wrong_key": ("dict",),
    "too_few_values": ("tuple of 4", "truncated"),
    "text_reward": ("much",),
    "info_not_a_dict": ("info", "list"),
}


@pytest.mark.parametrize(
    "autoreset_mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name
)
@pytest.mark.parametrize("fault", BAD_RESULTS)
def test_bad_step(backend: Backend, fault: str, autoreset_mode: AutoresetMode) -> None:
    with backend(env_fns_with(fault, nth=2, length=9, vary=False), autoreset_mode=autoreset_mode) as fleet:
        fleet.reset(seed=0)
        fleet.step(actions(0))
        with pytest.raises(SubEnvError) as caught:
            fleet.step(actions(1))
    assert caught.value.env_index == FAULTY
    for clue in BAD_RESULTS[fault]:
        assert clue in caught.value.failures[0].message


@pytest.mark.parametrize("fault", ["wrong_shape", "wrong_dtype", "no_observation", "too_few_values", "info_not_a_dict"])
def test_bad_reset(backend: Backend, fault: str) -> None:
    with backend(env_fns_with(fault, "reset")) as fleet, pytest.raises(SubEnvError) as caught:
        fleet.reset(seed=0)
    assert (caught.value.env_index, caught.value.verb) == (FAULTY, "reset")


def test_bad_dict_observation(backend: Backend) -> None:
    with backend(env_fns_with("wrong_key", dict_obs=True)) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match="unheard_of"):
            fleet.step(actions(0))


class _LossyEnv(SpaceEnv):
    """Returns floats for a space of whole numbers: rounding them in silence would hide a mistake."""

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        wrong: dict[str, Any] = {"image": np.full((8, 6, 3), 0.7), "discrete": 1.5, "multibinary": np.full((2, 3), 0.5)}
        return wrong[self.kind], *rest

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@pytest.mark.parametrize("kind", ["image", "discrete", "multibinary"])
def test_fractions_for_whole_numbers(backend: Backend, kind: str) -> None:
    with backend([functools.partial(_LossyEnv, kind)] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"float|1\.5"):
            fleet.step(np.zeros(2, int))


class _TextFlagEnv(CountingEnv):
    """Returns a flag as text, such as one that was read from a file; every text but the empty one is true."""

    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, "False", truncated, info


def test_flags_that_are_text(backend: Backend) -> None:
    with backend([_TextFlagEnv] * 2) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"step\(\) returned terminated='False', expected True or False"):
            fleet.step(np.zeros(2, int))


def test_nan_reward_is_passed_on(backend: Backend) -> None:
    """As everywhere: it is a number, and the neighbours' are untouched."""
    with backend(env_fns_with("nan_reward")) as fleet:
        fleet.reset(seed=0)
        rewards = fleet.step(actions(0))[1]
        assert np.isnan(rewards).tolist() == [index == FAULTY for index in range(len(rewards))]


@pytest.mark.parametrize("when", ["reset", "step"])
def test_unpicklable_info(backend: Backend, when: When) -> None:
    """In one process it is passed on; out of another it cannot be, and the error says which key."""
    with backend(env_fns_with("unpicklable_info", when)) as fleet:

        def provoke() -> Any:
            infos = fleet.reset(seed=0)[1]
            return infos if when == "reset" else fleet.step(actions(0))[4]

        if backend.has_processes:
            with pytest.raises(SubEnvError, match=rf"the result of {when} in \['lock'\] cannot be sent") as caught:
                provoke()
            assert (caught.value.env_index, caught.value.verb) == (FAULTY, when)
        else:
            assert provoke()["_lock"].tolist() == [index == FAULTY for index in range(fleet.num_envs)]


def test_unpicklable_info_of_an_ended_episode() -> None:
    env_fns = env_fns_with("unpicklable_info", length=1, vary=False)
    with Backend("process", 2)(env_fns, autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match=r"the result of step in \['final_info'\]\['lock'\] cannot be sent"):
            fleet.step(actions(0))


def test_unpicklable_info_of_all(backend: Backend) -> None:
    with backend([functools.partial(InfoEnv, "unpicklable", index) for index in range(3)]) as fleet:
        if backend.has_processes:
            with pytest.raises(SubEnvError) as caught:
                fleet.reset(seed=0)
            assert [failure.env_index for failure in caught.value.failures] == [0, 1, 2]
        else:
            assert fleet.reset(seed=0)[1]["count"].tolist() == [0, 0, 0]


# ------------------------------------------------------------------------------------------------ from the caller


def box(low: float = -1.0) -> ActionKeeperEnv:
    return ActionKeeperEnv(100)


BAD_BOX_ACTIONS: dict[str, Any] = {
    "too few": np.zeros((2, 2), np.float32),
    "too many": np.zeros((4, 2), np.float32),
    "wrong size": np.zeros((3, 3), np.float32),
    "flat": np.zeros(6, np.float32),
    "nan": np.array([[0, 0], [0, np.nan], [0, 0]], np.float32),
    "text": np.full((3, 2), "left"),
    "none": None,
    "ragged": [[0.0, 0.0], [0.0], [0.0, 0.0]],
    "complex": np.zeros((3, 2), np.complex64),
}


@pytest.mark.parametrize("name", BAD_BOX_ACTIONS)
def test_bad_actions_are_refused_and_do_no_harm(backend: Backend, name: str) -> None:
    with backend([box] * 3) as fleet:
        fleet.reset(seed=0)
        before = fleet.step(np.full((3, 2), 0.5, np.float32))[0]
        for call in (fleet.step, fleet.send):
            with pytest.raises(InvalidArgument, match="action"):
                call(BAD_BOX_ACTIONS[name])
        after = fleet.step(np.full((3, 2), 0.25, np.float32))[0]
        np.testing.assert_array_equal(after, np.full((3, 2), 0.5, np.float32))  # the action before: nothing between
        assert before.shape == after.shape


@pytest.mark.parametrize("bad", [np.array([0.5, 1, 1]), np.array([0, 1]), np.array([0, 1, np.nan]), "abc", 1])
def test_bad_discrete_actions(backend: Backend, bad: Any) -> None:
    with backend([CountingEnv] * 3) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="action"):
            fleet.step(bad)
        assert fleet.step(np.array([1, 1, 1]))[0][:, 0].tolist() == [1, 1, 1]


def test_actions_within_the_shape_are_the_environments_business(backend: Backend) -> None:
    """Out of bounds is not out of shape: many environments clip for themselves, and Gymnasium lets it pass."""
    with backend([box] * 3) as fleet:
        fleet.reset(seed=0)
        fleet.step(np.full((3, 2), 7.0))  # float64, out of bounds
        fleet.step([[0.0, 1.0]] * 3)  # a list
        observations, *_ = fleet.step(np.zeros((3, 2), np.int64))
        np.testing.assert_array_equal(observations, [[0, 1]] * 3)


DISCRETE: dict[str, tuple[spaces.Space[Any], Any, str]] = {
    "Discrete": (spaces.Discrete(2), np.array([1, 7, 0]), r"7 in row 1, expected 0 to 1"),
    "Discrete that starts below 0": (spaces.Discrete(3, start=-1), np.array([-1, 1, -2]), "-2 in row 2"),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [2, 0], [0, -1]]), r"row 1 \(and rows \[2\]\)"),
    "MultiBinary": (spaces.MultiBinary(2), np.array([[0, 1], [1, 1], [0, 2]], np.int8), "row 2"),
    "a part of a Dict": (
        spaces.Dict(go=spaces.Discrete(2), by=spaces.Box(0, 1)),
        {"go": np.array([0, 2, 0]), "by": np.zeros((3, 1), np.float32)},
        r'actions\["go"\] has 2 in row 1',
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_actions_outside_a_discrete_space_are_refused(backend: Backend, name: str) -> None:
    space, bad, clue = DISCRETE[name]
    with backend([functools.partial(_StrictEnv, space)] * 3) as fleet:
        fleet.reset(seed=0)
        good = fleet.action_space.sample()
        fleet.step(good)
        for call in (fleet.step, fleet.send, lambda actions: fleet.send(actions, [0, 1, 2])):
            with pytest.raises(InvalidArgument, match=clue):
                call(bad)
        fleet.step(good)
        assert fleet.get_attr("steps") == (2, 2, 2)


def test_actions_outside_the_space_of_some(backend: Backend) -> None:
    """Some of a worker's rows are stepped in another way than all of them."""
    with backend([functools.partial(_StrictEnv, spaces.Discrete(2))] * 3) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match="7 in row 0"):
            fleet.send(np.array([7]), [1])
        fleet.send(np.array([1]), [1])
        assert fleet.recv().env_indices.tolist() == [1]


class _StrictEnv(CountingEnv):
    """Dies of an action that is not in its space, as Gymnasium's CartPole does."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(100)
        self.action_space = space
        self.steps = 0

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.steps += 1
        return super().step(0)


def test_bad_nested_action_names_the_part(backend: Backend) -> None:
    with backend([functools.partial(SpaceEnv, "box", "nested")] * 2) as fleet:
        fleet.reset(seed=0)
        actions = fleet.action_space.sample()
        assert isinstance(fleet.action_space, spaces.Dict)
        with pytest.raises(InvalidArgument, match="mask"):
            fleet.step({**actions, "mask": np.zeros((2, 9), np.int8)})
        with pytest.raises(InvalidArgument, match="deep"):
            fleet.step({key: value for key, value in actions.items() if key != "deep"})
        fleet.step(actions)


BAD_RESETS: dict[str, dict[str, Any]] = {
    "too few seeds": {"seed": [1, 2]},
    "negative seed": {"seed": -1},
    "seed of text": {"seed": "abc"},
    "seed of float": {"seed": 0.5},
    "mask of wrong length": {"options": {"reset_mask": np.ones(2, np.bool_)}},
    "mask of ints": {"options": {"reset_mask": np.array([0, 1, 2])}},
    "mask of text": {"options": {"reset_mask": "all"}},
}


@pytest.mark.parametrize("name", BAD_RESETS)
def test_bad_resets_are_refused(backend: Backend, name: str) -> None:
    with backend([CountingEnv] * 3) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"seed|mask"):
            fleet.reset(**BAD_RESETS[name])
        assert fleet.step(np.zeros(3, int))[0][:, 0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("seed", [np.int64(3), np.uint32(3), [np.int64(3), 4, None], np.array([3, 4, 5]), (3, 4, 5)])
def test_seeds_of_every_kind(backend: Backend, seed: Any) -> None:
    """Numbers come from numpy as often as not."""
    with backend([CountingEnv] * 3) as fleet:
        first = fleet.reset(seed=seed)[0][:, 2]
        again = fleet.reset(seed=3)[0][:, 2]
        np.testing.assert_array_equal(first[:2], again[:2])


BAD_INDICES: tuple[Any, ...] = ([3], [-4], [0, 0], [0.5], ["a"], [[0], [1]], [True, False, True], None, 1.5)


@pytest.mark.parametrize("indices", BAD_INDICES, ids=str)
def test_bad_indices_are_refused(backend: Backend, indices: Any) -> None:
    with backend([CountingEnv] * 3) as fleet:
        fleet.reset(seed=0)
        states = fleet.get_state([0])
        with pytest.raises((InvalidArgument, TypeError)):
            fleet.reset_envs(indices)
        if indices is not None:
            with pytest.raises((InvalidArgument, TypeError)):
                fleet.get_state(indices)
            with pytest.raises((InvalidArgument, TypeError)):
                fleet.set_state(states, indices)
        assert fleet.step(np.zeros(3, int))[0][:, 0].tolist() == [1, 1, 1]


def test_bad_numbers_of_calls_are_refused(make_fleet: Callable[..., Any]) -> None:
    """They tore the fleet, with errors of Gymnasium's and Python's own."""
    with make_fleet(num_envs=2, autoreset_mode="NEXT_STEP") as fleet:
        fleet.reset(seed=0)
        with pytest.raises(InvalidArgument, match=r"seed=-1: pass a whole number from 0 to 2\*\*32 - 1"):
            fleet.rollout("random", 2, seed=-1)
        first, again = (fleet.rollout("random", 2, seed=seed) for seed in (7, np.int64(7)))
        np.testing.assert_array_equal(first.actions, again.actions)
        fleet.send(np.zeros(2, int))
        for timeout_s in ("a", [1.0], np.nan, np.inf, True):
            with pytest.raises(InvalidArgument, match=r"timeout_s=.*: pass a number of seconds"):
                fleet.recv(timeout_s=timeout_s)
        assert fleet.recv(timeout_s=PATIENCE_S).env_indices.tolist() == [0, 1]


def test_bad_states_are_refused(backend: Backend) -> None:
    with backend([CountingEnv] * 3) as fleet:
        fleet.reset(seed=0)
        states = fleet.get_state()
        for bad_states in (states[:2], [None] * 3, [*states, states[0]], "abc"):
            with pytest.raises(InvalidArgument, match="state"):
                fleet.set_state(bad_states)
        fleet.set_state(states)
        assert fleet.step(np.zeros(3, int))[0][:, 0].tolist() == [1, 1, 1]


def test_what_cannot_travel_is_refused_without_harm(backend: Backend) -> None:
    """Arguments and results that cannot be pickled raise a clear error, and the fleet stays usable."""
    lock = threading.Lock()
    with backend([LockedEnv] * 3) as fleet:
        fleet.reset(seed=0)
        calls: tuple[Callable[[], Any], ...] = (
            lambda: fleet.reset(options={"lock": lock}),
            lambda: fleet.set_attr("length", [5, 5, lock]),
            lambda: fleet.call("render", lock),
            lambda: fleet.get_attr("lock"),
        )
        refusal: Any = pytest.raises(EnvfleetError, match="pickle")
        for call in calls:
            with refusal if backend.has_processes else contextlib.suppress(Exception):
                call()
        fleet.set_attr("length", 5)
        fleet.reset(seed=0)
        assert fleet.step(np.zeros(3, int))[0][:, 0].tolist() == [1, 1, 1]


class _OneWay:
    """Pickles, and does not unpickle."""

    def __reduce__(self) -> Any:
        return _refuse, ()


def _refuse() -> None:
    raise LookupError("no way back")


class _OneWayEnv(CountingEnv):
    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "odd": _OneWay()} if action == 3 else info

    def odd(self) -> Any:
        return _OneWay()


def test_what_does_not_unpickle_is_refused_in_words(backend: Backend) -> None:
    """Neither a worker nor the fleet's process fails of it; where nothing is pickled it is passed on."""
    with backend([_OneWayEnv] * 3) as fleet:
        fleet.reset(seed=0)
        calls: tuple[tuple[Callable[[], Any], str], ...] = (
            (lambda: fleet.call("render", _OneWay()), "cannot be unpickled in worker 0 .*no way back"),
            (lambda: fleet.call("odd"), "reply of worker 0 .*cannot be unpickled here .*no way back"),
            (lambda: fleet.step(np.array([0, 3, 0])), "reply of worker 0 for sub-environments .*no way back"),
            (lambda: fleet.reset(options={"odd": _OneWay()}), "cannot be unpickled in worker 0 .*no way back"),
        )
        for call, words in calls:
            refusal: Any = pytest.raises(EnvfleetError, match=words)
            with refusal if backend.has_processes else contextlib.suppress(SubEnvError):
                call()
            fleet.reset(seed=0)
        assert fleet.step(np.zeros(3, int))[0][:, 0].tolist() == [1, 1, 1]
        assert fleet.stats().restarts == 0


def test_a_callable_that_workers_cannot_read() -> None:
    with pytest.raises(InvalidArgument, match=r"cannot be unpickled in worker 0 .*no way back"):
        Backend("process", 2)([functools.partial(CountingEnv, cast("Any", _OneWay()))] * 2)


def test_steps_before_the_first_reset_and_after_the_end(backend: Backend) -> None:
    with backend([CountingEnv, CountingEnv], autoreset_mode=AutoresetMode.DISABLED) as fleet:
        with pytest.raises(ResetNeeded, match="reset"):
            fleet.step(np.zeros(2, int))
        fleet.reset(seed=0)
        fleet.set_attr("episode_length", [1, 5])
        assert fleet.step(np.zeros(2, int))[2].tolist() == [True, False]
        for call in (fleet.step, fleet.send):
            with pytest.raises(ResetNeeded, match=r"\b0\b"):
                call(np.zeros(2, int))
        fleet.send(np.zeros(1, int), [1])  # the other one stays usable
        assert fleet.recv().env_indices.tolist() == [1]
        fleet.reset_envs([0])
        assert fleet.step(np.zeros(2, int))[0][:, 0].tolist() == [1, 3]


def test_faulty_names_its_own_mistakes() -> None:
    with pytest.raises(ValueError, match="wrong_shape"):
        FaultyEnv("no such fault")
