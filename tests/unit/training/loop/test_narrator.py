"""How fast a run is said to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envfleet.training.events import Event, Observer
from envfleet.training.loop.narrator import Narrator

NOBODY: Any = None


def narrate(observers: Sequence[Observer]) -> Narrator:
    return Narrator(observers, NOBODY, curriculum=NOBODY, tally=NOBODY, budget=NOBODY, stopwatch=NOBODY)


def test_evaluations_and_checkpoints_do_not_count_as_slow_training() -> None:
    narrator = narrate([])
    narrator.begin(1000)
    assert narrator.take_speed(1100, worked_s=2.0) == 50
    assert narrator.take_speed(1100, worked_s=2.0) == 50  # nothing but an evaluation since
    assert narrator.take_speed(1150, worked_s=2.5) == 100


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
    state = narrate([Counter(3), Counter(5)]).state_dict()
    again = [Counter(), Counter()]
    narrate(again).load_state_dict(state)
    assert [one.count for one in again] == [3, 5]
