"""OpenEnv's protocol: JSON messages over a WebSocket, which owns a fleet of one sub-environment."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from gymnasium import Space, spaces
from pydantic import Field

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.service.hosting.hosted import FleetConfig
from envfleet.service.offers import Offer, find_offer
from envfleet.service.protocols.requests import REFUSED, read, refuse
from envfleet.service.protocols.schemas import Schema, Seed
from envfleet.service.refusals import Closed, NotFound, Unauthorized, answer_to
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity

router = APIRouter()
_CODES = {"invalid_argument": "VALIDATION_ERROR", "quota": "CAPACITY_REACHED", "busy": "CAPACITY_REACHED"}
_FATAL = (Closed, NotFound, Unauthorized)
_PATIENCE_S = 30.0
Reply = dict[str, Any]


class Message(Schema):
    """A message of a client; its data are those of a reset, or an action."""

    type: Literal["reset", "step", "state", "close"]
    data: dict[str, Any] = Field(default_factory=dict)


class ResetData(Schema):
    """Data of a reset; others are ignored, as OpenEnv's server does."""

    seed: Seed | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None


@router.websocket("/ws")
async def play_only(websocket: WebSocket) -> None:
    """Host the only environment of the service."""
    await _host(websocket, None)


@router.websocket("/openenv/{env:path}/ws")
async def play(websocket: WebSocket, env: str) -> None:
    """Host an environment of the service."""
    await _host(websocket, env)


async def _host(websocket: WebSocket, env: str | None) -> None:
    service: Service = websocket.app.state.service
    session = _Session(service, _token(websocket), websocket.scope["route"].path)
    try:
        await service.identify(session.token)
    except REFUSED as error:
        session.count(refuse(service, error).status_code)
        await websocket.close()  # before it is open: HTTP's 403
        return
    await websocket.accept()
    with contextlib.suppress(WebSocketDisconnect, TimeoutError):
        try:
            failure = await session.answer(functools.partial(session.open, env))
            while True:
                async with asyncio.timeout(_PATIENCE_S if failure else None):
                    message = await websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                # A failure is the reply to the first message, because clients may not read messages without a request.
                reply = failure or await session.answer(functools.partial(session.play, message.get("text") or ""))
                if reply:
                    await websocket.send_text(reply)
                if session.is_over:
                    break
        finally:
            await session.close()
        await websocket.close()


def _token(websocket: WebSocket) -> str | None:
    """Return the token of a handshake; as OpenEnv's client sets no headers, it may be the password in the address."""
    scheme, _, value = websocket.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return value.strip() if scheme.lower() == "bearer" else None
    with contextlib.suppress(ValueError):
        return base64.b64decode(value, validate=True).decode().partition(":")[2]
    return None


class _Session:
    """Session of one WebSocket.

    Args:
        service: The service.
        token: Token of the client; it is checked for every message, since it may be revoked.
        route: Name for the figures.

    Attributes:
        is_over: True to close the WebSocket.
    """

    def __init__(self, service: Service, token: str | None, route: str) -> None:
        self._service, self.token, self._route = service, token, route
        self._fleet: tuple[int, str] | None = None
        self._offer: Offer | None = None
        self._state: Reply = {}
        self.is_over = False

    def count(self, status: int) -> None:
        """Count a message that was answered, with a status of HTTP."""
        self._service.metrics.count("WEBSOCKET", self._route, str(status))

    async def answer(self, work: Callable[[Identity], str | None]) -> str | None:
        """Return the reply to a message, computed in the user's turn; a refusal is also a reply."""
        status, computes = 200, self._offer is not None and self._offer.is_kernel
        try:
            identity = await self._service.identify(self.token)
            reply = await self._service.run(identity, "openenv", lambda: work(identity), computes=computes)
        except REFUSED as error:
            status, code, detail, _ = answer_to(error)
            self._service.metrics.denials.labels(code).inc()
            self.is_over = self._fleet is None or isinstance(error, _FATAL)
            reply = _pack("error", {"message": detail, "code": _CODES.get(code, "EXECUTION_ERROR")})
        self.count(status)
        return reply

    def open(self, env: str | None, identity: Identity) -> None:
        """Make the fleet.

        Raises:
            EnvfleetError: See `Fleets.create`.
        """
        offers = self._service.settings.offers
        if env is None and len(offers) > 1:
            paths = ", ".join(f"/openenv/{offer.env}" for offer in offers)
            raise InvalidArgument(f"this service hosts several environments: add one of {paths} to the base URL")
        offer = find_offer(offers, offers[0].env if env is None else env)
        offer.check(1, {})
        config = FleetConfig(
            env=offer.env, version=offer.version(), num_envs=1, autoreset_mode="DISABLED", mode="training",
            options={}, kind="openenv",
        )  # fmt: skip
        most = self._service.quotas.limits(identity)[0]
        key = secrets.token_hex(16)
        fleet_id = self._service.fleets.create(identity.user_id, config, key, most_live_envs=most)
        self._offer, self._fleet = offer, (identity.user_id, fleet_id)
        self._state = {"episode_id": None, "step_count": 0, "env": offer.env, "terminated": False, "truncated": False}

    def play(self, text: str, identity: Identity) -> str | None:
        """Carry out a message; nothing is replied to the last one.

        Raises:
            EnvfleetError: It cannot be carried out.
        """
        message = read(Message, text.encode(), is_json=True)
        if message.type == "close":
            self.is_over = True
            return None
        if message.type == "state":
            return _pack("state", self._state)
        assert self._fleet is not None  # noqa: S101  # or the session is over
        event: Reply = {"do": message.type, "rows": None}
        state: Reply
        with self._service.fleets.use(*self._fleet) as hosted:
            if message.type == "reset":
                data = read(ResetData, json.dumps(message.data).encode(), is_json=True)
                event["seeds"] = data.seed
                state = {"episode_id": data.episode_id or f"{hosted.fleet_id}-{hosted.seq}", "step_count": 0}
            else:
                event["actions"] = _read_action(hosted.fleet.single_action_space, message.data)
                state = {"step_count": self._state["step_count"] + 1}
            most_steps = self._service.quotas.limits(identity)[1]
            reply = self._service.fleets.make(hosted, event, most_steps=most_steps).reply
        flags = {name: bool(reply[name][0]) if name in reply else False for name in ("terminated", "truncated")}
        self._state.update(state, **flags)
        observation = _plain_row(reply["observations"])
        fields = observation if isinstance(observation, dict) else {"observation": observation}
        reward = float(reply["rewards"][0]) if "rewards" in reply else None
        return _pack("observation", {"observation": fields, "reward": reward, "done": any(flags.values())})

    async def close(self) -> None:
        """Close the fleet after either side has ended the WebSocket."""
        if self._fleet is not None:
            user_id, fleet_id = self._fleet
            with contextlib.suppress(EnvfleetError):  # it may be closed already, as one that was idle
                await self._service.in_thread(lambda: self._service.fleets.close_fleet(user_id, fleet_id))


def _pack(kind: str, data: Reply) -> str:
    return json.dumps({"type": kind, "data": data})


def _read_action(space: Space[Any], data: Mapping[str, Any]) -> Any:
    """Return a batch of one action: the fields of a dict space, else of the field `action`."""
    fields = {name: value for name, value in data.items() if name != "metadata"}
    if isinstance(space, spaces.Dict):
        return _read_value(space, fields)
    if fields.keys() != {"action"}:
        raise InvalidArgument(f"the action has fields {sorted(fields)}, expected one: 'action', a value of {space}")
    return _read_value(space, fields["action"])


def _read_value(space: Space[Any] | None, value: Any) -> Any:
    if isinstance(space, spaces.Dict) and isinstance(value, dict):
        return {name: _read_value(space.spaces.get(name), each) for name, each in value.items()}
    if isinstance(space, spaces.Tuple) and isinstance(value, list) and len(value) == len(space.spaces):
        return tuple(map(_read_value, space.spaces, value))
    try:
        array = np.asarray([value])
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"the action {value!r:.80} cannot be read as an array: {error}") from error
    if array.dtype.kind not in "biuf":
        raise InvalidArgument(f"the action is {value!r:.80}, expected numbers: a value of {space}")
    return array


def _plain_row(batch: Any) -> Any:
    """Return the only row of a batch as JSON has it."""
    if isinstance(batch, dict):
        return {name: _plain_row(each) for name, each in batch.items()}
    return [_plain_row(each) for each in batch] if isinstance(batch, tuple) else batch[0].tolist()
