"""A sub-environment raises: the caller gets one clear error, chained to the original, on every backend."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL, Backend
from tests.fault.builders import FAULTY, NUM_ENVS, actions, env_fns_with, receive_often, reset_and_step
from tests.waiting import wait_until

from envfleet.errors import NothingPending, ResetNeeded, SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.testing.envs import AttributeEnv
from envfleet.testing.faults import PlainError, TwoArgumentsError, UnpicklableError, When

RAISING: dict[str, str] = {
    "raise": "PlainError",
    "raise_two_arguments": "TwoArgumentsError",
    "raise_unpicklable": "UnpicklableError",
    "raise_bad_repr": "BadReprError",
    "raise_stop_iteration": "StopIteration",
    "sys_exit": "SystemExit",
    "keyboard_interrupt": "KeyboardInterrupt",
    "generator_exit": "GeneratorExit",
}
CALLERS = ("keyboard_interrupt",)  # in the caller's own thread this is the caller's


def provoke(fleet: Any, verb: str) -> None:
    reset_and_step(fleet, 6 if verb == "step" else 0)


@pytest.mark.parametrize("verb", ["reset", "step"])
@pytest.mark.parametrize("fault", RAISING)
def test_says_what_failed_where(backend: Backend, fault: str, verb: When) -> None:
    if backend.name == "serial" and fault in CALLERS:
        pytest.skip("the caller's own thread: passes through")
    fleet = backend(env_fns_with(fault, verb), autoreset_mode=AutoresetMode.DISABLED)
    try:
        with pytest.raises(SubEnvError) as caught:
            provoke(fleet, verb)
        error = caught.value
        assert (error.env_index, error.verb) == (FAULTY, verb)
        failure = error.failures[0]
        assert failure.type_name == RAISING[fault]
        assert len(error.failures) == 1
        text = str(error)
        for clue in (f"sub-environment {FAULTY}", f"failed in {verb}", RAISING[fault], "_fail", str(failure.pid)):
            assert clue in text
        for call in (lambda: fleet.step(actions(0)), lambda: fleet.call("count"), lambda: fleet.reset_envs([0])):
            with pytest.raises(ResetNeeded, match="failed or was interrupted: reset all"):
                call()
        fleet.reset(seed=5)  # which makes it whole again
        with SERIAL(env_fns_with(fault, faulty=())) as healthy:
            healthy.reset(seed=5)
            seen = [0, 2, 3]  # but for the number of episodes
            np.testing.assert_array_equal(fleet.step(actions(0))[0][:, seen], healthy.step(actions(0))[0][:, seen])
    finally:
        fleet.close()


@pytest.mark.parametrize(
    ("fault", "original"),
    [("raise", PlainError), ("raise_two_arguments", TwoArgumentsError), ("raise_unpicklable", UnpicklableError)],
)
def test_is_chained_to_the_original(backend: Backend, fault: str, original: type[Exception]) -> None:
    with backend(env_fns_with(fault)) as fleet, pytest.raises(SubEnvError) as caught:
        provoke(fleet, "step")
    cause = caught.value.__cause__
    if backend.has_processes and original is not PlainError:
        assert cause is None  # it did not survive the trip; the text says all the same
    else:
        assert isinstance(cause, original)


def test_keyboard_interrupt_passes_through_the_callers_thread() -> None:
    with SERIAL(env_fns_with("keyboard_interrupt")) as fleet, pytest.raises(KeyboardInterrupt):
        provoke(fleet, "step")


def test_several_are_raised_together(backend: Backend) -> None:
    with backend(env_fns_with("raise", faulty=(0, 1, 3))) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            fleet.step(actions(0))
        assert [failure.env_index for failure in caught.value.failures] == [0, 1, 3]
        assert len({failure.worker for failure in caught.value.failures}) == fleet.plan.num_workers


def test_error_has_seed_step_and_action(backend: Backend) -> None:
    env_fns = env_fns_with("raise", nth=3, vary=False, length=9)
    with backend(env_fns) as fleet:
        fleet.reset(seed=20)
        fleet.step(np.full(NUM_ENVS, 3))
        fleet.step(np.full(NUM_ENVS, 3))
        with pytest.raises(SubEnvError) as caught:
            fleet.step(np.full(NUM_ENVS, 3))
    failure = caught.value.failures[0]
    assert (failure.seed, failure.step) == (20 + FAULTY, 2)
    assert "3" in str(failure.action)
    assert "seeded with 21" in str(caught.value)


def test_during_autoreset(backend: Backend) -> None:
    """An autoreset that fails reports a reset, not a step."""
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        with backend(env_fns_with("raise", "reset", nth=2, vary=False, length=1), autoreset_mode=mode) as fleet:
            with pytest.raises(SubEnvError) as caught:
                reset_and_step(fleet, 2)
            assert (caught.value.env_index, caught.value.verb) == (FAULTY, "reset")


def test_send_and_recv(backend: Backend) -> None:
    with backend(env_fns_with("raise"), batch_size=1) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError) as caught:
            receive_often(fleet)
        assert caught.value.env_index == FAULTY
        with pytest.raises(NothingPending):
            fleet.recv()
        fleet.reset(seed=0)
        receive_often(fleet)


# ------------------------------------------------------------------------------------------------ constructor, close


@pytest.mark.parametrize("fault", RAISING)
def test_constructor(backend: Backend, fault: str) -> None:
    if backend.name == "serial" and fault in CALLERS:
        with pytest.raises(KeyboardInterrupt):
            backend(env_fns_with(fault, "constructor"))
        return
    with pytest.raises(SubEnvError) as caught:
        backend(env_fns_with(fault, "constructor"))
    assert (caught.value.env_index, caught.value.verb) == (FAULTY, "make")
    assert RAISING[fault] in str(caught.value)


def test_constructor_failure_closes_those_built_before(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(SubEnvError):
        backend([functools.partial(_NotingEnv, str(tmp_path), index, index == 3) for index in range(4)])
    built = {int(path.name.split("-")[1]) for path in tmp_path.glob("built-*")}
    closed = {int(path.name.split("-")[1]) for path in tmp_path.glob("closed-*")}
    assert built - {3} == closed


class _NotingEnv(CountingEnv):
    """Leaves a file when it is built and one when it is closed."""

    def __init__(self, folder: str, index: int, is_faulty: bool = False) -> None:
        super().__init__()
        self.folder, self.index = folder, index
        self._note("built")
        if is_faulty:
            wait_until(lambda: all(Path(folder, f"built-{other}").exists() for other in range(index)))
            raise PlainError

    def _note(self, what: str) -> None:
        Path(self.folder, f"{what}-{self.index}").touch()

    def close(self) -> None:
        self._note("closed")


@pytest.mark.parametrize("fault", ["raise", "raise_two_arguments", "sys_exit"])
def test_close(backend: Backend, fault: str) -> None:
    """The error is raised once, after all resources have been released (checked by the module's leak check)."""
    fleet = backend(env_fns_with(fault, "close"))
    fleet.reset(seed=0)
    with pytest.raises(SubEnvError) as caught:
        fleet.close()
    assert (caught.value.env_index, caught.value.verb) == (FAULTY, "close")
    assert fleet.closed
    fleet.close()


def test_close_tells_also_of_those_that_close_last(backend: Backend, tmp_path: Path) -> None:
    """However early other workers are done, and gone."""
    fleet = backend([functools.partial(_NotingEnv, str(tmp_path), index) for index in range(3)] + [_LateEnv])
    fleet.reset(seed=0)
    with pytest.raises(SubEnvError, match="closed late") as caught:
        fleet.close()
    assert caught.value.env_index == 3


class _LateEnv(CountingEnv):
    def close(self) -> None:
        time.sleep(0.3)
        raise PlainError("closed late")


def test_close_reaches_every_sub_environment(backend: Backend, tmp_path: Path) -> None:
    with backend([functools.partial(_NotingEnv, str(tmp_path), index) for index in range(5)]) as fleet:
        fleet.reset(seed=0)
    assert len(list(tmp_path.glob("closed-*"))) == 5


def test_call_and_render_do_not_break_the_fleet(backend: Backend) -> None:
    with backend([AttributeEnv] * 3) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match="because") as caught:
            fleet.call("refuse", "because")
        assert isinstance(caught.value.__cause__, LookupError)
        assert [failure.env_index for failure in caught.value.failures] == [0, 1, 2]
        with pytest.raises((SubEnvError, AttributeError), match="no_such"):
            fleet.get_attr("no_such")
        assert fleet.step(actions(0, 3))[0][:, 0].tolist() == [1, 1, 1]
    env_fns = [functools.partial(FaultyEnv, "raise", "render", render_mode="rgb_array")] * 2
    with backend(env_fns) as fleet:
        fleet.reset(seed=0)
        with pytest.raises(SubEnvError, match="broken on purpose"):
            fleet.render()
        assert len(fleet.render()) == 2
