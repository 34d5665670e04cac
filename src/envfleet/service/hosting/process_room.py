"""Limit on worker processes of fleets, and eviction of fleets when the limit is reached."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from envfleet.errors import InvalidArgument
from envfleet.service.hosting.hosted import HostedFleet
from envfleet.service.refusals import Busy
from envfleet.service.settings import Settings


class ProcessRoom:
    """Counts the worker processes of one service process, from before they are started until they have ended.

    Args:
        settings: With the most there may be.
        held: Returns the fleets in memory.
        evict: Puts a fleet out of memory and ends its processes, unless it is in use; returns whether it did.
    """

    def __init__(
        self, settings: Settings, held: Callable[[], Iterable[HostedFleet]], evict: Callable[[HostedFleet], bool]
    ) -> None:
        self._most, self._unused_s = settings.max_processes, settings.queue_timeout_s
        self._held, self._evict = held, evict
        self._lock = threading.Lock()
        self._by_user: Counter[int] = Counter()

    def build(self, user_id: int, num_processes: int, make: Callable[[], HostedFleet]) -> HostedFleet:
        """Make a fleet when there is room for its processes; they count until it is closed.

        Args:
            user_id: Id of the owner.
            num_processes: That it will have.
            make: Makes it.

        Raises:
            Busy: No worker processes are free.
            InvalidArgument: There never will be.
        """
        if num_processes > self._most:
            raise InvalidArgument(
                f"a fleet with {num_processes} worker processes in a service that may have {self._most}: start it with "
                "more --max-processes"
            )
        while not self._take(user_id, num_processes):
            if not any(self._evict(hosted) for hosted in self._movable(user_id, num_processes)):
                raise Busy(
                    f"all {self._most} worker processes of this service are in use: try again", retry_after_s=1.0
                )
        try:
            hosted = make()
        except BaseException:
            self._give_back(user_id, num_processes)
            raise
        hosted.when_closed = lambda: self._give_back(user_id, num_processes)
        return hosted

    def _take(self, user_id: int, num_processes: int) -> bool:
        with self._lock:
            if num_processes and self._by_user.total() + num_processes > self._most:
                return False
            self._by_user[user_id] += num_processes
            return True

    def _give_back(self, user_id: int, num_processes: int) -> None:
        with self._lock:
            self._by_user[user_id] -= num_processes

    def _movable(self, user_id: int, num_processes: int) -> list[HostedFleet]:
        """Return fleets to evict, in order: those of the user with most processes first, least recently used first.

        Recently used fleets stay, since the next call would rebuild them. Only a user who would still have more
        processes than the caller loses recently used fleets: no user can hold all places forever, and two users
        cannot evict each other in turn.
        """
        by_user, unused_since = self._by_user, time.time() - self._unused_s
        enough = by_user[user_id] + num_processes
        movable = [
            hosted
            for hosted in self._held()
            if hosted.num_processes and (hosted.touched_at < unused_since or by_user[hosted.user_id] > enough)
        ]
        return sorted(movable, key=lambda hosted: (-by_user[hosted.user_id], hosted.touched_at))
