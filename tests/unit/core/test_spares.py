"""Spares are closed, whatever they were doing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import envfleet
from envfleet.errors import SubEnvError
from envfleet.testing import CountingEnv


class Tracked(CountingEnv):
    """Its resets take a while, and some of them raise."""

    opened: list[Tracked]
    closed: list[Tracked]
    resets: list[Tracked]
    failing_reset = 0  # number of the reset that raises, of all of them

    def __init__(self) -> None:
        super().__init__(1)
        self.opened.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(0.02)
        self.resets.append(self)
        if len(self.resets) == self.failing_reset:
            raise ArithmeticError("no start")
        return super().reset(seed=seed, options=options)

    def close(self) -> None:
        self.closed.append(self)
        super().close()


@pytest.fixture(autouse=True)
def _nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opened", "closed", "resets"):
        monkeypatch.setattr(Tracked, name, [], raising=False)


def test_those_that_wait_for_their_reset_are_closed() -> None:
    with envfleet.make(Tracked, 4, backend="serial", spares=True, autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        fleet.step([0] * 4)  # all are replaced, and wait in line
    assert len(Tracked.opened) >= 8
    assert set(map(id, Tracked.closed)) == set(map(id, Tracked.opened))


def test_one_whose_reset_raised_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tracked, "failing_reset", 3)
    options: dict[str, Any] = {"backend": "serial", "spares": True, "on_failure": "restart"}
    with envfleet.make(Tracked, 1, **options) as fleet:
        fleet.reset(seed=0)
        for _ in range(6):
            fleet.step([0])
    assert len(Tracked.resets) > 3
    assert set(map(id, Tracked.closed)) == set(map(id, Tracked.opened))


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_one_whose_reset_hangs_is_left_behind(backend: Any) -> None:
    """The others are closed, and the one that was left behind once its reset is over, too."""
    with _hanging_spare(backend) as (fleet, go_on):
        with pytest.raises(SubEnvError, match=r"still in reset\(\)"):
            fleet.close(timeout=0.1)
        assert sum(one in Tracked.closed for one in Tracked.opened) == len(Tracked.opened) - 1
        go_on.set()
    assert set(map(id, Tracked.closed)) == set(map(id, Tracked.opened))


@contextlib.contextmanager
def _hanging_spare(backend: Any) -> Iterator[tuple[Any, threading.Event]]:
    """A fleet of two whose second spare is in a reset until it may go on."""
    go_on, is_stuck = threading.Event(), threading.Event()

    class Hanging(Tracked):
        def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
            if threading.current_thread().name == "envfleet-spares" and len(self.opened) == 4:
                is_stuck.set()
                go_on.wait()
            return super().reset(**kwargs)

    fleet = envfleet.make(Hanging, 2, backend=backend, workers=1, spares=True)
    is_stuck.wait()
    yield fleet, go_on
    for thread in threading.enumerate():
        if thread.name == "envfleet-spares":
            thread.join()


def test_a_failure_names_the_seed_that_was_used() -> None:
    """Also of a spare that was reset before its row was rebuilt, when other seeds were due."""
    seeds: list[int | None] = []

    class Failing(CountingEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.seed = seed
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> Any:
            if action == 1:
                seeds.append(self.seed)
                raise ArithmeticError
            return super().step(action)

    with envfleet.make(lambda: Failing(1), 1, backend="serial", spares=True, on_failure="restart") as fleet:
        fleet.reset(seed=0)
        told = []
        for action in (1, 0, 0, 0, 1):
            infos = fleet.step([action])[4]
            if "env_error" in infos:
                told.append(infos["env_error"][0])
    assert len(told) == 2
    for seed, text in zip(seeds, told, strict=True):
        assert f"seeded with {seed}," in text


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_no_time_to_close_is_enough_for_those_that_are_idle(backend: Any) -> None:
    fleet = envfleet.make(Tracked, 2, backend=backend, workers=1, spares=True)
    while len(Tracked.resets) < 2:
        time.sleep(0.001)
    fleet.close(terminate=True)
    assert set(map(id, Tracked.closed)) == set(map(id, Tracked.opened))
