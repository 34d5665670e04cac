"""Where `AsyncFleet` and `SyncFleet` differ from Gymnasium's classes on purpose, mostly because theirs has a defect."""

from __future__ import annotations

import functools
import gc
import os
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium.error import (
    ClosedEnvironmentError,
    CustomSpaceError,
    ResetNeeded,
)
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tests.unit.adapters.peers import (
    BOTH,
    ZEROS,
)

from envfleet.adapters.gymnasium import AsyncFleet, SyncFleet
from envfleet.errors import FleetClosed, InvalidArgument
from envfleet.testing import CountingEnv, InfoEnv, check_backend
from envfleet.testing.envs import SpaceEnv

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
    before = dict(CountingEnv.metadata)  # Gymnasium's own may have been at it already, in another test
    envs = kind([CountingEnv], autoreset_mode=AutoresetMode.SAME_STEP)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert CountingEnv.metadata == before
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
    held = [kind([CountingEnv])]
    processes = getattr(held[0], "processes", [])
    with pytest.warns(ResourceWarning, match="was not closed"):
        held.clear()
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


@pytest.mark.parametrize("kind", BOTH)
def test_conformance(kind: Any) -> None:
    """All that a fleet must be, except for what Gymnasium's classes do not have."""
    modes = [AutoresetMode.SAME_STEP] if kind is AsyncFleet else list(AutoresetMode)
    checked = check_backend(kind, autoreset_modes=modes, copy_modes=[False], num_steps=4, skip={"send_recv"})
    assert checked > 30 * len(modes)
