"""Where `AsyncFleet` and `SyncFleet` differ from Gymnasium's classes on purpose, mostly because theirs has a defect."""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, CustomSpaceError, ResetNeeded
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.core.replay import replay
from envfleet.errors import FleetBroken, FleetClosed, InvalidArgument, SubEnvError, WorkerDied
from envfleet.testing import CountingEnv, FaultyEnv, InfoEnv
from envfleet.testing.envs import SpaceEnv
from envfleet.testing.faults import PlainError

BOTH = (AsyncFleet, SyncFleet)
ZEROS = np.zeros(2, int)


def faulty(fault: str, when: Any = "step", **options: Any) -> list[Any]:
    """Two sub-environments, of which the second fails."""
    return [functools.partial(FaultyEnv, None), functools.partial(FaultyEnv, fault, when, **options)]


# ------------------------------------------------------------------------------------------------ waiting


@pytest.mark.parametrize("verb", ["reset", "step", "call"])
def test_a_wait_that_timed_out_can_be_repeated(verb: str) -> None:
    """Gymnasium forgets the call: its late result is taken for that of the next one, and all later ones are off by one."""
    slow_in = {"reset": "reset", "step": "step", "call": "render"}[verb]
    nth = 3 if verb == "reset" else 2
    envs = AsyncFleet(faulty("slow", slow_in, nth=nth, duration_s=0.5), workers=2)
    envs.reset(seed=0)
    envs.reset(seed=0)
    envs.step(ZEROS)
    envs.render()
    arguments: dict[str, tuple[Any, ...]] = {"step": (ZEROS,), "call": ("render",)}
    getattr(envs, f"{verb}_async")(*arguments.get(verb, ()))
    with pytest.raises(multiprocessing.TimeoutError):
        getattr(envs, f"{verb}_wait")(timeout=0.05)
    assert envs._state.value == verb
    with pytest.raises(AlreadyPendingCallError):
        envs.step_async(ZEROS)
    result = getattr(envs, f"{verb}_wait")(timeout=30)
    count = {"reset": 0, "step": 2, "call": 1}[verb]
    if verb == "call":
        assert result == (None, None)
    else:
        assert result[0][:, 0].tolist() == [count, count]
    for _ in range(3):
        count += 1
        observations, rewards, *_ = envs.step(ZEROS)
        assert observations[:, 0].tolist() == rewards.tolist() == [count, count]
    envs.close()


def test_wait_with_a_timeout_of_0_asks_whether_it_is_there() -> None:
    envs = AsyncFleet([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    for _ in range(1000):
        try:
            result = envs.step_wait(timeout=0)
        except multiprocessing.TimeoutError:
            time.sleep(0.01)
        else:
            break
    assert result[1].tolist() == [1, 1]
    envs.close()


def test_ctrl_c_while_waiting() -> None:
    """What was under way is given up, and the next reset begins anew."""
    envs = AsyncFleet(faulty("slow", nth=1, duration_s=1.0), workers=2)
    envs.reset(seed=0)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        envs.step(ZEROS)
    timer.join()
    assert envs._state is AsyncState.DEFAULT
    assert envs.reset(seed=0)[0][:, 0].tolist() == [0, 0]
    assert envs.step(ZEROS)[1].tolist() == [1, 1]
    envs.close()


def test_close_after_a_timeout_does_not_warn() -> None:
    """Whoever waited knows."""
    envs = AsyncFleet(faulty("hang"), workers=2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.raises(multiprocessing.TimeoutError):
        envs.step_wait(timeout=0.05)
    start_s = time.perf_counter()
    envs.close(timeout=0.1)
    assert time.perf_counter() - start_s < 5
    assert [process.is_alive() for process in envs.processes] == [False, False]


def test_close_releases_everything_when_its_warning_is_an_error() -> None:
    envs = AsyncFleet([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.raises(UserWarning, match="pending call"):
        envs.close()
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)


# ------------------------------------------------------------------------------------------------ failures


@pytest.mark.parametrize("kind", BOTH)
def test_errors_tell_where_they_come_from(kind: Any) -> None:
    envs = kind(faulty("raise", nth=2))
    envs.reset(seed=5)
    envs.step(ZEROS)
    with pytest.raises(PlainError, match="broken on purpose") as caught:
        envs.step(ZEROS)
    cause = caught.value.__cause__
    assert isinstance(cause, SubEnvError)
    assert (cause.env_index, cause.verb, cause.failures[0].seed) == (1, "step", 6)
    assert "broken on purpose" in str(cause)
    assert cause.__cause__ is None  # or the two would go round in circles
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("fault", ["raise_two_arguments", "raise_unpicklable", "raise_bad_repr"])
def test_errors_of_any_type(kind: Any, fault: str) -> None:
    """Gymnasium calls `type(error)(error)`, which is a TypeError where the constructor takes something else."""
    envs = kind(faulty(fault))
    envs.reset(seed=0)
    with pytest.raises(Exception, match=r".*") as caught:
        envs.step(ZEROS)
    error = caught.value if isinstance(caught.value, SubEnvError) else caught.value.__cause__
    assert isinstance(error, SubEnvError)
    assert error.env_index == 1
    envs.close()


@pytest.mark.parametrize("fault", ["sys_exit", "keyboard_interrupt"])
def test_what_would_end_the_caller_does_not(fault: str) -> None:
    """`sys.exit` in a sub-environment is its failure, not the end of the program."""
    envs = AsyncFleet(faulty(fault))
    envs.reset(seed=0)
    with pytest.raises(SubEnvError):
        envs.step(ZEROS)
    envs.close()


def test_constructor_that_fails_in_a_worker_only() -> None:
    """Gymnasium: BrokenPipeError or ConnectionResetError, for it builds only the first in the caller's process."""
    with pytest.raises(PlainError):
        AsyncFleet(faulty("raise", "constructor"))


def test_constructor_that_fails_closes_those_built_before(tmp_path: Path) -> None:
    marker = tmp_path / "closed"
    with pytest.raises(PlainError):
        SyncFleet([functools.partial(_MarkingEnv, str(marker)), functools.partial(FaultyEnv, "raise", "constructor")])
    assert marker.exists()


class _MarkingEnv(CountingEnv):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = Path(path)

    def close(self) -> None:
        self.path.touch()


def test_worker_that_dies() -> None:
    """Gymnasium: EOFError, then AlreadyPendingCallError, and close() never returns."""
    envs = AsyncFleet(faulty("os_exit"), workers=2)
    envs.reset(seed=0)
    with pytest.raises(WorkerDied, match="exited with code 3"):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.reset()
    assert [process.is_alive() for process in envs.processes] == [True, False]
    assert envs.processes[1].exitcode == 3
    envs.close()
    assert not envs.processes[0].is_alive()


def test_sync_fleet_needs_a_reset_after_an_error() -> None:
    envs = SyncFleet(faulty("raise", nth=1))
    envs.reset(seed=0)
    with pytest.raises(PlainError):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.step(ZEROS)
    with pytest.raises(FleetBroken):
        envs.reset(options={"reset_mask": np.array([False, True])})
    envs.reset(seed=0)
    assert envs.step(ZEROS)[1].tolist() == [1, 1]
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_errors_of_close_arrive_after_everything_is_released(kind: Any) -> None:
    envs = kind(faulty("raise", "close"))
    envs.reset(seed=0)
    with pytest.raises(PlainError):
        envs.close()
    assert envs.closed
    envs.close()


def test_errors_of_a_pending_call_arrive_when_closing() -> None:
    envs = AsyncFleet(faulty("raise"))
    envs.reset(seed=0)
    envs.step_async(ZEROS)
    with pytest.warns(UserWarning, match="pending call"), pytest.raises(PlainError):
        envs.close()
    assert not any(process.is_alive() for process in envs.processes)


def test_replay_of_a_sync_fleet_builds_a_fresh_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`SyncFleet` builds its sub-environments itself; a replay file must not hold them as they were when they failed."""
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))
    envs = SyncFleet(faulty("raise", nth=3))
    envs.reset(seed=0)
    with pytest.raises(PlainError) as caught:
        for _ in range(3):
            envs.step(ZEROS)
    envs.close()
    cause = caught.value.__cause__
    assert isinstance(cause, SubEnvError)
    assert cause.replay_file is not None
    report = replay(cause.replay_file)
    assert report.reproduced, report.text


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize("is_masked", [True, False])
def test_reset_clears_a_pending_autoreset(shared_memory: bool, is_masked: bool) -> None:
    """Gymnasium without shared memory resets a second time, in the next step."""
    envs = AsyncFleet([functools.partial(CountingEnv, 1)] * 2, shared_memory)
    envs.reset(seed=0)
    assert envs.step(ZEROS)[2].all()
    envs.reset(options={"reset_mask": np.array([True, True])} if is_masked else None)
    observations, rewards, *_ = envs.step(ZEROS)
    assert observations[:, 0].tolist() == rewards.tolist() == [1, 1]
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_options_of_the_caller_are_left_alone(kind: Any) -> None:
    """Gymnasium takes `reset_mask` out of the caller's dict, so that the next reset with it resets all."""
    envs = kind([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step(ZEROS)
    options = {"reset_mask": np.array([True, False]), "start": 3}
    for _ in range(2):
        observations, _ = envs.reset(options=options)
        assert observations[:, 0].tolist() == [3, 1]
    assert set(options) == {"reset_mask", "start"}
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_class_of_the_environment_keeps_its_metadata(kind: Any) -> None:
    """Gymnasium writes the autoreset mode into it."""
    envs = kind([lambda: gymnasium.make("CartPole-v1")])
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert "autoreset_mode" not in gymnasium.make("CartPole-v1").metadata
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_infos_of_unlike_types_keep_their_values(kind: Any) -> None:
    """Gymnasium truncates 1.25 to 1 where another sub-environment gave an int first."""
    envs = kind([functools.partial(InfoEnv, "mixed", index) for index in range(2)])
    _, infos = envs.reset(seed=0)
    assert [infos["number"][0], infos["number"][1]] == [0, 1.25]
    envs.close()


@pytest.mark.parametrize("kind", ["float16", "oneof", "text", "sequence", "graph", "custom", "part_odd"])
def test_any_space(kind: str) -> None:
    """With Gymnasium's shared memory: an error, or (OneOf) the observation of the first reset for ever."""
    assert issubclass(CustomSpaceError, Exception)
    envs = AsyncFleet([functools.partial(SpaceEnv, kind)] * 2)
    observations = [envs.reset(seed=0)[0], *(envs.step(ZEROS)[0] for _ in range(3))]
    assert all(observation in envs.observation_space for observation in observations)
    assert len({repr(observation) for observation in observations}) > 1
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_views_stay_for_one_call_more(kind: Any) -> None:
    envs = kind([CountingEnv] * 2, copy=False)
    envs.reset(seed=0)
    first = envs.step(ZEROS)[0]
    second = envs.step(ZEROS)[0]
    assert (first[0, 0], second[0, 0]) == (1, 2)
    envs.step(ZEROS)
    assert (first[0, 0], second[0, 0]) == (3, 2)
    envs.close()


@pytest.mark.parametrize("copy", [True, False])
def test_observations_attribute(copy: bool) -> None:
    envs = AsyncFleet([CountingEnv] * 2, copy=copy)
    envs.reset(seed=0)
    envs.step(ZEROS)
    assert envs.observations[:, 0].tolist() == [1, 1]
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_stepping_an_ended_episode(kind: Any) -> None:
    """Gymnasium: an AssertionError that names nothing (sync), or nothing at all (async)."""
    envs = kind([functools.partial(CountingEnv, length) for length in (1, 3)], autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=0)
    envs.step(ZEROS)
    with pytest.raises(ResetNeeded, match=r"\[0\]"):
        envs.step(ZEROS)
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.step(ZEROS)[1].tolist() == [1, 2]
    envs.close()


# ------------------------------------------------------------------------------------------------ the classes


def test_workers() -> None:
    """Many sub-environments in one process; Gymnasium starts a process for each."""
    envs = AsyncFleet([CountingEnv] * 5, workers=2)
    assert [process.env_indices for process in envs.processes] == [range(3), range(3, 5)]
    assert [process.pid for process in envs.processes] == [worker.pid for worker in envs.fleet.stats().workers]
    assert "sub-environments 3–4" in repr(envs.processes[1])
    envs.close()
    default = AsyncFleet([CountingEnv] * 64)
    assert len(default.processes) <= len(os.sched_getaffinity(0))
    assert default.fleet.plan.backend == "process"
    default.close()


def test_any_iterable_of_callables() -> None:
    """`AsyncVectorEnv` wants a sequence, `SyncVectorEnv` takes an iterator."""
    envs = AsyncFleet(functools.partial(CountingEnv, length) for length in (2, 3))
    assert envs.get_attr("length") == (2, 3)
    envs.close()


@pytest.mark.parametrize("kind", BOTH)
def test_is_no_instance_of_gymnasiums_classes(kind: Any) -> None:
    envs = kind([CountingEnv])
    assert not isinstance(envs, (AsyncVectorEnv, SyncVectorEnv))
    envs.close()


def test_worker_function_is_refused() -> None:
    def worker(*args: Any) -> None:
        raise AssertionError("never called")

    with pytest.raises(NotImplementedError, match="autoreset_mode"):
        AsyncFleet([CountingEnv], worker=worker)
    with pytest.raises(InvalidArgument):
        AsyncFleet([CountingEnv], worker=worker)


def test_unknown_context_is_refused() -> None:
    context: Any = "thread"
    with pytest.raises(ValueError, match="cannot find context 'thread'"):
        AsyncFleet([CountingEnv], context=context)


@pytest.mark.parametrize("kind", BOTH)
def test_no_callables(kind: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        kind([])


def test_sync_fleet_after_close() -> None:
    """Gymnasium's goes on with closed sub-environments."""
    envs = SyncFleet([CountingEnv] * 2)
    envs.close()
    for call in (envs.reset, envs.render, lambda: envs.step(ZEROS), lambda: envs.set_attr("length", 1)):
        with pytest.raises(ClosedEnvironmentError, match="Trying to operate on `SyncFleet`"):
            call()


def test_sync_fleets_sub_environments_cannot_be_replaced() -> None:
    """The fleet would not see it; a tuple says so, where a list would take it and do nothing."""
    envs = SyncFleet([CountingEnv])
    with pytest.raises(TypeError):
        envs.envs[0] = CountingEnv()  # type: ignore[index]
    envs.close()


def test_built_environments_pickle_as_their_callables() -> None:
    from envfleet.adapters.gymnasium.sync_fleet import _Built

    built = _Built(functools.partial(CountingEnv, 7))
    assert built() is built.env
    again = cloudpickle.loads(cloudpickle.dumps(built))()
    assert again is not built.env
    assert again.length == 7


@pytest.mark.parametrize("kind", BOTH)
def test_what_nobody_closed(kind: Any) -> None:
    """Gymnasium closes it without a word; the fleet inside warns, and ends its workers all the same."""
    envs = kind([CountingEnv])
    processes = getattr(envs, "processes", [])
    with pytest.warns(ResourceWarning, match="was not closed"):
        del envs
        gc.collect()
    for process in processes:
        process.join(timeout=10)
        assert not process.is_alive()


def test_fleet_inside_that_was_closed_by_itself() -> None:
    envs = SyncFleet([CountingEnv])
    envs.fleet.close()
    with pytest.raises(FleetClosed):
        envs.reset()
    envs.close()
