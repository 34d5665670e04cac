"""Deliberate differences of `AsyncFleet` and `SyncFleet` from Gymnasium's classes, mostly because of defects there."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.fault.builders import StuckEnv
from tests.unit.adapters.peers import BOTH, ZEROS, faulty
from tests.waiting import PATIENCE_S, wait_until

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.errors import CallPending, FleetBroken, InvalidArgument, SubEnvError, WorkerDied
from envfleet.fleet.fleet import Fleet
from envfleet.testing import CountingEnv, InfoEnv
from envfleet.testing.envs import SpaceEnv
from envfleet.testing.faults import BadReprError, PlainError, TwoArgumentsError, UnpicklableError

# ------------------------------------------------------------------------------------------------ waiting


@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_a_wait_that_timed_out_can_be_repeated(verb: str) -> None:
    """Gymnasium forgets the call, takes its late result for that of the next one, and is off by one ever after."""
    slow_in = {"reset": "reset", "step": "step", "call": "render"}[verb]
    nth = 3 if verb == "reset" else 2
    with AsyncFleet(faulty("slow", slow_in, nth=nth, duration_s=2.0), workers=2) as envs:
        envs.reset(seed=0)
        envs.reset(seed=0)
        envs.step(ZEROS)
        envs.render()
        arguments: dict[str, tuple[Any, ...]] = {"step": (ZEROS,), "call": ("render",)}
        getattr(envs, f"{verb}_async")(*arguments.get(verb, ()))
        with pytest.raises(multiprocessing.TimeoutError):
            getattr(envs, f"{verb}_wait")(timeout=0.05)
        with pytest.raises(AlreadyPendingCallError, match=rf"call {verb}_wait\(\) first"):
            envs.step_async(ZEROS)
        with pytest.raises(CallPending, match=rf"call {verb}_wait\(\) first"):
            envs.send(ZEROS)
        result = getattr(envs, f"{verb}_wait")(timeout=PATIENCE_S)
        count = {"reset": 0, "step": 2, "call": 1}[verb]
        if verb == "call":
            assert result == (None, None)
        else:
            assert result[0][:, 0].tolist() == [count, count]
        for _ in range(3):
            count += 1
            observations, rewards, *_ = envs.step(ZEROS)
            assert observations[:, 0].tolist() == rewards.tolist() == [count, count]


def test_a_timeout_that_is_no_number_of_seconds_loses_nothing() -> None:
    with AsyncFleet([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        envs.step_async(ZEROS)
        with pytest.raises(InvalidArgument, match="timeout='5': pass a number of seconds"):
            envs.step_wait(timeout="5")  # type: ignore[arg-type]
        assert envs.step_wait()[1].tolist() == [1, 1]


def test_wait_with_a_timeout_of_0_asks_whether_it_is_there() -> None:
    with AsyncFleet([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        envs.step_async(ZEROS)
        results: list[Any] = []

        def is_there() -> bool:
            with contextlib.suppress(multiprocessing.TimeoutError):
                results.append(envs.step_wait(timeout=0))
            return bool(results)

        wait_until(is_there)
        assert results[0][1].tolist() == [1, 1]


def test_send_and_step_wait_go_together() -> None:
    with AsyncFleet([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        envs.send(ZEROS)
        assert envs.step_wait()[1].tolist() == [1, 1]
        envs.step_async(ZEROS)
        assert envs.recv().rewards.tolist() == [2, 2]


def test_a_call_that_raised_is_over() -> None:
    with AsyncFleet(faulty("raise", "render")) as envs:
        envs.reset(seed=0)
        envs.call_async("render")
        with pytest.raises(PlainError):
            envs.call_wait()
        assert envs.step(ZEROS)[1].tolist() == [1, 1]


def test_ctrl_c_while_waiting(tmp_path: Path) -> None:
    """The pending call is abandoned, and the next reset starts new episodes."""
    release = tmp_path / "release"

    def interrupt() -> None:
        wait_until(lambda: "_stay" in envs.stacks()[0])
        os.kill(os.getpid(), signal.SIGINT)

    with AsyncFleet([functools.partial(StuckEnv, release, nth=1)] * 2, workers=2) as envs:
        envs.reset(seed=0)
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come before the wait has begun
            envs.step_async(ZEROS)
            envs.step_wait()
        thread.join()
        release.touch()
        envs.reset_async(seed=0)
        assert envs.reset_wait()[0][:, 0].tolist() == [0, 0]
        assert envs.step(ZEROS)[1].tolist() == [1, 1]


@pytest.mark.parametrize("options", [{"timeout": 0.1}, {"terminate": True}])
def test_close_with_a_call_that_hangs(options: dict[str, Any]) -> None:
    envs = AsyncFleet(faulty("hang"), workers=2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    envs.close(**options)  # the step would take an hour


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("kind", BOTH)
def test_errors_tell_where_they_come_from(kind: Any) -> None:
    with kind(faulty("raise", nth=2)) as envs:
        envs.reset(seed=5)
        envs.step(ZEROS)
        with pytest.raises(PlainError, match="broken on purpose") as caught:
            envs.step(ZEROS)
        cause = caught.value.__cause__
        assert isinstance(cause, SubEnvError)
        assert (cause.env_index, cause.verb, cause.failures[0].seed) == (1, "step", 6)
        assert cause.__cause__ is None  # or the two would go round in circles
        with pytest.raises(ResetNeeded):
            envs.step(ZEROS)
        envs.reset(seed=0)
        assert envs.step(ZEROS)[1].tolist() == [1, 1]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("fault", ["raise_two_arguments", "raise_unpicklable", "raise_bad_repr"])
def test_errors_of_any_type(kind: Any, fault: str) -> None:
    """Gymnasium calls `type(error)(error)`, which is a TypeError where the constructor takes something else."""
    with kind(faulty(fault)) as envs:
        envs.reset(seed=0)
        with pytest.raises((SubEnvError, TwoArgumentsError, UnpicklableError, BadReprError)) as caught:
            envs.step(ZEROS)
        error = caught.value if isinstance(caught.value, SubEnvError) else caught.value.__cause__
        assert isinstance(error, SubEnvError)
        assert error.env_index == 1


@pytest.mark.parametrize("fault", ["sys_exit", "keyboard_interrupt"])
def test_what_would_end_the_caller_does_not(fault: str) -> None:
    """`sys.exit` in a sub-environment is its failure, not the end of the program."""
    with AsyncFleet(faulty(fault)) as envs:
        envs.reset(seed=0)
        with pytest.raises(SubEnvError):
            envs.step(ZEROS)


@pytest.mark.parametrize("kind", BOTH)
def test_a_constructor_that_fails_closes_those_built_before(kind: Any, tmp_path: Path) -> None:
    """Gymnasium: BrokenPipeError or ConnectionResetError, for it builds only the first in the caller's process."""
    marker = tmp_path / "closed"
    with pytest.raises(PlainError):
        kind([functools.partial(_MarkingEnv, str(marker)), *faulty("raise", "constructor")[1:]])
    assert marker.exists()


class _MarkingEnv(CountingEnv):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def close(self) -> None:
        self.path.touch()


def test_worker_that_dies() -> None:
    """Gymnasium: EOFError, then AlreadyPendingCallError, and close() never returns."""
    with AsyncFleet(faulty("os_exit"), workers=2) as envs:
        envs.reset(seed=0)
        with pytest.raises(WorkerDied, match="exited with code 3"):
            envs.step(ZEROS)
        with pytest.raises(FleetBroken):
            envs.reset()


def test_on_failure_restart() -> None:
    with AsyncFleet(faulty("os_exit"), workers=2, on_failure="restart") as envs:
        envs.reset(seed=0)
        assert envs.step(ZEROS)[3].tolist() == [False, True]


@pytest.mark.parametrize("kind", BOTH)
def test_errors_of_close_arrive_after_everything_is_released(kind: Any) -> None:
    envs = kind(faulty("raise", "close"))
    envs.reset(seed=0)
    with pytest.raises(PlainError):
        envs.close()
    assert envs.closed
    envs.close()


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("is_masked", [True, False])
def test_reset_clears_a_pending_autoreset(is_masked: bool) -> None:
    """Gymnasium without shared memory resets a second time, in the next step."""
    with AsyncFleet([functools.partial(CountingEnv, 1)] * 2, shared_memory=False) as envs:
        envs.reset(seed=0)
        assert envs.step(ZEROS)[2].all()
        envs.reset(options={"reset_mask": np.array([True, True])} if is_masked else None)
        observations, rewards, *_ = envs.step(ZEROS)
        assert observations[:, 0].tolist() == rewards.tolist() == [1, 1]


@pytest.mark.parametrize("kind", BOTH)
def test_options_of_the_caller_are_left_alone(kind: Any) -> None:
    """Gymnasium takes `reset_mask` out of the caller's dict, so that the next reset with it resets all."""
    with kind([CountingEnv] * 2) as envs:
        envs.reset(seed=0)
        envs.step(ZEROS)
        options = {"reset_mask": np.array([True, False]), "start": 3}
        for _ in range(2):
            observations, _ = envs.reset(options=options)
            assert observations[:, 0].tolist() == [3, 1]
        assert set(options) == {"reset_mask", "start"}


@pytest.mark.parametrize("kind", BOTH)
def test_class_of_the_environment_keeps_its_metadata(kind: Any) -> None:
    """Gymnasium writes the autoreset mode into it."""
    before = dict(CountingEnv.metadata)  # Gymnasium's own may have been at it already, in another test
    with kind([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert CountingEnv.metadata == before


@pytest.mark.parametrize("kind", BOTH)
def test_infos_of_unlike_types_keep_their_values(kind: Any) -> None:
    """Gymnasium truncates 1.25 to 1 where another sub-environment gave an int first."""
    with kind([functools.partial(InfoEnv, "mixed", index) for index in range(2)]) as envs:
        _, infos = envs.reset(seed=0)
        assert [infos["number"][0], infos["number"][1]] == [0, 1.25]


@pytest.mark.parametrize("kind", ["float16", "oneof", "text", "sequence", "graph", "custom", "part_odd"])
def test_any_space(kind: str) -> None:
    """With Gymnasium's shared memory: an error, or (OneOf) always the observation of the first reset."""
    with AsyncFleet([functools.partial(SpaceEnv, kind)] * 2) as envs:
        observations = [envs.reset(seed=0)[0], *(envs.step(ZEROS)[0] for _ in range(3))]
        assert all(observation in envs.observation_space for observation in observations)
        assert len({repr(observation) for observation in observations}) > 1


@pytest.mark.parametrize("kind", BOTH)
def test_views_stay_for_one_call_more(kind: Any) -> None:
    with kind([CountingEnv] * 2, copy=False) as envs:
        envs.reset(seed=0)
        first = envs.step(ZEROS)[0]
        second = envs.step(ZEROS)[0]
        assert (first[0, 0], second[0, 0]) == (1, 2)
        envs.step(ZEROS)
        assert (first[0, 0], second[0, 0]) == (3, 2)


@pytest.mark.parametrize("kind", BOTH)
def test_stepping_an_ended_episode(kind: Any) -> None:
    """Gymnasium: an AssertionError that names nothing (sync), or nothing at all (async)."""
    lengths = [functools.partial(CountingEnv, length) for length in (1, 3)]
    with kind(lengths, autoreset_mode=AutoresetMode.DISABLED) as envs:
        envs.reset(seed=0)
        envs.step(ZEROS)
        with pytest.raises(ResetNeeded, match=r"\[0\]"):
            envs.step(ZEROS)
        envs.reset(options={"reset_mask": np.array([True, False])})
        assert envs.step(ZEROS)[1].tolist() == [1, 2]


# ------------------------------------------------------------------------------------------------ the classes


def test_workers() -> None:
    """Many sub-environments in one process; Gymnasium starts a process for each."""
    with AsyncFleet([CountingEnv] * 5, workers=2) as envs:
        assert [worker.env_indices for worker in envs.stats().workers] == [range(3), range(3, 5)]
    with AsyncFleet([CountingEnv] * 64) as envs:
        assert envs.plan.num_workers <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("kind", BOTH)
def test_is_a_fleet(kind: Any) -> None:
    assert issubclass(kind, Fleet)
    assert not issubclass(kind, (AsyncVectorEnv, SyncVectorEnv))
    with kind(functools.partial(CountingEnv, length) for length in (2, 3)) as envs:
        assert envs.get_attr("length") == (2, 3)


def test_arguments_that_cannot_be_used() -> None:
    context: Any = "thread"
    with pytest.raises(InvalidArgument, match="autoreset_mode"):
        AsyncFleet([CountingEnv], worker=print)
    with pytest.raises(ValueError, match="cannot find context 'thread'"):
        AsyncFleet([CountingEnv], context=context)
    for kind in BOTH:
        with pytest.raises(ValueError, match="empty"):
            kind([])
        with pytest.raises(InvalidArgument, match="observation_mode"):
            kind([CountingEnv], observation_mode=("same", "same"))
        with pytest.raises(InvalidArgument, match="means nothing"):
            kind([CountingEnv], device="cuda")


def test_sync_fleet_after_close() -> None:
    """Gymnasium's class continues with closed sub-environments."""
    envs = SyncFleet([CountingEnv] * 2)
    envs.close()
    for call in (envs.reset, envs.render, lambda: envs.step(ZEROS), lambda: envs.set_attr("length", 1)):
        with pytest.raises(ClosedEnvironmentError):
            call()
