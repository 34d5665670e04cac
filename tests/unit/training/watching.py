"""An observer for tests: it keeps its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from envfleet.training.events import Event, Observer

_E = TypeVar("_E")


class Watcher(Observer):
    """Keeps all events, calls a function with each, and knows whether it was closed."""

    def __init__(self, react: Callable[[Event], None] = lambda event: None) -> None:
        self.events: list[Event] = []
        self.is_closed = False
        self._react = react

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        self._react(event)

    def of(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True
