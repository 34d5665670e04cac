"""Calls to all services that hold a part of a fleet: at the same time, each made once and only once."""

from __future__ import annotations

import concurrent.futures
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from envfleet.core.layout import SpaceLayout
from envfleet.errors import CallTimeout, EnvfleetError, FleetBroken, ServiceUnreachable, WireError
from envfleet.packing.values import pack, unpack
from envfleet.remote.service_link import ServiceLink

KEY_BYTES: Final = 16
_CLOSE_PATIENCE_S = 3.0
Fields = Mapping[str, Any]


class Shard:
    """The part of a fleet that one service holds.

    Args:
        link: To the service.
        fleet_id: The service's id of it.
        span: Its sub-environments.
        layouts: Of observations and actions.

    Attributes:
        seq: How many resets and steps it made.
    """

    def __init__(self, link: ServiceLink, fleet_id: str, span: range, layouts: tuple[SpaceLayout, SpaceLayout]) -> None:
        self.link, self.fleet_id, self.span = link, fleet_id, span
        self.observations, self.actions = layouts
        self.seq = 0


class ServiceCall(NamedTuple):
    """A call to one service, ready to be sent as often as it takes."""

    shard: Shard
    verb: str
    seq: int
    body: bytes

    def send(self) -> dict[str, Any]:
        """Send it.

        Raises:
            EnvfleetError: As `ServiceLink.post`.
        """
        reply = self.shard.link.post(f"/fleets/{self.shard.fleet_id}/{self.verb}", self.body)
        if not isinstance(reply, dict) or reply.get("seq") != self.seq + 1:
            raise WireError(f"{self.shard.link.url} answered {reply!r:.100}, expected a reply to call {self.seq + 1}")
        return reply

    def asks(self, verb: str, fields: Fields) -> bool:
        """Whether it asks for this."""
        asked = {name: value for name, value in unpack(self.body).items() if name not in ("seq", "key")}
        return self.verb == verb and pack(asked) == pack(dict(fields))


class Exchange:
    """Makes calls and keeps those whose fate is unknown.

    Args:
        shards: Who is called.

    Attributes:
        crew: A thread for each of them.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = tuple(shards)
        self.crew = concurrent.futures.ThreadPoolExecutor(len(self.shards), "envfleet-remote")
        self._open: list[ServiceCall] | None = None  # what was sent and not settled
        self._futures: list[concurrent.futures.Future[dict[str, Any]]] = []

    @property
    def is_open(self) -> bool:
        """Whether a call was sent whose outcome is not known."""
        return self._open is not None

    def run(self, verb: str, asked: Sequence[tuple[Shard, Fields]]) -> list[dict[str, Any]]:
        """Make a call and wait for it; see `start` and `finish`."""
        if len(asked) > 1:
            self.start(verb, asked)
            return self.finish(None)
        calls = self._open = self._prepare(verb, asked)
        try:
            return [calls[0].send()]
        except EnvfleetError as error:
            self._judge([error])
            raise

    def start(self, verb: str, asked: Sequence[tuple[Shard, Fields]]) -> None:
        """Send a call without waiting.

        Args:
            verb: `"reset"` or `"step"`.
            asked: Who is asked for what.

        Raises:
            FleetBroken: The outcome of another call is not known.
        """
        self._open = self._prepare(verb, asked)
        self._futures = [self.crew.submit(call.send) for call in self._open]

    def finish(self, timeout_s: float | None) -> list[dict[str, Any]]:
        """Wait for what `start` sent: one reply for each that was asked. Call `settle` when they are read.

        Raises:
            CallTimeout: They did not come in time; call again.
            EnvfleetError: As `ServiceLink.post`.
        """
        _, late = concurrent.futures.wait(self._futures, timeout_s)
        if late:
            raise CallTimeout("recv", 0.0 if timeout_s is None else timeout_s)
        errors = [future.exception() for future in self._futures]
        for error in errors:
            if error is not None:
                self._judge(errors)
                raise error
        return [future.result() for future in self._futures]

    def check_settled(self) -> None:
        """Check that no call is open.

        Raises:
            FleetBroken: One was not answered.
        """
        if self._open is not None:
            raise FleetBroken(
                f"a {self._open[0].verb}() was not answered, so nobody knows whether it was made: make the same call "
                "again, which never makes it twice, or reset() all sub-environments"
            )

    def settle(self) -> None:
        """Note that what was sent last is made and read."""
        for call in self._open or ():
            call.shard.seq = call.seq + 1
        self._open = None

    def catch_up(self) -> None:
        """Ask the services how far they are; what was open is settled, whether it was made or not.

        Raises:
            EnvfleetError: As `ServiceLink.post`.
        """
        for shard in self.shards:
            shard.seq = int(shard.link.get(f"/fleets/{shard.fleet_id}")["seq"])
        self._open = None

    def close(self, await_others: Callable[[float], None]) -> None:
        """Close the fleets and drop the connections, once nothing is under way.

        Args:
            await_others: Waits, for so many seconds at most, until nothing else uses the connections.
        """
        body = pack({"key": secrets.token_bytes(KEY_BYTES)})
        for shard in self.shards:
            try:
                shard.link.post(f"/fleets/{shard.fleet_id}/close", body, patience_s=_CLOSE_PATIENCE_S)
            except ServiceUnreachable as error:
                warnings.warn(
                    f"{shard.link.url} was not told that fleet {shard.fleet_id} is closed ({error}); it closes it "
                    "when it has been idle for a while",
                    RuntimeWarning,
                    stacklevel=4,
                )
            except EnvfleetError as error:
                warnings.warn(f"fleet {shard.fleet_id} could not be closed: {error}", RuntimeWarning, stacklevel=4)
            finally:
                shard.link.stop()
        concurrent.futures.wait(self._futures, _CLOSE_PATIENCE_S)
        await_others(_CLOSE_PATIENCE_S)
        for shard in self.shards:
            shard.link.close()
        self.crew.shutdown()

    def _prepare(self, verb: str, asked: Sequence[tuple[Shard, Fields]]) -> list[ServiceCall]:
        if self._open is not None:
            if len(self._open) == len(asked) and all(
                call.shard is shard and call.asks(verb, fields)
                for call, (shard, fields) in zip(self._open, asked, strict=True)
            ):
                return self._open  # with the same keys: nothing is made twice
            self.check_settled()
        return [
            ServiceCall(shard, verb, shard.seq, make_body(shard.seq, secrets.token_bytes(KEY_BYTES), fields))
            for shard, fields in asked
        ]

    def _judge(self, errors: Sequence[BaseException | None]) -> None:
        """Forget a call that every service refused which it went to: it was made nowhere."""
        if not any(error is None or may_be_made(error) for error in errors):
            self._open = None


def may_be_made(error: BaseException) -> bool:
    """Whether a call that ended in this error may have been made."""
    return isinstance(error, (ServiceUnreachable, WireError)) or not isinstance(error, EnvfleetError)


def make_body(seq: int, key: bytes, fields: Fields) -> bytes:
    """The body of a call.

    Args:
        seq: How many calls the fleet made before it.
        key: Of the call.
        fields: What is asked.
    """
    return pack({"seq": seq, "key": key, **fields})
