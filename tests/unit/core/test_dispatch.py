"""Who counts as stopped, having work and being in no sub-environment; and how long a constructor may take."""

from __future__ import annotations

import collections
import types
from typing import Any

import numpy as np
import pytest

from envfleet.core import dispatch
from envfleet.core.arrays import PROGRESS_WORDS, PlaceWord
from envfleet.core.dispatch import Dispatcher, Inbox, RestartBudget
from envfleet.core.messages import ALL_ROWS, Completion, Request, Verb
from envfleet.errors import StartTimeout


class Scripted:
    """A transport of one worker, which hands out what it is told to."""

    def __init__(self, can_look: bool) -> None:
        self.answers: collections.deque[list[Completion]] = collections.deque()
        self.killed: list[int] = []
        self.reasons: list[Exception] = []
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
        self.reasons.append(why)

    def interrupt(self, worker: int) -> None:
        pass

    def stack(self, worker: int) -> str:
        return "where it is"


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


def test_a_constructor_has_the_limit_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an interrupted step, for whose end there is but a moment."""
    now_s = 0.0
    monkeypatch.setattr(dispatch, "time", types.SimpleNamespace(monotonic=lambda: now_s))
    transport: Any = Scripted(can_look=True)
    options: dict[str, Any] = {"on_failure": "restart", "start_timeout_s": 60.0, "recorder": None}
    progress = np.zeros((1, PROGRESS_WORDS), np.int64)
    dispatcher = Dispatcher(transport, progress, [range(1)], budget=RestartBudget(1), step_timeout_s=4.0, **options)
    dispatcher.submit(collections.deque(), 0, Verb.STEP)

    def look(at_s: float, turn: int) -> list[int]:
        nonlocal now_s
        now_s = at_s
        progress[0, [PlaceWord.TURN, PlaceWord.ROW]] = turn, 1
        dispatcher.pump(0.0)
        return transport.killed

    assert look(1, turn=1) == look(6, turn=1) == []
    assert progress[0, PlaceWord.INTERRUPT] == PlaceWord.place(progress[0])
    progress[0, PlaceWord.BUILDING] = 2
    assert look(7, turn=2) == look(12, turn=2) == look(66, turn=2) == []
    assert look(68, turn=2) == [0]
    assert isinstance(transport.reasons[0], StartTimeout)
    assert look(70, turn=3) == look(73, turn=3) == [0]  # what follows has a deadline as any other
    progress[0, PlaceWord.INTERRUPT] = 0
    look(75, turn=3)
    assert progress[0, PlaceWord.INTERRUPT] == PlaceWord.place(progress[0])
