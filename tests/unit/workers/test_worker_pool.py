"""The owner's side of the workers: requests, waits, and the budget of restarts."""

from __future__ import annotations

import functools
import time
from typing import Any

import pytest
from tests.unit.workers.alone import plan_of

from envfleet.errors import CallTimeout, EnvfleetError, RestartBudgetSpent, SubEnvError
from envfleet.testing import CountingEnv, FaultyEnv
from envfleet.workers.board import ASKED, DONE, Verb
from envfleet.workers.messages import GroupInfo
from envfleet.workers.transports.inline import InlineTransport
from envfleet.workers.worker_pool import WorkerPool


def pool_of(*env_fns: Any, **options: Any) -> WorkerPool:
    plan = plan_of(env_fns, **options)
    return WorkerPool([plan], plan.options, InlineTransport([plan], {}), lambda seeds, rows: "")


def build(pool: WorkerPool) -> Any:
    pool.send(Verb.BUILD, {0: plan_of([CountingEnv, CountingEnv])})
    return pool.replies(pool.finish([0]))[0].value


def test_a_request_has_a_number_that_its_worker_repeats() -> None:
    pool = pool_of(CountingEnv, CountingEnv)
    assert isinstance(build(pool), GroupInfo)
    line = pool.lines[0]
    first = line[ASKED]
    pool.send(Verb.CALL, {0: ("call", ("count", (), {}, None))})
    assert (line[ASKED] >> 4, line[ASKED] & 7) == ((first >> 4) + 1, Verb.CALL)
    assert line[DONE] == line[ASKED]
    assert pool.replies([0])[0].value == [0, 0]
    pool.close(1.0)


def test_a_wait_ends_at_its_timeout_and_watches_the_workers() -> None:
    pool, ticks = pool_of(CountingEnv, start_timeout_s=0.02), []
    with pytest.raises(CallTimeout):
        pool.wait(lambda: False, lambda: ticks.append(1), 0.1)
    assert ticks
    pool.wait(lambda: len(ticks) > 100, lambda: ticks.extend([1] * 100), None)


def test_restarts_are_limited_within_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, now = pool_of(CountingEnv, max_restarts=2), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    cause = EnvfleetError("worker 0 ended")
    pool.spend(0, cause)
    pool.spend(0, cause)
    with pytest.raises(RestartBudgetSpent, match=r"2 restarts within the last hour, max_restarts=2.*worker 0 ended"):
        pool.spend(0, cause)
    now[0] += 3601.0
    pool.spend(0, cause)
    assert pool.restarts[0] == 3


def test_a_failed_build_is_raised_by_the_call_that_asked_for_it() -> None:
    pool = pool_of(functools.partial(FaultyEnv, "raise", "constructor"))
    with pytest.raises(SubEnvError, match="PlainError"):
        pool.send(Verb.BUILD, {0: plan_of([functools.partial(FaultyEnv, "raise", "constructor")])})
    pool.settle()
    assert pool.lines[0][DONE] == pool.lines[0][ASKED]
