"""`AsyncFleet` and `SyncFleet` beside Gymnasium's own classes: errors, and the end."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import (
    ClosedEnvironmentError,
)
from tests.unit.adapters.peers import (
    ASYNC,
    SYNC,
    Make,
    counting,
)

from envfleet.testing import FaultyEnv
from envfleet.testing.envs import AttributeEnv
from envfleet.testing.faults import PlainError

# Gymnasium's AsyncVectorEnv reports what a sub-environment raised as a warning, before it raises it.
pytestmark = pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("when", ["reset", "step"])
def test_errors_keep_their_type(kind: Make, when: Any, close_later: Make) -> None:
    faulty = functools.partial(FaultyEnv, "raise", when, nth=2)
    envs = close_later(kind, [functools.partial(FaultyEnv, None), faulty])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(PlainError):
        envs.reset() if when == "reset" else envs.step(np.zeros(2, int))


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_errors_of_calls_keep_their_type(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, [AttributeEnv] * 2)
    with pytest.raises(LookupError, match="no"):
        envs.call("refuse", "no")


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_errors_of_constructors_keep_their_type(kind: Make) -> None:
    with pytest.raises(PlainError):
        kind([functools.partial(FaultyEnv, "raise", "constructor")])


@pytest.mark.parametrize("kind", SYNC)
def test_goes_on_after_an_error(kind: Make, close_later: Make) -> None:
    """An exception in one sub-environment is no reason to make all of them again."""
    faulty = functools.partial(FaultyEnv, "raise", "step", nth=2)
    envs = close_later(kind, [functools.partial(FaultyEnv, None), faulty])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(PlainError):
        envs.step(np.zeros(2, int))
    observations, _ = envs.reset(seed=0)
    assert observations[:, 0].tolist() == [0, 0]
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("kind", ASYNC)
def test_use_after_close(kind: Make) -> None:
    envs = kind(counting(2))
    envs.close()
    envs.close()
    assert envs.closed
    assert not any(process.is_alive() for process in envs.processes)
    message = f"Trying to operate on `{kind.__name__}`, after a call to `close\\(\\)`."
    for verb, arguments in (
        ("reset", ()),
        ("reset_async", ()),
        ("reset_wait", ()),
        ("step_async", (np.zeros(2, int),)),
        ("step_wait", ()),
        ("call_async", ("length",)),
        ("call_wait", ()),
        ("set_attr", ("length", 2)),
        ("render", ()),
    ):
        with pytest.raises(ClosedEnvironmentError, match=message):
            getattr(envs, verb)(*arguments)


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
@pytest.mark.parametrize("options", [{}, {"timeout": 5}, {"timeout": 0}, {"terminate": True}])
def test_close(kind: Make, options: dict[str, Any]) -> None:
    envs = kind(counting(2))
    envs.reset(seed=0)
    envs.close(**options)
    assert envs.closed


@pytest.mark.parametrize("kind", ASYNC)
def test_close_while_a_call_is_under_way(kind: Make) -> None:
    envs = kind(counting(2))
    envs.reset(seed=0)
    envs.step_async(np.zeros(2, int))
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step` to complete"):
        envs.close(timeout=10)
    assert not any(process.is_alive() for process in envs.processes)


@pytest.mark.parametrize("kind", ASYNC)
def test_close_extras_of_a_child_is_called(kind: Any) -> None:
    """Classes derived from Gymnasium's release what is theirs in `close_extras`."""

    class Child(kind):
        released = False

        def close_extras(self, **kwargs: Any) -> None:
            self.released = True
            super().close_extras(**kwargs)

    envs = Child(counting(1))
    envs.close(terminate=True)
    assert envs.released


@pytest.mark.parametrize("kind", ASYNC)
def test_processes(kind: Make, close_later: Make) -> None:
    envs = close_later(kind, counting(1))
    (process,) = envs.processes
    assert process.name == f"Worker<{kind.__name__}>-0"
    assert process.is_alive()
    assert [process.exitcode] == [None]
    assert process.daemon
    assert isinstance(process.pid, int)
    process.join(timeout=0.01)
    assert process.is_alive()
    process.terminate()
    process.join(timeout=10)
    assert not process.is_alive()
    assert process.exitcode == -15
    envs.close(terminate=True)
    assert process.exitcode == -15


@pytest.mark.parametrize("kind", [*ASYNC, *SYNC])
def test_under_gymnasiums_wrappers(kind: Make) -> None:
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(kind(counting(2, length=2)))
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    *_, infos = envs.step(np.zeros(2, int))
    assert infos["episode"]["r"].tolist() == [3, 3]
    assert infos["episode"]["l"].tolist() == [2, 2]
    envs.close()
