"""An owner's choice between waiting awake and asleep."""

from __future__ import annotations

import functools
import itertools
import os
import time
import types
from collections.abc import Iterator
from typing import Any, cast

import gymnasium as gym
import pytest

import envfleet
from envfleet.workers import board
from envfleet.workers.board import IS_AWAKE, OWNER_SPIN_NS, SpinPolicy, Waiter, lines_of
from envfleet.workers.engine import WorkersEngine
from envfleet.workers.transports import process


class Machine:
    """Cycles that take given microseconds awake and asleep, on a simulated clock."""

    def __init__(self, awake_us: float, asleep_us: float) -> None:
        self.line = lines_of(bytearray, 0)[0]
        self.policy, self.now_ns, self.is_awake = SpinPolicy(self.line), time.perf_counter_ns(), False
        self.costs_us = {True: awake_us, False: asleep_us}

    def run(self, count: int) -> Iterator[bool]:
        for _ in range(count):
            self.now_ns += round(1000 * self.costs_us[self.is_awake])
            self.policy.next_step(self.now_ns)
            self.is_awake = bool(self.line[IS_AWAKE])
            yield self.is_awake

    def share_awake(self, count: int = 8192) -> float:
        return sum(self.run(count)) / count


@pytest.mark.parametrize(
    ("awake_us", "asleep_us", "is_awake"),
    [
        (100, 300, True),
        (4000, 150, False),  # a busy machine: a yielded core comes back late
        (100, 102, False),  # a tie
        (1500, 1300, False),  # a policy on all cores, which workers awake slow down
    ],
)
def test_the_way_that_makes_cycles_shorter_is_kept(awake_us: float, asleep_us: float, is_awake: bool) -> None:
    machine = Machine(awake_us, asleep_us)
    assert not any(machine.run(15))  # it begins asleep
    assert sum(machine.run(496)) > 0
    assert machine.share_awake() == pytest.approx(float(is_awake), abs=0.02)


def test_the_way_changes_with_the_machine() -> None:
    machine = Machine(100, 300)
    machine.share_awake()
    machine.costs_us[True] = 4000  # another program begins to compute
    machine.share_awake(256)
    assert machine.share_awake() < 0.02
    machine.costs_us[True] = 100
    machine.share_awake()  # a trial finds it
    assert machine.share_awake() > 0.98


def test_a_busy_machine_is_slow_for_a_few_cycles_only() -> None:
    """Awake, a cycle takes a hundred times as long: trials end with their first cycle, and so does what was kept."""
    machine = Machine(30_000, 300)
    assert sum(machine.run(50)) == 1
    assert sum(machine.run(450)) <= 4
    machine = Machine(100, 300)
    machine.share_awake()
    machine.costs_us[True] = 30_000
    assert sum(machine.run(64)) <= 4


def test_one_late_cycle_ends_no_good_trial() -> None:
    """Medians are compared, also of a trial that was ended early."""
    machine = Machine(100, 300)
    assert sum(machine.run(16 + 1 + 64 + 3)) > 0
    machine.now_ns += 5 * 10**6
    assert machine.share_awake() > 0.9


def test_a_pause_between_steps_changes_nothing() -> None:
    machine = Machine(100, 300)
    machine.share_awake()
    for _ in range(20):
        machine.now_ns += 10**9
        assert sum(machine.run(50)) >= 50 - 16


def test_waiting_ends_awake_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0, 1000)  # a microsecond passes from one look at the clock to the next
    monkeypatch.setattr(board, "time", types.SimpleNamespace(perf_counter_ns=lambda: next(ticks)))
    owner = lines_of(bytearray, 0)[0]
    slept: list[float] = []

    def sleep(timeout_s: float) -> bool:
        slept.append(timeout_s)
        return True

    waiter = Waiter(owner, owner, sleep, spin_ns=OWNER_SPIN_NS, spin_policy=SpinPolicy(owner))
    assert waiter.spin_policy is not None
    for _ in range(16):  # until it is tried awake
        start_ns = next(ticks)
        waiter.spin_policy.next_step(start_ns)
    assert not waiter.wait(lambda: False, start_ns)
    assert waiter.waited_ns >= OWNER_SPIN_NS
    assert len(slept) == 1
    assert owner[IS_AWAKE]
    waiter.never_awake()
    before_ns = waiter.waited_ns
    assert not waiter.wait(lambda: False, next(ticks), 0.5)
    assert waiter.waited_ns - before_ns < OWNER_SPIN_NS
    assert slept[1] <= 0.5
    assert not owner[IS_AWAKE]


class Late(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that takes some milliseconds a step."""

    def __init__(self, late_s: float) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self._late_s = late_s

    def step(self, action: Any) -> Any:
        time.sleep(self._late_s)
        return super().step(action)


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_an_owner_asleep_is_woken_once_a_step(backend: Any) -> None:
    """The last worker wakes it; those that are done sooner leave it asleep."""
    env_fns = [functools.partial(Late, 0.005 * row) for row in range(4)]
    with envfleet.make(env_fns, backend=backend, workers=4) as fleet:
        fleet.reset(seed=0)
        waiter = cast("WorkersEngine", fleet.engine)._pool.waiter
        waiter.never_awake()
        sleep, num_sleeps = waiter.sleep, 0

        def sleep_and_count(timeout_s: float) -> bool:
            nonlocal num_sleeps
            num_sleeps += 1
            return sleep(timeout_s)

        waiter.sleep = sleep_and_count
        for _ in range(40):
            fleet.step(fleet.action_space.sample())
        assert 0 < num_sleeps < 120  # 160 if each rang; of workers that finish together, two may ring


@pytest.mark.parametrize(("cores", "spins"), [(2, False), (3, True)])
def test_an_owner_spins_only_with_a_core_left(cores: int, spins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers spin in both cases: the policy tries it after 16 steps."""
    yields = itertools.count()
    monkeypatch.setattr(process, "whole_cores", lambda: cores)
    monkeypatch.setattr(os, "sched_yield", lambda: next(yields))
    with envfleet.make("CartPole-v1", 4, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        for _ in range(40):
            fleet.step(fleet.action_space.sample())
    assert bool(next(yields)) is spins
