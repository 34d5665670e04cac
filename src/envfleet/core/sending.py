"""Asynchronous stepping of some sub-environments: who is under way, and who has arrived."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.core.dispatch import Inbox
from envfleet.core.messages import Reply, StepPayload, Verb
from envfleet.core.recycling import Recycler
from envfleet.core.rows import Rows
from envfleet.core.second_ends import reset_ended
from envfleet.errors import CallPending, CallTimeout, EnvfleetError


class Batch(NamedTuple):
    """What `recv` returns: one row per sub-environment that was ready.

    In the order they became so, or in their own order if they are all.

    Attributes:
        observations: Leading dimension `batch_size`. The caller's own, except those of a whole fleet made with
            `copy=False`, which are views as those of `step` are.
        rewards: float64, `(batch_size,)`.
        terminated: bool, `(batch_size,)`.
        truncated: bool, `(batch_size,)`.
        infos: Gymnasium's dict-of-arrays form, its arrays aligned with the rows.
        env_indices: int64, `(batch_size,)`: the sub-environment of each row.
    """

    observations: Any
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: dict[str, Any]
    env_indices: NDArray[np.int64]


class SendQueue:
    """The sub-environments of a fleet that were sent actions one by one.

    Args:
        rows: The fleet's rows.
        recycler: Replaces workers, if they are to be replaced.

    Attributes:
        under_way: The sub-environments that were sent actions and not yet received.
    """

    def __init__(self, rows: Rows, recycler: Recycler | None) -> None:
        self._rows, self._recycler = rows, recycler
        self.under_way: set[int] = set()
        self._inbox: Inbox = collections.deque()
        self._death: EnvfleetError | None = None
        self._arrived: collections.deque[tuple[int, int, Reply | None]] = collections.deque()

    def check_idle(self, indices: Sequence[int]) -> None:
        """Check that nothing of `indices` is under way.

        Raises:
            CallPending: Something is.
        """
        busy = self.under_way.intersection(indices)
        if busy:
            raise CallPending(f"sub-environments {sorted(busy)} are under way: call recv() until it returned them")

    def send(self, actions: Any, indices: list[int]) -> None:
        """Start stepping `indices`, each of which will arrive by itself; see `Fleet.send`."""
        rows = self._rows
        self.check_idle(indices)
        which = np.asarray(indices, np.int64)
        if rows.is_disabled:
            rows.refuse_ended(which)
        leaves, objects = rows.action_layout.unbatch(actions, len(indices))
        for target, leaf in zip(rows.actions, leaves, strict=True):
            target[which] = leaf
        for worker, positions, local in rows.locate(indices):
            payload = StepPayload(local, [[leaf[k] for k in positions] for leaf in objects], one_by_one=True)
            rows.engine.dispatcher.submit(self._inbox, worker, Verb.STEP, rows.generation, payload)
            self.under_way.update(indices[k] for k in positions)  # one by one: the next may not be sendable

    def recv(self, batch_size: int, timeout_s: float | None) -> Batch:
        """Wait for `batch_size` rows; see `Fleet.recv`."""
        rows = self._rows
        wanted = min(batch_size, len(self.under_way))
        self._await(wanted, timeout_s)
        taken = [self._arrived.popleft() for _ in range(wanted)]
        if wanted == rows.num_envs:
            taken.sort(key=lambda one: one[0])
        indices = [index for index, _, _ in taken]
        self.under_way.difference_update(indices)
        replies = [(worker, reply) for _, worker, reply in taken if reply is not None]
        rows.store(replies)
        which = np.asarray(indices, np.int64)
        if replies:
            replies += reset_ended(rows, which)
        out = rows.outputs[rows.generation]
        rewards, terminated, truncated = out.rewards[which], out.terminated[which], out.truncated[which]
        ended = rows.episodes.on_step(rewards, terminated, truncated, which)
        if ended is not None and self._recycler is not None:
            replies += self._recycler.after_step(rows, ended, which, self._is_idle)
        infos = rows.infos(replies, indices, ended, has_columns=True)
        batch = Batch(rows.take(which), rewards, terminated, truncated, infos, which)
        rows.clock.steps += wanted
        return batch

    def _is_idle(self, span: range) -> bool:
        return not any(index in span for index in self.under_way)

    def _await(self, wanted: int, timeout_s: float | None) -> None:
        engine = self._rows.engine
        start_s = time.perf_counter()
        try:
            self._gather()
            while len(self._arrived) < wanted:
                if self._death is not None:
                    raise self._death
                engine.pump(start_s, timeout_s, "recv")
                self._gather()
        except CallTimeout:
            raise
        except EnvfleetError as error:
            engine.give_up(error)
        except BaseException:
            self.under_way.clear()
            self._arrived.clear()
            engine.tear(self._inbox)
            raise
        finally:
            waited_s = time.perf_counter() - start_s
            engine.wait_s += waited_s
            self._rows.clock.wait_s += waited_s

    def _gather(self) -> None:
        """Take in what the workers completed."""
        engine, first = self._rows.engine, self._rows.indices.start
        failures = []
        while self._inbox and self._death is None:
            completion = self._inbox.popleft()
            if completion.death is not None:
                self._death = completion.death  # told once the rows that came before it are taken
                break
            reply = completion.reply
            if reply is not None:
                engine.count_restarts(reply)
                failures += reply.failures
            index = engine.worker_rows[completion.worker].start + completion.row - first
            self._arrived.append((index, completion.worker, reply))
        engine.raise_failures(failures)
