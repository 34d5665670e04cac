"""Who counts as stopped, having work and being in no sub-environment."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from envfleet.core import dispatch
from envfleet.core.arrays import PROGRESS_WORDS
from envfleet.core.dispatch import Dispatcher, Inbox, RestartBudget
from envfleet.core.messages import ALL_ROWS, Completion, Request, Verb


class Scripted:
    """A transport of one worker, which hands out what it is told to."""

    def __init__(self, can_look: bool) -> None:
        self.answers: collections.deque[list[Completion]] = collections.deque()
        self.killed: list[int] = []
        self._can_look = can_look

    def submit(self, worker: int, request: Request) -> tuple[()]:
        return ()

    def wait(self, timeout_s: float | None) -> list[Completion]:
        return self.answers.popleft() if self.answers else []

    def can_look(self, worker: int) -> bool:
        return self._can_look

    def pid(self, worker: int) -> int:
        return 0

    def kill(self, worker: int, why: Exception) -> None:
        self.killed.append(worker)


def look(monkeypatch: pytest.MonkeyPatch, *answers: list[Completion], can_look: bool = True) -> tuple[list[int], Inbox]:
    """Ask a worker for something, pause for longer than it may stay silent, and listen."""
    monkeypatch.setattr(dispatch, "OUTSIDE_S", 0.0)
    transport: Any = Scripted(can_look)
    options: dict[str, Any] = {"on_failure": "raise", "start_timeout_s": 1.0, "recorder": None, "step_timeout_s": 1e-6}
    progress = np.zeros((1, PROGRESS_WORDS), np.int64)
    dispatcher = Dispatcher(transport, progress, [range(1)], budget=RestartBudget(1), **options)
    inbox: Inbox = collections.deque()
    dispatcher.submit(inbox, 0, Verb.CALL)
    for answer in ([], *answers):
        transport.answers.append(answer)
    for _ in range(2):
        dispatcher._next_look_s = 0.0
        dispatcher.pump(0.0)
    return transport.killed, inbox


def test_one_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch)[0] == [0]


def test_one_that_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert look(monkeypatch, can_look=False)[0] == []


def test_one_whose_answer_was_not_read_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something older was handed out first."""
    killed, inbox = look(monkeypatch, [Completion(0, -1, ALL_ROWS)], [Completion(0, 1, ALL_ROWS)])
    assert killed == []
    assert [completion.seq for completion in inbox] == [1]
