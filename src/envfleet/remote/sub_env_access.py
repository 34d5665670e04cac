"""Access to the sub-environments of a remote fleet, as far as a service lets anybody."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.core.episodes import EpisodeState
from envfleet.core.requests import check_rows
from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.exchange import Fields, Shard
from envfleet.remote.fleet_base import RemoteFleetBase
from envfleet.remote.gathering import read_leaves


class RemoteState(NamedTuple):
    """A saved sub-environment. Its state stays with the service, which keeps it as long as there is room.

    Attributes:
        fleet_id: The service's id of the fleet that saved it, the only one that can restore it.
        number: Of what was saved at once.
        place: In that.
        episode: Where the episode stood.
    """

    fleet_id: str
    number: int
    place: int
    episode: EpisodeState


class RemoteSubEnvAccess(RemoteFleetBase):
    """A remote fleet whose sub-environments can be saved, restored, drawn and, where that is no secret, read.

    What a service cannot allow is there, too, and says why not. See `RemoteFleet`.
    """

    def get_state(self, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> list[RemoteState]:
        """Save sub-environments in the middle of their episodes, generators included, at the service.

        Args:
            indices: Which; `None` for all.

        Returns:
            One handle each; they pickle, and tell nothing of what is hidden. The service keeps the states of twice as
            many sub-environments as the fleet has, and forgets the oldest.

        Raises:
            InvalidArgument: The fleet is ranked.
            ServiceRefused: The environment cannot be saved.
        """
        self._check("get_state")
        rows = self._every if indices is None else check_rows(indices, self.num_envs)
        asked, chosen = self._spread_over(rows, lambda shard, positions: {"rows": rows[positions] - shard.span.start})
        states: list[Any] = [None] * len(rows)
        for (shard, _), positions, reply in zip(asked, chosen, self._exchange.run("save", asked), strict=True):
            number = reply.get("state")
            if not isinstance(number, int):
                raise WireError(f"{shard.link.url} saved a state as {number!r:.100}, expected a number")
            for place, position in enumerate(positions.tolist()):
                episode = self._episodes.get(int(rows[position]))
                states[position] = RemoteState(shard.fleet_id, number, place, episode)
        self._exchange.settle()
        return states

    def set_state(
        self, states: Sequence[RemoteState], indices: Sequence[int] | NDArray[np.integer[Any]] | None = None
    ) -> Any:
        """Bring saved sub-environments back; they go on exactly as they would have. Those that run are abandoned.

        Args:
            states: From `get_state` of this fleet, one per index.
            indices: Where to put them, within what the same service holds; `None` for all in order.

        Returns:
            The last observations of those sub-environments, aligned with `indices`.

        Raises:
            InvalidArgument: They are no such states, or are no longer kept.
        """
        self._check("set_state")
        rows = self._every if indices is None else check_rows(indices, self.num_envs)
        if len(states) != len(rows) or not all(isinstance(state, RemoteState) for state in states):
            raise InvalidArgument(
                f"set_state needs {len(rows)} states made by get_state, one per sub-environment, got {len(states)}"
            )

        def fields(shard: Shard, positions: NDArray[np.int64]) -> Fields:
            mine = [states[position] for position in positions.tolist()]
            if any(state.fleet_id != shard.fleet_id for state in mine):
                raise InvalidArgument(
                    f"a state for sub-environments at {shard.link.url} was saved by another fleet or service, which "
                    "keeps it: restore states where they were saved"
                )
            numbered = [[state.number, state.place] for state in mine]
            return {"rows": rows[positions] - shard.span.start, "states": numbered}

        asked, chosen = self._spread_over(rows, fields)
        leaves = [leaf.copy() for leaf in self._leaves]
        for (shard, _), positions, reply in zip(asked, chosen, self._exchange.run("load", asked), strict=True):
            found = read_leaves(reply.get("observations"), shard.observations, len(positions))
            for leaf, values in zip(leaves, found, strict=True):
                leaf[rows[positions]] = values
        self._exchange.settle()
        self._leaves = leaves
        for row, state in zip(rows.tolist(), states, strict=True):
            self._episodes.set(row, state.episode)
        return self._observation_layout.batch([leaf[rows] for leaf in leaves])

    def _spread_over(
        self, rows: NDArray[np.int64], fields: Callable[[Shard, NDArray[np.int64]], Fields]
    ) -> tuple[list[tuple[Shard, Fields]], list[NDArray[np.int64]]]:
        """What each service is asked about its part of `rows`, and where in `rows` that part is."""
        asked, chosen = [], []
        for shard in self._exchange.shards:
            positions = np.flatnonzero((rows >= shard.span.start) & (rows < shard.span.stop))
            if len(positions):
                asked.append((shard, fields(shard, positions)))
                chosen.append(positions)
        return asked, chosen

    # ------------------------------------------------------------------ what may be seen

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every sub-environment, if it is one that the service shows to participants.

        Raises:
            InvalidArgument: It is not: it might tell what is hidden.
        """
        self._check("get_attr", is_started=False)
        if not name.isidentifier():
            raise InvalidArgument(f"attribute {name!r} is not shown here: pass the name of one")
        return self._look(f"attributes/{urllib.parse.quote(name, safe='')}", "values")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Get an attribute as `get_attr` does, or `render`; methods are not called over a network.

        Raises:
            InvalidArgument: With arguments: only resets and steps change what lives behind a service.
        """
        if args or kwargs:
            _refuse(f"call({name!r}) with arguments", "only resets and steps change what lives behind a service")
        return (self.render() or ()) if name == "render" else self.get_attr(name)

    def render(self) -> tuple[Any, ...] | None:
        """A picture of every sub-environment, uint8 `(height, width, 3)`; `None` without `render_mode`.

        The service has to allow it; then pass `render_mode="rgb_array"` to `connect`.
        """
        self._check("render")
        return None if self.render_mode is None else self._look("frames", "frames")

    def _look(self, what: str, name: str) -> tuple[Any, ...]:
        found: list[Any] = []
        for shard in self._exchange.shards:
            reply = shard.link.get(f"/fleets/{shard.fleet_id}/{what}")
            values = reply.get(name) if isinstance(reply, dict) else None
            if not isinstance(values, list) or len(values) != len(shard.span):
                raise WireError(f"{shard.link.url} answered {reply!r:.100}, expected {len(shard.span)} {name}")
            found += values
        return tuple(found)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as SyncVectorEnv, unlike its base
        """The seed that this fleet last gave to every sub-environment; `None` where the service drew it."""
        return tuple(self._seeds)

    # ------------------------------------------------------------------ what may not be

    @property  # type: ignore[misc]  # there is no generator to set
    def np_random(self) -> NoReturn:  # type: ignore[override]  # never returns
        """Is refused: a generator would tell what is going to happen."""
        _refuse("np_random", "generators tell what is going to happen, and stay with the service")

    def set_attr(self, name: str, values: Any) -> NoReturn:
        """Is refused: the service makes a fleet again from its options, resets and steps."""
        _refuse(
            "set_attr()", "a service takes the environment's options as arguments of connect(), as far as it allows"
        )

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
        """Is refused: programs are not sent to a service."""
        _refuse("apply()", "programs are not sent to a service; run it on a fleet of envfleet.make()")

    def split(self, num_parts: int) -> NoReturn:
        """Is refused: calls of one fleet are made one after the other."""
        _refuse("split()", "a service makes the calls of a fleet one after the other: connect() once for each part")

    def stacks(self) -> NoReturn:
        """Is refused: the workers are the service's."""
        _refuse("stacks()", "the workers are the service's, and whoever runs it can look at them")


def _refuse(what: str, reason: str) -> NoReturn:
    raise InvalidArgument(f"{what} of a remote fleet: {reason}")
