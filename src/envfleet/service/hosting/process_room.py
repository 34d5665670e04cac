"""Room for the worker processes of fleets: how many there are, and who makes room for whom."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

from envfleet.errors import InvalidArgument
from envfleet.service.hosting.hosted import HostedFleet
from envfleet.service.refusals import Busy
from envfleet.service.settings import Settings


class ProcessRoom:
    """Counts the worker processes of one service process, from before they are started until they have ended.

    Args:
        settings: With the most there may be.
        evict: Puts a fleet out of memory and ends its processes, unless it is in use; returns whether it did.
    """

    def __init__(self, settings: Settings, evict: Callable[[HostedFleet], bool]) -> None:
        self._most, self._unused_s, self._evict = settings.max_processes, settings.queue_timeout_s, evict
        self._making_room, self._lock = threading.Lock(), threading.Lock()
        self._being_built: collections.Counter[int] = collections.Counter()  # processes by user
        self._built: list[HostedFleet] = []

    def build(self, user_id: int, num_processes: int, make: Callable[[], HostedFleet]) -> HostedFleet:
        """Make a fleet when there is room for its processes; they count until it is closed.

        Args:
            user_id: Whose it is.
            num_processes: That it will have.
            make: Makes it.

        Raises:
            Busy: There is no room at present.
            InvalidArgument: There never will be.
        """
        if not num_processes:
            return make()
        self._take(user_id, num_processes)
        hosted = None
        try:
            hosted = make()
            return hosted
        finally:
            with self._lock:
                self._being_built[user_id] -= num_processes
                if hosted is not None:
                    self._built.append(hosted)

    def _take(self, user_id: int, num_processes: int) -> None:
        if num_processes > self._most:
            raise InvalidArgument(
                f"a fleet with {num_processes} worker processes in a service that may have {self._most}: start it with "
                "more --max-processes"
            )
        busy = Busy(f"all {self._most} worker processes of this service are in use: try again", retry_after_s=1.0)
        if not self._making_room.acquire(timeout=self._unused_s):
            raise busy
        try:
            while not self._reserve(user_id, num_processes):
                if not any(self._evict(hosted) for hosted in self._movable(user_id, num_processes)):
                    raise busy
        finally:
            self._making_room.release()

    def _reserve(self, user_id: int, num_processes: int) -> bool:
        with self._lock:
            self._built = [hosted for hosted in self._built if hosted.is_open or hosted.num_processes]
            if self._by_user().total() + num_processes > self._most:
                return False
            self._being_built[user_id] += num_processes
            return True

    def _movable(self, user_id: int, num_processes: int) -> list[HostedFleet]:
        """Fleets that may make room: those of the user who has most come first, then what was used longest ago.

        What was used a moment ago stays, as it would soon be made again, call by call. Only a user who has more than
        the other would have then must make room with such fleets, too: so nobody can take all places for good, and
        no two users take them from each other in turn.
        """
        with self._lock:
            by_user, built = self._by_user(), list(self._built)
        unused_since, enough = time.time() - self._unused_s, by_user[user_id] + num_processes
        movable = [
            hosted
            for hosted in built
            if hosted.num_processes and (hosted.touched_at < unused_since or by_user[hosted.user_id] > enough)
        ]
        return sorted(movable, key=lambda hosted: (-by_user[hosted.user_id], hosted.touched_at))

    def _by_user(self) -> collections.Counter[int]:
        by_user = self._being_built.copy()
        for hosted in self._built:
            by_user[hosted.user_id] += hosted.num_processes
        return by_user
