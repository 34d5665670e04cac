"""Environments behind servers of OpenEnv, each over a separate WebSocket."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym
import httpx
import numpy as np
from gymnasium import spaces
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from envfleet.errors import InvalidArgument, ServiceRefused, ServiceUnreachable, WireError

SCHEMES = ("openenv+ws://", "openenv+wss://")
_MOST_BYTES = 100 * 2**20  # of a message, as in OpenEnv's client
_NOT_SEEN = {"done", "reward", "metadata"}
Fields: TypeAlias = tuple[gym.Space[Any], str | None]
"""Space of observations or actions, and the only field that holds it; `None` if it is a dict of all fields."""


class OpenEnv(gym.Env[Any, Any]):
    """One environment of a server of OpenEnv.

    Args:
        url: `ws://` or `wss://` of the server.
        observations: Space and field of observations.
        actions: Space and field of actions.
        token: Bearer token, if the server takes one.
        timeout_s: Timeout of a message.

    Raises:
        ServiceUnreachable: The server does not answer.
    """

    def __init__(self, url: str, observations: Fields, actions: Fields, token: str | None, timeout_s: float) -> None:
        self.observation_space, self._seen = observations
        self.action_space, self._acted = actions
        self._url, self._timeout_s = url, timeout_s
        self._open = contextlib.ExitStack()
        try:
            opening = connect(
                f"{url}/ws",
                open_timeout=timeout_s,
                close_timeout=1.0,
                max_size=_MOST_BYTES,
                compression=None,
                additional_headers=_headers(token),
            )
            self._socket = self._open.enter_context(opening)
        except (OSError, WebSocketException) as error:
            raise ServiceUnreachable(f"{url}/ws does not answer: {error}") from error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; options are passed as the server's own arguments of a reset."""
        super().reset(seed=seed)
        data = {**(options or {}), **({} if seed is None else {"seed": seed})}
        return self._observe(self._ask("reset", data)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; OpenEnv does not distinguish truncated from terminated episodes."""
        value = _to_plain(action)
        reply = self._ask("step", value if self._acted is None else {self._acted: value})
        return self._observe(reply), float(reply.get("reward") or 0.0), bool(reply.get("done")), False, {}

    def close(self) -> None:
        """Close the WebSocket, and with it the environment at the server."""
        with contextlib.suppress(ConnectionClosed):  # it may be closed already
            self._socket.send(json.dumps({"type": "close"}))
        self._open.close()

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            with contextlib.suppress(ConnectionClosed):  # what it said before is read below
                self._socket.send(json.dumps({"type": kind, "data": data}))
            reply = json.loads(self._socket.recv(self._timeout_s))
            answer, content = reply["type"], reply["data"]
        except (OSError, WebSocketException) as error:
            self._open.close()  # otherwise the next call would get this reply
            raise ServiceUnreachable(f"{self._url} did not answer a {kind}: {error!r}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise WireError(f"{self._url} did not answer a {kind} as OpenEnv does: {error!r}") from error
        if answer == "error":
            raise ServiceRefused(f"{self._url}: {content.get('message')} ({content.get('code')})")
        if not isinstance(content, dict):
            raise WireError(f"{self._url} answered a {kind} with {content!r:.100}, expected a dict")
        return content

    def _observe(self, reply: Mapping[str, Any]) -> Any:
        try:
            seen = reply["observation"]
            return _from_plain(self.observation_space, seen if self._seen is None else seen[self._seen])
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(
                f"{self._url} sent {reply!r:.200}, expected an observation of {self.observation_space}: {error!r}"
            ) from error


def builders(
    url: str, num_envs: int, *, token: str | None, timeout_s: float, **options: Any
) -> list[Callable[[], OpenEnv]]:
    """Return what builds the sub-environments of a fleet.

    Args:
        url: URL of the server, with one of `SCHEMES`.
        num_envs: Number of sub-environments.
        token: Bearer token, if the server takes one.
        timeout_s: Timeout of a message.
        **options: `observation_space`, `action_space`, where the server's schemas are too vague.

    Raises:
        InvalidArgument: Another option, or a space cannot be derived.
        ServiceUnreachable: The server does not answer.
        WireError: It is not one of OpenEnv.
    """
    if unknown := sorted(set(options) - {"observation_space", "action_space"}):
        raise InvalidArgument(f"{unknown[0]}=…: a server of OpenEnv takes only observation_space and action_space")
    url = url.removeprefix("openenv+").rstrip("/")
    address = f"http{url.removeprefix('ws')}/schema"
    try:
        schemas = httpx.get(address, headers=_headers(token), timeout=timeout_s).raise_for_status().json()
        space_properties = [schemas[name]["properties"] for name in ("observation", "action")]
    except httpx.HTTPError as error:
        raise ServiceUnreachable(f"{address} does not answer: {error!r}") from error
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"{address} did not answer as OpenEnv does: {error!r}") from error
    seen, acted = (
        _read_fields(name, properties, options.get(name))
        for name, properties in zip(("observation_space", "action_space"), space_properties, strict=True)
    )
    return [functools.partial(OpenEnv, url, seen, acted, token, timeout_s)] * num_envs


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _read_fields(name: str, properties: Mapping[str, Any], space: gym.Space[Any] | None) -> Fields:
    """Return space and field by the JSON schema of an observation or action."""
    fields = {field: schema for field, schema in properties.items() if field not in _NOT_SEEN}
    only = next(iter(fields)) if len(fields) == 1 else None
    if isinstance(space, spaces.Dict):
        return space, None
    if space is not None and only is None:
        raise InvalidArgument(f"{name}={space}, but the server has fields {sorted(fields)}: pass a Dict of these")
    if space is None:
        parts = {field: _read_space(name, field, schema) for field, schema in fields.items()}
        space = spaces.Dict(parts) if only is None else parts[only]
    return space, only


def _read_space(name: str, field: str, schema: Mapping[str, Any]) -> gym.Space[Any]:
    kind, low, high = schema.get("type"), schema.get("minimum"), schema.get("maximum")
    if kind == "boolean":
        return spaces.Discrete(2)
    if kind == "integer" and low is not None and high is not None:
        return spaces.Discrete(int(high - low) + 1, start=int(low))
    if kind == "number":
        return spaces.Box(-np.inf if low is None else low, np.inf if high is None else high, (), np.float64)
    if kind == "array" and "items" in schema and schema.get("minItems", -1) == schema.get("maxItems"):
        length, item = int(schema["minItems"]), _read_space(name, field, schema["items"])
        if isinstance(item, spaces.Discrete):
            return spaces.MultiDiscrete([int(item.n)] * length, start=[int(item.start)] * length)
        if isinstance(item, spaces.Box):
            return spaces.Box(item.low.min(), item.high.max(), (length, *item.shape), np.float64)
    raise InvalidArgument(f"the server says of {field!r} only {dict(schema)!r:.200}, which is no space: pass {name}=…")


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _from_plain(space: gym.Space[Any], value: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _from_plain(each, value[name]) for name, each in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_from_plain(each, part) for each, part in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(value)
    return value if isinstance(space, spaces.Text) else np.asarray(value, space.dtype)
