"""Replays: an episode of one sub-environment, repeated from the log of its fleet's events."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from envfleet.envs.hosting import EpisodeNotes
from envfleet.fleet.layout import SpaceLayout
from envfleet.remote.codec import infos_from_plain, unpack
from envfleet.service.database.models import FleetEvent
from envfleet.service.database.store import Store
from envfleet.service.hosting.fleets import Fleets
from envfleet.service.hosting.hosted import CLOSE
from envfleet.service.refusals import Closed

_MOST_EVENTS = 20_000
_MOST_KNOWN = 32


class Replay(NamedTuple):
    """An episode, step by step.

    Attributes:
        rewards: One per step.
        log: Notes of the environment about the episode.
        unit: Unit of its length.
    """

    rewards: NDArray[np.float64]
    log: EpisodeNotes
    unit: str


class Replays:
    """Makes replays, and keeps the last ones: an episode that has ended never changes.

    Args:
        store: The database.
        fleets: Make what a replay needs.
    """

    def __init__(self, store: Store, fleets: Fleets) -> None:
        self._engine, self._fleets = store.engine, fleets
        self._cached: OrderedDict[tuple[Any, ...], Replay] = OrderedDict()

    def make(self, episode: Mapping[str, Any], timeout_s: float = 10.0) -> Replay:
        """Make an episode again.

        Args:
            episode: Its row, all columns.
            timeout_s: When to give up.

        Raises:
            Closed: The episode's events were deleted, or are too many to replay.
            InvalidArgument: Its environment is not hosted any more.
            EnvFailed: The environment cannot be made, or fails.
            Busy: No worker process is free.
        """
        # SQLite gives the ids of deleted episodes to later ones.
        key = tuple(episode[name] for name in ("fleet_id", "env_index", "first_seq"))
        if (cached := self._cached.get(key)) is not None:
            return cached
        deadline = time.monotonic() + timeout_s
        hosted, num_envs = self._fleets.build_single(episode["fleet_id"])
        try:
            layout, row = SpaceLayout(hosted.fleet.single_action_space), episode["env_index"]
            events = []
            for seq, event in self._events(episode):
                _check_time(deadline)
                row_event = _of_row(event, row, num_envs=num_envs, layout=layout)
                if row_event is not None:
                    events.append((seq, row_event))
                if row_event is not None and _is_seeded(row_event) and seq <= episode["first_seq"]:
                    break
            else:
                raise Closed("the events of this episode are no longer kept, or are too many")
            hosting, rewards = hosted.meter.hosting, []
            log = hosting.log()
            for seq, event in reversed(events):
                _check_time(deadline)
                reply = hosted.make(event).reply
                if event["do"] == "step" and seq > episode["first_seq"]:
                    rewards.append(float(reply["rewards"][0]))
                    _note(log, event, reply)
            if not rewards or np.cumsum(rewards)[-1] != episode["total"]:
                raise Closed(
                    "this episode cannot be replayed: its rewards differ from the recorded ones, because its "
                    "environment changed or draws global random numbers"
                )
            self._cached[key] = replay = Replay(np.array(rewards), log, hosting.unit)
            if len(self._cached) > _MOST_KNOWN:
                self._cached.popitem(last=False)
            return replay
        finally:
            hosted.close()

    def _events(self, episode: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Events of the episode's fleet, from its last one backwards."""
        query = (
            sa.select(FleetEvent.seq, FleetEvent.body)
            .where(FleetEvent.fleet_id == episode["fleet_id"], FleetEvent.seq <= episode["last_seq"])
            .order_by(FleetEvent.seq.desc())
            .limit(_MOST_EVENTS)
            .execution_options(yield_per=100)
        )
        with self._engine.connect() as connection:
            for row in connection.execute(query):
                event = unpack(row.body)
                if event["do"] != CLOSE:
                    yield row.seq, event


def _note(log: EpisodeNotes, event: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
    """Note a step of a fleet of one."""
    infos, observation, action = infos_from_plain(reply["infos"], 1), reply["observations"], event["actions"]
    if "final_obs" in infos:  # with SAME_STEP, what is in the reply is of the next episode
        infos, observation = infos["final_info"], infos["final_obs"]
    observation, action = (each[0] if isinstance(each, np.ndarray) else None for each in (observation, action))
    info = {name: column[0] for name, column in infos.items() if isinstance(column, np.ndarray)}
    log.add(observation, action, float(reply["rewards"][0]), info=info)


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Closed("this episode takes too long to be replayed")


def _is_seeded(event: Mapping[str, Any]) -> bool:
    """Return whether the sub-environment begins here as if it were new."""
    return event["do"] == "reset" and event["seeds"] is not None and event["seeds"][0] is not None


def _of_row(event: Mapping[str, Any], row: int, *, num_envs: int, layout: SpaceLayout) -> dict[str, Any] | None:
    """Return an event of a fleet as one of a fleet that has one sub-environment only; `None` if `row` takes no part."""
    rows = event.get("rows")
    places = list(range(num_envs)) if rows is None else np.asarray(rows).tolist()
    if row not in places:
        return None
    place = places.index(row)
    fields = {name: value for name, value in event.items() if name not in ("rows", "is_ranked")}
    if event["do"] == "step":
        leaves, _ = layout.unbatch(event["actions"], len(places))
        return {**fields, "actions": layout.batch([leaf[[place]] for leaf in leaves])}
    seeds = event["seeds"]
    if seeds is not None:
        seeds = [seeds + row if isinstance(seeds, int) else seeds[place]]
    return {**fields, "rows": None, "seeds": seeds}
