"""Requests that workers receive by mail: resets, calls and states, divided among workers and repeated after losses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from envfleet.fleet import engine as seam
from envfleet.workers.board import Verb
from envfleet.workers.division import messages_of
from envfleet.workers.messages import Reply
from envfleet.workers.results import Objects, Results
from envfleet.workers.worker_pool import WorkerPool


class Mailed(NamedTuple):
    """A request that workers received by mail.

    Attributes:
        request: The request.
        messages: Message to each worker.
        objects: Observation leaves that the request itself brings, by row, where they are objects.
    """

    request: seam.Request[Any]
    messages: Mapping[int, Any]
    objects: Objects


class Mail:
    """Sender of requests by mail.

    Args:
        pool: Workers of the fleet.
        results: Results of the fleet.
    """

    def __init__(self, pool: WorkerPool, results: Results) -> None:
        self._pool, self._results = pool, results

    def ask(self, request: seam.Request[Any], objects: Objects | None = None) -> Mailed:
        """Ask workers for their part of a request."""
        mailed = Mailed(request, messages_of(request, self._pool.spans), objects or {})
        self._send(mailed, mailed.messages)
        return mailed

    def finish(self, mailed: Mailed, timeout_s: float | None = None) -> dict[int, Reply]:
        """Wait for the replies to a request, by worker.

        Successors of workers that were lost repeat a reset, and a `SetState`, of the rows that were lost with them.
        """
        pool, replies, left = self._pool, dict[int, Reply](), list(mailed.messages)
        while left:
            done = pool.finish(left, timeout_s=timeout_s)
            replies.update(pool.replies(done))
            lost = [worker for worker in left if worker not in done]
            left = [one for one in mailed.messages if not pool.lost.keys().isdisjoint(self._renewed(mailed, one))]
            if left:
                self._send(mailed, left)
            elif lost:
                raise pool.lost[pool.spans[lost[0]].start]
        return replies

    def _send(self, mailed: Mailed, workers: Collection[int]) -> None:
        verb = Verb.RESET if isinstance(mailed.request, seam.Reset) else Verb.CALL
        self._pool.send(verb, {worker: mailed.messages[worker] for worker in workers}, 1 - self._results.generation)
        for worker in workers:
            for row, seed in self._renewed(mailed, worker).items():
                self._pool.lost.pop(row, None)  # a new episode supersedes a pending loss
                self._pool.seeds[row] = seed

    def _renewed(self, mailed: Mailed, worker: int) -> dict[int, int | None]:
        """Return the rows of a worker that a request gives another episode, and the seed that each has after it."""
        message, span = mailed.messages[worker], self._pool.spans[worker]
        if isinstance(mailed.request, seam.Reset):
            seeds = {span[place]: seed for place, seed in zip(message.rows, message.seeds, strict=True)}
            return {row: self._pool.seeds[row] if seed is None else seed for row, seed in seeds.items()}
        if isinstance(mailed.request, seam.SetState):
            (states,) = message[1]
            return dict.fromkeys(span[place] for place in states)
        return {}
