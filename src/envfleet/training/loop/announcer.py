"""Tells the observers of a run what happens, and how fast it goes."""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from envfleet.training.events import Event, Observer

_PROGRESS_EVERY_S = 0.25


class Announcer:
    """The observers of a run.

    Args:
        observers: In the order in which they are told.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._told_s = time.monotonic()
        self._worked_s, self._transitions, self._speed = 0.0, 0, 0.0

    def tell(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            observer.on_event(event)

    def begin(self, transitions: int) -> None:
        """Speed is measured from now on."""
        self._told_s, self._transitions = time.monotonic(), transitions

    @property
    def is_progress_due(self) -> bool:
        """Whether it is time to tell how far the run is."""
        return time.monotonic() - self._told_s >= _PROGRESS_EVERY_S

    def take_speed(self, transitions: int, worked_s: float) -> float:
        """Transitions per second since the last time; as it was then if there were none.

        Args:
            transitions: Made so far.
            worked_s: Seconds that it took, without evaluations and checkpoints.
        """
        made, seconds = transitions - self._transitions, worked_s - self._worked_s
        if made and seconds > 0:
            self._speed = made / seconds
        self._told_s, self._worked_s, self._transitions = time.monotonic(), worked_s, transitions
        return self._speed

    def state_dict(self) -> dict[str, Any]:
        """Of those observers that have a state, by the names of their classes and their places among those of one."""
        states = {name: observer.state_dict() for name, observer in self._named()}
        return {name: state for name, state in states.items() if state}

    def _named(self) -> Iterator[tuple[str, Observer]]:
        counts: collections.Counter[str] = collections.Counter()
        for observer in self._observers:
            name = type(observer).__name__
            counts[name] += 1
            yield (name if counts[name] == 1 else f"{name}.{counts[name]}"), observer

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back the state of those that are here again."""
        for name, observer in self._named():
            if name in state:
                observer.load_state_dict(state[name])

    def close(self) -> None:
        """Close all of them, also where one raises."""
        with contextlib.ExitStack() as closing:
            for observer in reversed(self._observers):
                closing.callback(observer.close)
