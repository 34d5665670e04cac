"""Resets and steps of the fleet protocol, served in front of the web framework.

The framework takes longer for a request than most fleets for a step, and so does handing a call to a thread. Here, a
call of a quick fleet is made by the event loop itself. Calls that arrive together are made one after the other, a
call per user in turn, and committed together.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from envfleet.remote.codec import MEDIA_TYPE
from envfleet.service.bodies import Body
from envfleet.service.database.journal import Conflict
from envfleet.service.gate import note
from envfleet.service.hosting.fleets import BegunCall
from envfleet.service.protocols.requests import REFUSED, read, refuse
from envfleet.service.protocols.schemas import ResetFleet, StepFleet
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity

_PREFIX = "/api/v2/fleets/"
_SCHEMAS: dict[str, type[ResetFleet | StepFleet]] = {"reset": ResetFleet, "step": StepFleet}
_HEADERS = ((b"content-type", MEDIA_TYPE.encode()),)
_REPLAYED = (*_HEADERS, (b"envfleet-replayed", b"1"))
_REFUSED: tuple[type[Exception], ...] = (*REFUSED, HTTPException)
_PATIENCE_S, _WHOLE_S = 30.0, 300.0
_QUICK_BYTES = 64 * 2**10
"""Larger bodies are decoded in a thread."""

_TURN_S = 0.005
"""Time after which calls are committed and the loop looks after its connections."""

Reply = tuple[bytes, bool]
"""Packed reply, and whether it was stored."""


@dataclasses.dataclass
class _Waiting:
    """A call that waits for the event loop.

    Attributes:
        identity: The user.
        arguments: Arguments of `Fleets.begin_at_once`, except for limits.
        most_steps: Steps that the user may make in a day.
        result: Reply; `None` if a thread must make the call.
        begun_s: Time of arrival.
    """

    identity: Identity
    arguments: dict[str, Any]
    most_steps: int | None
    result: asyncio.Future[Reply | None]
    begun_s: float


class FleetCalls:
    """ASGI middleware that answers resets and steps of fleets, and passes on all other requests.

    Args:
        app: The application.
        service: The service.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._fleets = app, service, service.fleets
        self._most_bytes = service.settings.max_body_bytes
        self._commits_here = service.store.is_sqlite  # which takes less time than handing it to a thread
        self._waiting: dict[int, collections.deque[_Waiting]] = {}
        self._is_scheduled = False
        self._commits: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path: str = scope["path"] if scope["type"] == "http" and scope["method"] == "POST" else ""
        fleet, _, verb = path.removeprefix(_PREFIX).partition("/")
        if verb not in _SCHEMAS or not path.startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        begun_s, status = time.perf_counter(), 500
        body = Body(scope, receive, self._service.bodies, patience_s=_PATIENCE_S)
        try:
            try:
                reply, is_stored = await self._answer(scope, body, fleet, verb)
            except _REFUSED as error:
                refusal = refuse(self._service, error)
                status = refusal.status_code
                await refusal(scope, receive, send)
                return
            status = 200
            headers = [*(_REPLAYED if is_stored else _HEADERS), (b"content-length", b"%d" % len(reply))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": reply})
        finally:
            body.release()
            note(self._service.metrics, scope, f"{_PREFIX}{{fleet}}/{verb}", status, time.perf_counter() - begun_s)

    async def _answer(self, scope: Scope, body: Body, fleet_id: str, verb: str) -> Reply:
        service, identity = self._service, await self._service.identify(_bearer(scope))
        user_id = identity.user_id
        hosted = self._fleets.held(fleet_id)
        if hosted is None or hosted.user_id != user_id:
            hosted = await service.run(identity, "bring", lambda: self._fleets.bring(user_id, fleet_id), computes=False)
        content = await body.read(min(hosted.most_body_bytes, self._most_bytes), _WHOLE_S)
        if hosted.is_quick and len(content) <= _QUICK_BYTES:
            reply = await self._call_here(identity, fleet_id, verb, content)
            if reply is not None:
                return reply

        def work() -> Reply:
            arguments = _read(verb, content)
            return self._fleets.call(user_id, fleet_id, **arguments, most_steps=service.quotas.limits(identity)[1])

        return await service.run(identity, verb, work, computes=hosted.can_save)

    # ------------------------------------------------------------------ on the event loop

    async def _call_here(self, identity: Identity, fleet_id: str, verb: str, content: bytes) -> Reply | None:
        """Make a call in one of the next turns of the loop; return `None` if a thread must make it."""
        metrics, begun_s = self._service.metrics, time.perf_counter()
        await self._service.turns.pace(identity.token_id)
        loop = asyncio.get_running_loop()
        arguments = {"fleet_id": fleet_id, **_read(verb, content)}
        call = _Waiting(identity, arguments, self._service.quotas.limits(identity)[1], loop.create_future(), begun_s)
        self._waiting.setdefault(identity.user_id, collections.deque()).append(call)
        self._schedule(loop)
        try:
            return await call.result
        finally:
            metrics.call_s.labels(verb).observe(time.perf_counter() - begun_s)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled and self._waiting:
            self._is_scheduled = True
            loop.call_soon(self._take_turn, loop)

    def _take_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make calls, one per user in turn, and commit them."""
        self._is_scheduled = False
        calls: list[tuple[_Waiting, BegunCall]] = []
        end_s = time.perf_counter() + _TURN_S
        while self._waiting and time.perf_counter() < end_s:
            user_id, waiting = next(iter(self._waiting.items()))
            call = waiting.popleft()
            del self._waiting[user_id]
            if waiting:
                self._waiting[user_id] = waiting  # behind all other users
            if call.result.cancelled():  # the client has gone
                continue
            self._service.metrics.wait_s.observe(time.perf_counter() - call.begun_s)
            begun = self._begin(call)
            if begun is not None:
                calls.append((call, begun))
        if calls:
            self._commit(loop, calls)
        self._schedule(loop)

    def _begin(self, call: _Waiting) -> BegunCall | None:
        try:
            begun = self._fleets.begin_at_once(call.identity.user_id, **call.arguments, most_steps=call.most_steps)
        except Exception as error:  # noqa: BLE001  # raised where the call waits
            call.result.set_exception(error)
            return None
        if isinstance(begun, BegunCall):
            return begun
        call.result.set_result(None if begun is None else (begun, True))
        return None

    def _commit(self, loop: asyncio.AbstractEventLoop, calls: Sequence[tuple[_Waiting, BegunCall]]) -> None:
        begun = [one for _, one in calls]
        results = self._fleets.end_all(begun, waits=False) if self._commits_here else None
        if results is not None:
            _resolve(calls, results)
            return

        async def commit() -> None:
            results = await anyio.to_thread.run_sync(lambda: self._fleets.end_all(begun, waits=True))
            _resolve(calls, results or [])

        task = loop.create_task(commit())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)


def _resolve(calls: Sequence[tuple[_Waiting, BegunCall]], results: Sequence[Exception | bytes]) -> None:
    for (call, _), result in zip(calls, results, strict=True):
        if call.result.done():  # the client has gone
            continue
        if isinstance(result, Conflict):
            call.result.set_result(None)  # another process may have made this very call: a thread finds out
        elif isinstance(result, Exception):
            call.result.set_exception(result)
        else:
            call.result.set_result((result, False))


def _read(verb: str, content: bytes) -> dict[str, Any]:
    """Return number, key and event of a call; the fields of the body are those of the event."""
    request = read(_SCHEMAS[verb], content)
    event = {"do": verb, **{name: value for name, value in request if name not in ("seq", "key")}}
    return {"event": event, "seq": request.seq, "key": request.key}


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.decode("latin-1").partition(" ")
            return token.strip() if scheme.lower() == "bearer" else None
    return None
