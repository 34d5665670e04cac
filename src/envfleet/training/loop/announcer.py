"""Tells the observers of a run what happens, and how fast it goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
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
        self._last_s, self._last_transitions = time.monotonic(), 0

    def tell(self, event: Event) -> None:
        """Tell all of them."""
        for observer in self._observers:
            observer.on_event(event)

    def begin(self, transitions: int) -> None:
        """Speed is measured from now on."""
        self._last_s, self._last_transitions = time.monotonic(), transitions

    @property
    def is_progress_due(self) -> bool:
        """Whether it is time to tell how far the run is."""
        return time.monotonic() - self._last_s >= _PROGRESS_EVERY_S

    def take_speed(self, transitions: int) -> float:
        """Transitions per second since the last time."""
        now_s = time.monotonic()
        speed = (transitions - self._last_transitions) / max(now_s - self._last_s, 1e-9)
        self._last_s, self._last_transitions = now_s, transitions
        return speed

    def state_dict(self) -> dict[str, Any]:
        """Of those observers that have a state, by the names of their classes."""
        states = {type(observer).__name__: observer.state_dict() for observer in self._observers}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring back the state of those that are here again."""
        for observer in self._observers:
            name = type(observer).__name__
            if name in state:
                observer.load_state_dict(state[name])

    def close(self) -> None:
        """Close all of them, also where one raises."""
        with contextlib.ExitStack() as closing:
            for observer in reversed(self._observers):
                closing.callback(observer.close)
