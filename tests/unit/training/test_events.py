"""Several observers of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from envfleet.training.config import parse_config
from envfleet.training.events import Began, Event, Observer
from envfleet.training.loop.trainer import Trainer
from envfleet.training.plan import resolve


class Counter(Observer):
    """An observer with a number for a state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def on_event(self, event: Event) -> None:
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def test_two_observers_of_one_class_keep_a_state_each() -> None:
    phase = {"name": "a", "transitions": 8, "environment": {"id": "CartPole-v1"}}
    config = parse_config({"curriculum": {"phases": [phase]}, "agent": {"type": "PPO"}})
    again = [Counter(), Counter()]
    with (
        contextlib.closing(Trainer(resolve(config), observers=[Counter(3), Counter(5)])) as trainer,
        contextlib.closing(Trainer(resolve(config), observers=again, is_resumed=True)) as resumed,
    ):
        trainer.begin()
        resumed.load_state_dict(trainer.state_dict())
    assert [one.count for one in again] == [5, 7]  # two events each: the run and its phase began


class Faulty(Observer):
    """An observer with a mistake."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, Began):
            raise KeyError("reward")


def test_an_observer_that_raises_is_named() -> None:
    phase = {"name": "a", "transitions": 8, "environment": {"id": "CartPole-v1"}}
    config = parse_config({"curriculum": {"phases": [phase]}, "agent": {"type": "PPO"}})
    with (
        contextlib.closing(Trainer(resolve(config), observers=[Counter(), Faulty()])) as trainer,
        pytest.raises(KeyError, match="reward") as caught,
    ):
        trainer.run()
    assert caught.value.__notes__ == ["raised by the observer Faulty at Began, which ended the run"]
