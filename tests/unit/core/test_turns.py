"""A sub-environment can be interrupted while it runs, and each of its resets has a deadline of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import envfleet
from envfleet.core.arrays import PlaceWord
from envfleet.core.failures import StepInterrupted
from envfleet.testing import CountingEnv


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
