"""Have Ray place the workers of a fleet, and find out which of them share the driver's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from envfleet.errors import WorkersUnplaced
from envfleet.transports.link import Link
from envfleet.transports.ray import cluster
from envfleet.transports.ray.actor import RayWorker, Seat
from envfleet.transports.ray.connection import Connection
from envfleet.transports.ray.options import RayOptions
from envfleet.transports.ray.rendezvous import Caller, Rendezvous
from envfleet.transports.supervision import import_path

LOOK_S = 0.02


class Placed:
    """A worker that Ray has placed.

    Attributes:
        actor: Its actor.
        seat: Where.
        link: Its link through shared memory, if it has that.
    """

    def __init__(self, actor: Any, seat: Seat, link: Link | None, connection: Connection) -> None:
        self.actor, self.seat, self.link = actor, seat, link
        self._connection = connection

    def give_up(self) -> None:
        """End it again; without the head of the cluster, have it end."""
        if self.link is not None:
            self.link.close()
        if self._connection.can_ask():
            cluster.end_actor(self.actor)
        elif self._connection.is_open():
            self.actor.leave.remote()


class Placing:
    """Places some workers at once.

    Args:
        workers: Their indices.
        options: What each asks for.
        connection: The connection to Ray.
        connect: Makes the link of a worker that reached the driver.
        timeout_s: Limit, besides that of the options.
    """

    def __init__(
        self,
        workers: Sequence[int],
        options: RayOptions,
        connection: Connection,
        *,
        connect: Callable[[Caller], Link],
        timeout_s: float,
    ) -> None:
        self._options, self._connection, self._connect = options, connection, connect
        self._timeout_s = min(timeout_s, options.place_timeout_s)
        self._asked = options.actor_options(0 if cluster.cluster.is_own else 1)
        self._links: dict[int, Link] = {}
        actor_class: Any = ray.remote(RayWorker)  # Ray types actors by what no remote call returns
        self._actors = {worker: actor_class.options(**self._asked).remote(worker) for worker in workers}

    def run(self) -> list[Placed]:
        """Wait until every worker has its place.

        Returns:
            The workers, in the order asked for.

        Raises:
            WorkersUnplaced: Ray did not place them all in time, or could not; none is left behind.
        """
        rendezvous = Rendezvous() if self._options.shared_memory else None
        try:
            address = None if rendezvous is None else rendezvous.address
            seats = self._await_seats(
                {actor.settle.remote(address, import_path()): worker for worker, actor in self._actors.items()},
                rendezvous,
            )
        except BaseException:
            self._undo()
            raise
        finally:
            if rendezvous is not None:
                rendezvous.close()
        placed = []
        for worker, actor in self._actors.items():
            link = self._links.pop(worker, None)
            if link is not None and not seats[worker].has_memory:  # it was handed over too late
                link.close()
                link = None
            placed.append(Placed(actor, seats[worker], link, self._connection))
        return placed

    def _await_seats(self, refs: dict[Any, int], rendezvous: Rendezvous | None) -> dict[int, Seat]:
        deadline_s = time.monotonic() + self._timeout_s
        seats: dict[int, Seat] = {}
        while refs:
            caller = None if rendezvous is None else rendezvous.accept(LOOK_S)
            if caller is not None:
                self._welcome(caller)
                continue  # more may be waiting
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=LOOK_S if rendezvous is None else 0)
            for ref in ready:
                worker = refs.pop(ref)
                try:
                    seats[worker] = ray.get(ref)
                except RayError as error:
                    raise self._unplaced([worker], str(error)) from error
            if refs and time.monotonic() > deadline_s:
                raise self._unplaced(sorted(refs.values()), None)
        return seats

    def _welcome(self, caller: Caller) -> None:
        if caller.worker not in self._actors or caller.worker in self._links:
            caller.connection.close()
            return
        try:
            self._links[caller.worker] = self._connect(caller)
        except OSError:  # it ended in between, of which Ray will tell
            caller.connection.close()

    def _unplaced(self, workers: list[int], reason: str | None) -> WorkersUnplaced:
        asked = {"CPU": self._asked["num_cpus"], "GPU": self._asked.get("num_gpus", 0)}
        asked |= self._asked.get("resources", {})
        if "memory" in self._asked:
            asked["memory"] = self._asked["memory"]
        words = cluster.in_words({name: value for name, value in asked.items() if value})
        has = "no head any more, so nobody knows what"
        if self._connection.can_ask():
            words += "".join(f", {wish}" for wish in wishes(self._options))
            has = cluster.describe()
        return WorkersUnplaced(workers, len(self._actors), self._timeout_s, words, has, reason)

    def _undo(self) -> None:
        for link in self._links.values():
            link.close()
        if self._connection.can_ask():
            for actor in self._actors.values():
                cluster.end_actor(actor)


def wishes(options: RayOptions) -> Iterator[str]:
    """What besides resources each worker asks for, in words for people."""
    group, strategy = options.placement_group, options.scheduling_strategy
    if isinstance(strategy, PlacementGroupSchedulingStrategy):
        group, strategy = strategy.placement_group, None
    if group is not None:
        known = ray.util.placement_group_table(group)
        bundles = list(known.get("bundles", {}).values())
        yield f"a place in the bundles {bundles} of a placement group that is {known.get('state', 'unknown')}"
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        yield f"the node {strategy.node_id}"
    elif strategy is not None:
        yield f"scheduling_strategy={strategy!r}"
    if options.runtime_env is not None:
        yield f"runtime_env={options.runtime_env!r}"
