"""The engine of remote fleets against services of a few lines: each call is carried out once, whenever Ctrl-C comes."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.waiting import PATIENCE_S

import envfleet.remote.engine
from envfleet.errors import CallPending, CallTimeout, ServiceUnreachable
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.remote.codec import pack, unpack
from envfleet.remote.engine import RemoteEngine
from envfleet.remote.queue import ServiceQueue
from envfleet.remote.service_link import ServiceLink

SPACES: Any = spaces.Box(0.0, np.inf, (1,), np.float64), spaces.Discrete(10)
TRACED = {str(Path(envfleet.remote.engine.__file__).with_name(name)) for name in ("engine.py", "queue.py")}
ONES = np.ones(4, np.int64)


class CountingService(ServiceLink):
    """A service with sub-environments that add up their actions; it keeps sequence numbers and keys."""

    def __init__(self, num_envs: int) -> None:
        super().__init__("http://none", None)
        self.sums = np.zeros(num_envs)
        self.seq, self.key, self.stored = 0, b"", b""
        self.is_silent = False
        self.may_answer = threading.Event()
        self.may_answer.set()

    def post(self, path: str, body: bytes, *, patience_s: float | None = None) -> Any:
        self.may_answer.wait(PATIENCE_S)
        request, verb = unpack(body), path.rpartition("/")[2]
        if self.is_silent and verb != "close":
            raise ServiceUnreachable("silence")
        if verb != "close" and (request["seq"], request["key"]) != (self.seq - 1, self.key):
            assert request["seq"] == self.seq, "a call was skipped or made twice"
            self.seq, self.key = self.seq + 1, request["key"]
            rows = request.get("rows", np.arange(len(self.sums)))
            self.sums[rows] = self.sums[rows] + request["actions"] if verb == "step" else 0.0
            none = np.zeros(len(rows), np.bool_)
            reply = {"rewards": self.sums[rows], "terminated": none, "truncated": none}
            self.stored = pack({"seq": self.seq, "observations": self.sums[rows, None], "infos": {}, **reply})
        return {} if verb == "close" else unpack(self.stored)

    def get(self, path: str, *, patience_s: float | None = None) -> Any:
        return {"seq": self.seq}


@pytest.fixture(params=[1, 2])
def services(request: pytest.FixtureRequest) -> list[CountingService]:
    return [CountingService(4 // request.param) for _ in range(request.param)]


@pytest.fixture
def fleet(services: list[CountingService]) -> Iterator[Any]:
    size = 4 // len(services)
    queues = [ServiceQueue(link, "f", range(k * size, (k + 1) * size)) for k, link in enumerate(services)]
    described = {"env": "Sums-v0", "mode": "training", "options": {}, "autoreset_mode": "NEXT_STEP"}
    with Fleet(RemoteEngine(queues, described, SPACES)) as fleet:
        fleet.reset()
        yield fleet


def interrupted_at(count: int, call: Callable[[], Any]) -> bool:
    """Call with Ctrl-C at the given line of the engine; whether it got that far."""
    left = count

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        is_with = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
        if event == "line" and not is_with:  # no signal is handled between the end of a block and its release
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def recover(fleet: Any, call: Callable[[], Any]) -> bool:
    """Make the call again if that is possible, else reset; whether it was possible."""
    if fleet._calls.state is Lifecycle.TORN:
        fleet.reset()
        return False
    call()
    return True


def test_a_step_is_made_once_wherever_it_was_interrupted(fleet: Any, services: list[CountingService]) -> None:
    expected, count, torn = 0.0, 1, 0
    while interrupted_at(count, lambda: fleet.step(ONES)):
        is_resumed = recover(fleet, lambda: fleet.step(ONES))
        expected, torn = (expected + 1.0, torn) if is_resumed else (0.0, torn + 1)
        assert (fleet.step(ONES)[0] == expected + 1.0).all()
        expected, count = expected + 1.0, count + 1
    assert count > 60
    assert torn < count / 5  # only while an answer is taken in


def test_interrupted_partial_steps_are_made_once(fleet: Any) -> None:
    fleet.batch_size = 3
    for verb in ("send", "recv"):
        count = 1
        while True:
            fleet.reset()
            if verb == "send":
                is_interrupted = interrupted_at(count, lambda: fleet.send(ONES[:3], [3, 0, 1]))
                if is_interrupted and fleet._calls.state is not Lifecycle.TORN:
                    fleet.send(ONES[:3], [3, 0, 1])
            else:
                fleet.send(ONES[:3], [3, 0, 1])
                is_interrupted = interrupted_at(count, fleet.recv)
            if fleet._calls.state is Lifecycle.TORN:
                fleet.reset()
            else:
                if fleet._calls.state is Lifecycle.PENDING:
                    assert sorted(fleet.recv().env_indices) == [0, 1, 3]
                assert fleet.step(ONES)[0].ravel().tolist() == [2.0, 2.0, 1.0, 2.0]
            if not is_interrupted:
                break
            count += 1
        assert count > 30


def test_interrupted_partial_resets_are_made_once(fleet: Any, services: list[CountingService]) -> None:
    count = 1
    while interrupted_at(count, lambda: fleet.reset_envs([3, 0])):
        before = [service.seq for service in services]
        if recover(fleet, lambda: fleet.reset_envs([3, 0])):
            num_calls = [service.seq - seq for service, seq in zip(services, before, strict=True)]
            assert max(num_calls) <= 1
        fleet.step(ONES)
        count += 1
    assert count > 60


def test_a_reset_of_all_drops_what_is_not_answered(fleet: Any, services: list[CountingService]) -> None:
    fleet.send(ONES[:2], [3, 0])
    with pytest.raises(CallPending):
        fleet.reset()
    fleet.recv()
    services[-1].is_silent = True
    fleet.send(ONES[:1], [3])
    with pytest.raises(ServiceUnreachable):
        fleet.recv()
    with pytest.raises(ServiceUnreachable):
        fleet.reset()
    services[-1].is_silent = False
    assert (fleet.reset()[0] == 0.0).all()
    assert (fleet.step(ONES)[0] == 1.0).all()


def test_certain_rows_are_waited_for(fleet: Any, services: list[CountingService]) -> None:
    services[-1].may_answer.clear()
    if len(services) == 2:
        fleet.send(ONES, [3, 1, 0, 2])
        assert fleet.recv(env_indices=[0, 1]).observations.ravel().tolist() == [1.0, 1.0]
        left = [2, 3]
    else:
        fleet.send(ONES, [3, 1, 0, 2])
        left = [1, 2, 3]
    with pytest.raises(CallTimeout):
        fleet.recv(env_indices=left, timeout_s=0.01)
    services[-1].may_answer.set()
    assert fleet.recv(env_indices=left[::-1]).env_indices.tolist() == left[::-1]


def test_all_services_but_the_first_are_asked_in_the_background(
    fleet: Any, services: list[CountingService], monkeypatch: pytest.MonkeyPatch
) -> None:
    links, start = list[ServiceLink](), ServiceQueue.start

    def record(queue: ServiceQueue, call: Any) -> None:
        links.append(queue.link)
        start(queue, call)

    monkeypatch.setattr(ServiceQueue, "start", record)
    fleet.step(ONES)
    assert links == services[1:]


def test_a_fleet_is_ended_while_a_service_does_not_answer(fleet: Any, services: list[CountingService]) -> None:
    services[-1].may_answer.clear()
    fleet.send(ONES)
    fleet.close(terminate=True)
    services[-1].may_answer.set()
