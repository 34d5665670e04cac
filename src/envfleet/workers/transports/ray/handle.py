"""The driver's handle of a worker that Ray has placed: its connections, and how it ended."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from envfleet.workers.serve import Place
from envfleet.workers.transports.far import FarWorker
from envfleet.workers.transports.guard import BEAT_S, CLOSED_S, Word
from envfleet.workers.transports.ray import cluster
from envfleet.workers.transports.ray.actor import Invitation, Started
from envfleet.workers.transports.ray.tunnel import dig
from envfleet.workers.transports.socket import Connection

LOOK_S = 0.1
ANSWER_S = 2.0
"""Time in which Ray has to answer; several workers are asked at once."""

_QUIET_S = 2.5 * BEAT_S
_MAX_WORDS = 300


class RayHandle:
    """A worker and the actor that starts it, once Ray has placed that; see `WorkerHandle`.

    Args:
        actor: Its actor.
        invitation: For the actor.
        timeout_s: Silence after which a worker elsewhere is given up.

    Attributes:
        settled: Reference of Ray: True if the actor could connect.
        lifeline: Connection to a worker that shares memory; it ends with the worker and the worker with it.
        control: Connection to the guard of a worker elsewhere.
        far: Rows and mail of such a worker.
        is_slow: True if data goes by actor calls.
        answered: Count of the last look that its guard has answered.
        is_reported: True if the end of the worker was noticed, and passed on.
    """

    def __init__(self, actor: Any, invitation: Invitation, timeout_s: float) -> None:
        self.settled, self._actor, self._session = actor.settle.remote(invitation), actor, cluster.session()
        self.lifeline: socket.socket | None = None
        self.control: Connection | None = None
        self.far: FarWorker | None = None
        self.is_slow, self.answered, self.is_reported = False, 0, False
        self._timeout_s = timeout_s
        self._started = self._exit = self.settled
        self._due_s = 0.0  # when the answer to the start is waited for no longer
        self._asked_stack: Any = None
        self._nodes = cluster.nodes()
        self._report: Started | None = None
        self._heard_s = self._closed_s = math.inf  # no beat yet; not closed
        self._is_over, self._was_asked, self._how = False, False, ""
        self._exitcode: int | None = None

    @property
    def has_connected(self) -> bool:
        """True once the worker can be asked to do something."""
        return self.lifeline is not None or self.far is not None

    @property
    def sentinel(self) -> int:
        """Descriptor that becomes readable when the worker reports something; -1 before it has connected."""
        if self.control is not None:
            return self.control.fd
        return -1 if self.lifeline is None else self.lifeline.fileno()

    def has_lost_node(self) -> bool:
        """Return whether a node of the cluster has died since Ray was asked for the actor."""
        return not self._nodes <= cluster.nodes()

    def dig(self) -> list[socket.socket]:
        """Return connections to guard and worker by actor calls."""
        self.is_slow = True
        return dig(self._actor, lambda: not (self._is_over or self._is_cut_off()))

    def start(self, place: Place, shared: Any) -> None:
        """Have the worker started."""
        self._started = self._actor.start.remote(self.settled, place, shared)
        self._exit = self._actor.wait.remote(self._started)
        self._due_s = time.monotonic() + ANSWER_S  # of each worker, however many of them are silent

    def _is_cut_off(self) -> bool:
        """Return whether Ray was shut down; it would start again at the next call."""
        return cluster.session() != self._session

    def _get(self, outcome: Any, timeout_s: float = 0.0) -> Any:
        """Return the actor's answer, or the reason why it is missing, as text."""
        if self._is_cut_off():
            return "Ray was shut down"
        try:
            return ray.get(outcome, timeout=0 if self._is_over else max(0.0, timeout_s))
        except GetTimeoutError:
            return "Ray does not answer"
        except RayError as error:
            return "Ray: " + " ".join(str(error).split())[-_MAX_WORDS:]  # the end says most

    def _get_started(self) -> Started | str:
        if self._report is None:
            left_s = self._due_s - time.monotonic()
            answer = self._get(self._started, left_s) if self.has_connected else "not placed yet"
            if not isinstance(answer, Started):
                return str(answer)
            self._report = answer
        return self._report

    @property
    def pid(self) -> int:
        """Process id of the worker on its node; 0 without a process."""
        answer = self._get_started()
        return answer.pid if isinstance(answer, Started) else 0

    @property
    def niceness(self) -> int:
        """Niceness of the worker; 0 if it is unknown."""
        answer = self._get_started()
        return answer.niceness if isinstance(answer, Started) else 0

    @property
    def place(self) -> str:
        """Place of the worker."""
        answer = self._get_started()
        return answer.place if isinstance(answer, Started) else answer

    def unanswered(self) -> list[Any]:
        """Return what Ray has to answer before the end of the worker can be explained; only once."""
        is_known = self._exitcode is not None or self._was_asked or self._is_cut_off()
        self._was_asked = True
        return [] if is_known else [self._exit]

    def how_ended(self) -> tuple[int | None, str | None]:
        """Return the exit code of the worker, which has ended, or a description of its end."""
        if self._exitcode is not None:
            return self._exitcode, None
        answer = self._get(self._exit)
        if isinstance(answer, int):
            self._exitcode = answer
            return answer, None
        reasons = [reason for reason in (self._how, str(answer)) if reason]
        return None, f"was lost on {self.place} ({'; '.join(reasons)})"

    def has_started(self, timeout_s: float) -> bool:
        """Return `True`: the transport waits for all of them, once Ray was asked for each."""
        return True

    def has_ended(self, timeout_s: float = 0.0) -> bool:
        """Wait until it has ended; returns whether it has."""
        deadline_s = time.monotonic() + max(0.0, timeout_s)
        while self.has_connected and not self._is_over:
            left_s = max(0.0, deadline_s - time.monotonic())
            poll = select.poll()
            poll.register(self.sentinel, select.POLLIN)
            is_readable = bool(poll.poll(min(left_s, LOOK_S) * 1000))
            if self.control is None:
                self._is_over = is_readable
            else:
                self.is_lost_now()
            if not left_s:
                break
        return self._is_over

    # ------------------------------------------------------------------------ workers elsewhere

    def hear(self) -> bool:
        """Read what the guard has said; returns whether the worker has ended."""
        if self.control is None or self.far is None:
            return self._is_over
        for (word, *words), _ in self.control.frames():
            self._heard_s = time.monotonic()
            if word == Word.ENDED:
                is_known, code, *_ = words
                self._is_over, self._exitcode = True, code if is_known else None
            else:
                self.answered, *progress = words
                self.far.note_progress(progress)
        if not self.control.is_over:
            self._closed_s = math.inf
        elif self._closed_s == math.inf:
            self._closed_s = time.monotonic()
        return self._is_over

    def is_quiet(self) -> bool:
        """Return whether beats of the guard are missing, or its connection is closed."""
        return self._closed_s < math.inf or time.monotonic() - self._heard_s > _QUIET_S

    @property
    def has_ended_before(self) -> bool:
        """True if the end of the worker was noticed."""
        return self._is_over

    def is_lost_now(self) -> bool:
        """Return whether the worker has ended or is given up, after what its guard has said by now."""
        self.hear()
        return self.is_lost()

    def is_lost(self) -> bool:
        """Return whether the worker has ended or is given up."""
        if self._is_over or self.control is None or not self.is_quiet():
            return self._is_over
        silent_s, now = time.monotonic() - self._heard_s, time.monotonic()
        if now - self._closed_s > CLOSED_S:
            self._how = f"its connection was closed ({self.control.cause or 'by its node'}) and not restored"
        elif silent_s > self._timeout_s:
            self._how = f"silent for {silent_s:.0f} s, network_timeout_s={self._timeout_s:g}"
        elif self._is_cut_off() or ray.wait([self._exit], timeout=0)[0]:
            self._how = "Ray reports its end" if not self._is_cut_off() else ""
        else:
            return False
        self._is_over = True
        return True

    def look(self, count: int) -> None:
        """Ask the guard where the worker is; `hear` takes in the answer."""
        if self.control is not None:
            self.control.mention((Word.LOOK, count))

    def ask_stack(self) -> list[Any]:
        """Ask for its Python stack, which `stack` then returns; returns what Ray has to answer."""
        if self._is_over or self._is_cut_off():
            return []
        self._asked_stack = self._actor.stack.remote()
        return [self._asked_stack]

    def stack(self) -> str:
        """Return its Python stack."""
        asked, self._asked_stack = self._asked_stack, None
        if self._is_over or self._is_cut_off():
            return "(the worker has ended)"
        if asked is not None:
            return str(self._get(asked))
        return "(its node is silent)" if self.is_quiet() else str(self._get(self._actor.stack.remote(), ANSWER_S))

    def kill(self) -> None:
        """End it by force; a worker of a silent node is given up, and ends when it can reach this process again."""
        if self.control is not None:
            self.control.send((Word.KILL,))
            if self.is_quiet():
                self._is_over = True
        elif self.lifeline is not None:
            with contextlib.suppress(OSError):
                self.lifeline.shutdown(socket.SHUT_WR)
        else:
            self._is_over = True
            self._end_actor()

    def close(self) -> None:
        """Let go of it and end its actor; idempotent."""
        for peer in (self.lifeline, self.control, None if self.far is None else self.far.data):
            if peer is not None:
                peer.close()
        self._is_over = True
        self._end_actor()

    def release_actor(self) -> Any:
        """Return the actor for another worker, if it has outlived this one, else `None`; `close` then spares it."""
        if self._exitcode is None or self._is_cut_off():
            return None
        actor, self._actor = self._actor, None
        return actor

    def _end_actor(self) -> None:
        if self._actor is not None and not self._is_cut_off() and cluster.has_head():
            with contextlib.suppress(RayError, ValueError):  # it has ended
                ray.kill(self._actor)
