"""Requests that worker processes have not read yet: sent on while something else is waited for, or given up."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from envfleet.transports.link import STALL_LOOKS, WorkerLink
from envfleet.transports.patience import Patience
from envfleet.transports.request_pipe import is_stopped


class Backlog:
    """The links of a transport in which something waits for room.

    Args:
        poller: What the transport waits with; told here which pipes to watch.
        give_up: Called for a worker that is stopped and has read nothing for so many seconds.
    """

    def __init__(self, poller: Patience, give_up: Callable[[WorkerLink, float], None]) -> None:
        self._poller, self._give_up = poller, give_up
        self._links: dict[int, WorkerLink] = {}  # by descriptor
        self._next_look_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._links)

    def add(self, link: WorkerLink) -> None:
        """Watch a link that was sent something, if some of that waits for room."""
        pipe = link.pipe()
        if pipe is not None and pipe.fd not in self._links:
            self._links[pipe.fd] = link
            self._poller.register(pipe.fd, select.POLLOUT)

    def remove(self, link: WorkerLink) -> None:
        """Watch a link no more, whose worker is gone."""
        for fd in [fd for fd, other in self._links.items() if other is link]:
            self._drop(fd)

    def send_on(self, fd: int) -> bool:
        """Write to a descriptor that there is room in; returns whether it is one of these."""
        link = self._links.get(fd)
        if link is None:
            return False
        pipe = link.pipe()
        if pipe is not None:
            pipe.push()
        if pipe is None or not pipe.is_blocked:
            self._drop(fd)
        return True

    def look(self, timeout_s: float | None, stall_s: float) -> float:
        """Give up workers that are stopped and have read nothing for `stall_s`.

        One that is busy reads on when it is done, for which it has the deadline of a step, if there is one.

        Returns:
            How long to wait at most, of `timeout_s`, before the next look.
        """
        look_s = stall_s / STALL_LOOKS
        if (now := time.monotonic()) >= self._next_look_s:
            self._next_look_s = now + look_s
            for link in self._links.values():
                pipe = link.pipe()
                if pipe is None:
                    continue
                pipe.vain_looks = pipe.vain_looks + 1 if is_stopped(link.handle.pid) else 0
                if pipe.vain_looks > STALL_LOOKS:
                    self._give_up(link, stall_s)
        return look_s if timeout_s is None else min(timeout_s, look_s)

    def _drop(self, fd: int) -> None:
        self._poller.unregister(fd)
        del self._links[fd]
