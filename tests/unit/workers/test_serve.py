"""The loop of a worker, driven by the words that an owner would write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.workers.alone import arrays_of, plan_of

from envfleet.errors import InvalidArgument
from envfleet.testing import CountingEnv
from envfleet.workers.board import ASKED, DONE, FLAGS, MAIL, ROW, Verb
from envfleet.workers.messages import GroupInfo, ResetPlan
from envfleet.workers.transports.inline import InlineTransport

PLAN = plan_of([CountingEnv, CountingEnv])


class Owner:
    """Sends requests to one worker in this thread."""

    def __init__(self) -> None:
        self.transport, self.number = InlineTransport([PLAN], {}), 0
        self.line = self.transport.lines[0]

    def ask(self, verb: Verb, message: Any = None, generation: int = 0) -> Any:
        """Run a request; return the worker's reply, if it has one."""
        self.number += 1
        self.transport.requests.put(0, message)
        self.line[ASKED] = self.number << 4 | generation << 3 | verb
        self.transport.ring(0)
        assert self.line[DONE] == self.line[ASKED]
        return self.transport.replies[0].get(0) if self.line[FLAGS] & MAIL else None


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.transport.close(0.0)


def test_a_worker_builds_resets_steps_and_closes(owner: Owner) -> None:
    info = owner.ask(Verb.BUILD, PLAN).value
    assert isinstance(info, GroupInfo)
    assert info.spaces[0][0] == CountingEnv().observation_space
    spec, _ = arrays_of(CountingEnv(), 2)
    arrays = owner.transport.allocate(spec)
    assert owner.ask(Verb.ATTACH, spec) is None
    owner.ask(Verb.RESET, ResetPlan([0, 1], [5, 6], [None, None]))
    arrays.actions[0][...] = (1, 2)
    owner.ask(Verb.STEP, generation=1)
    assert arrays.outputs[1].rewards.tolist() == [1.1, 1.2]
    assert arrays.outputs[0].rewards.tolist() == [0.0, 0.0]
    arrays.row_asked[1] = 9
    owner.ask(Verb.STEP_ROWS)
    assert arrays.row_done.tolist() == [0, 9]
    assert arrays.outputs[0].rewards.tolist() == [0.0, 2.2]
    assert owner.line[ROW] == 0
    assert owner.ask(Verb.CLOSE).failures == []


def test_errors_of_a_worker_in_this_thread_are_raised(owner: Owner) -> None:
    with pytest.raises(InvalidArgument, match="returned nothing"):
        owner.ask(Verb.BUILD, plan_of([lambda: None]))  # type: ignore[list-item, return-value]
    assert owner.line[DONE] == owner.line[ASKED]
