"""A sub-environment can be interrupted while it runs; each of its resets, and its constructor, has its own limit."""

from __future__ import annotations

import signal
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.core.arrays import PlaceWord
from envfleet.core.failures import StepInterrupted
from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv
from envfleet.transports import inline


class Raising(CountingEnv):
    """Its resets note where the fleet sees them, and one may raise."""

    places: list[int]
    line: Any = None
    error: type[BaseException] | None = None

    def __init__(self) -> None:
        super().__init__(1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self.line is not None:
            self.places.append(PlaceWord.place(self.line))
        error, Raising.error = self.error, None
        if error is not None:
            raise error
        return super().reset(seed=seed, options=options)


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(Raising, "places", [], raising=False)
    options: dict[str, Any] = {"on_failure": "restart", "step_timeout_s": 30.0}
    with envfleet.make(Raising, 2, backend="serial", **options) as fleet:
        fleet.reset(seed=0)
        monkeypatch.setattr(Raising, "line", fleet._engine.arrays.progress[0])
        yield fleet


def test_a_second_reset_has_its_own_deadline(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.step(np.zeros(2, int))
    monkeypatch.setattr(Raising, "error", StepInterrupted)
    infos = fleet.step(np.zeros(2, int))[4]
    assert "ran longer than step_timeout_s" in infos["env_error"][0]
    assert len(set(Raising.places)) == 3
    assert 0 not in Raising.places


class Slow(CountingEnv):
    """Fails in its first step; its second constructor takes an hour of the clock that deadlines go by."""

    clock: types.SimpleNamespace | None = None
    line: Any = None

    def __init__(self) -> None:
        super().__init__(9)
        if self.clock is None:
            return
        self.was_building = PlaceWord.is_building(self.line, PlaceWord.place(self.line))
        signal.raise_signal(signal.SIGALRM)  # somebody looks
        self.clock.late_s += 3600.0
        signal.raise_signal(signal.SIGALRM)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert not PlaceWord.is_building(Slow.line, PlaceWord.place(Slow.line))
        if not hasattr(self, "was_building"):
            raise ArithmeticError
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        assert Slow.line is None or not PlaceWord.is_building(Slow.line, PlaceWord.place(Slow.line))
        return super().reset(seed=seed, options=options)


def test_no_deadline_of_a_step_is_a_constructors(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = types.SimpleNamespace(late_s=0.0)
    monkeypatch.setattr(inline, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + clock.late_s))
    options: dict[str, Any] = {"on_failure": "restart", "step_timeout_s": 30.0}
    with envfleet.make(Slow, 1, backend="serial", autoreset_mode=AutoresetMode.SAME_STEP, **options) as fleet:
        fleet.reset(seed=0)
        monkeypatch.setattr(Slow, "line", fleet._engine.arrays.progress[0])
        monkeypatch.setattr(Slow, "clock", clock)
        truncated, infos = fleet.step(np.zeros(1, int))[3:]
        assert truncated.tolist() == [True]
        assert "ArithmeticError" in infos["env_error"][0]
        assert fleet.get_attr("was_building") == (True,)
        assert fleet.step(np.zeros(1, int))[0][:, 0].tolist() == [1]
    assert clock.late_s == 3600.0


def test_an_interrupt_while_a_failed_reset_is_dealt_with(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the reset's own, which is made once more; the fleet goes on."""
    rows = fleet._engine.transport._group._rows
    describe_failure, interrupts = rows.describe_failure, [StepInterrupted]

    def interrupted(*args: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return describe_failure(*args)

    monkeypatch.setattr(rows, "describe_failure", interrupted)
    monkeypatch.setattr(Raising, "error", ArithmeticError)
    observations, _ = fleet.reset()
    assert observations[:, 0].tolist() == [0, 0]
    assert len(Raising.places) == len(set(Raising.places)) == 3
    fleet.step(np.zeros(2, int))


def test_nothing_can_be_interrupted_that_is_over(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a reset nor after a call, whether they failed or not."""
    group, seen = fleet._engine.transport._group, []

    def note(self: Any, *args: Any) -> None:
        seen.append(PlaceWord.place(Raising.line))

    monkeypatch.setattr(type(group), "_add_info", note)
    fleet.reset()
    assert seen == [0, 0]
    monkeypatch.setattr(type(group._rows.direct), "adopt", note)
    with pytest.raises(SubEnvError):
        fleet.call(_divide)
    assert seen == [0] * 4
    assert PlaceWord.place(Raising.line) == 0


def _divide(env: Any) -> float:
    return 1 / int(env.unwrapped.count)
