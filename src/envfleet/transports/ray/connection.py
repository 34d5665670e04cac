"""The connection to Ray: whether it is still the same, and whether the head of the cluster is still there.

Without its head Ray places, ends and explains nothing: whoever asks it waits, and after a minute Ray ends the whole
program. So the head is looked for, by a connection to its port, before anything is asked of it.
"""

from __future__ import annotations

import contextlib
import math
import socket
import time

import ray
from ray.util import client

from envfleet.errors import EnvfleetError

LOST_S = 20.0
"""How long the head may be away. Ray itself gives up after 60 seconds (`RAY_gcs_rpc_server_reconnect_timeout_s`)."""

CONNECT_S = 1.0
"""How long a connection to the head's port may take."""

AGAIN_S = 1.0
"""How soon to look again for a head that was not there, or that nobody is about to ask anything."""


class Connection:
    """The connection that this process has to a cluster.

    Raises:
        EnvfleetError: It is one by which no fleet can be made.
    """

    def __init__(self) -> None:
        if client.ray.is_connected():
            raise client_error()
        self._session = session()
        self.head = str(ray.get_runtime_context().gcs_address)
        self._away_since_s, self._again_s = math.inf, 0.0
        self._look_s = 0.0  # when `why_lost` looks for the head again

    def is_open(self) -> bool:
        """Whether Ray was neither shut down nor connected anew since."""
        return session() == self._session

    def can_ask(self) -> bool:
        """Whether Ray can be asked for something that only the head can do."""
        return self.is_open() and self._has_head()

    def why_lost(self) -> str | None:
        """Why nothing more can come of this connection; `None` while there is hope. Cheap enough for every poll."""
        if not self.is_open():
            return "Ray was shut down, or connected anew"
        if time.monotonic() >= self._look_s:
            self._has_head()
            self._look_s = time.monotonic() + AGAIN_S
        if time.monotonic() - self._away_since_s >= LOST_S:
            return f"the head of the cluster, {self.head}, is gone"
        return None

    def require_head(self, timeout_s: float) -> None:
        """Wait until the head is there, for as long as it may be away.

        Raises:
            EnvfleetError: It is not there.
        """
        deadline_s = time.monotonic() + min(timeout_s, LOST_S)
        while not self._has_head():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise EnvfleetError(
                    f"the head of the Ray cluster does not answer at {self.head}, so no worker can be placed: see "
                    "whether it still runs there, call ray.shutdown(), connect to a cluster that lives, and make a "
                    "new fleet"
                )
            time.sleep(min(left_s, AGAIN_S))

    def _has_head(self) -> bool:
        start_s = time.monotonic()
        if start_s < self._again_s:
            return False
        if self._reaches_head():
            self._away_since_s = math.inf
            return True
        self._away_since_s = min(self._away_since_s, start_s)
        self._again_s = time.monotonic() + AGAIN_S
        return False

    def _reaches_head(self) -> bool:
        host, _, port = self.head.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return True
        return False


def client_error() -> EnvfleetError:
    """Explain that a Ray client will not do."""
    return EnvfleetError(
        "this program reaches its cluster by a Ray client (ray://...), behind which the driver is another process; a "
        "fleet needs the driver itself. Run the program on a node of the cluster, by `ray job submit` or with "
        'ray.init(address="auto"), or make the fleet in a task or an actor'
    )


def session() -> str | None:
    """A name for the connection there is now, which no other has; `None` if there is none."""
    if not ray.is_initialized():
        return None
    return str(ray.get_runtime_context().get_worker_id())
