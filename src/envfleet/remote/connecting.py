"""From addresses and a name to the engine of a remote fleet."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import Space
from gymnasium.vector import AutoresetMode

from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.codec import pack, space_from_plain
from envfleet.remote.engine import RemoteEngine
from envfleet.remote.queue import KEY_BYTES, ServiceQueue
from envfleet.remote.service_link import ServiceLink
from envfleet.user_settings import find_token

_FIRST_REACH_S = 10.0  # nothing runs yet, and an address may be wrong
_UNDO_S = 1.0


def connect_engine(
    urls: Sequence[str],
    num_envs: int,
    request: Mapping[str, Any],
    *,
    token: str | None,
    autoreset_mode: AutoresetMode,
    record_episodes: bool,
    timeout_s: float,
    patience_s: float,
) -> RemoteEngine:
    """Make a fleet at services; see `envfleet.connect`.

    Args:
        urls: Of the services.
        num_envs: Sub-environments in all.
        request: `env`, `mode` and `options`, as the protocol has them.
        token: For all services.
        autoreset_mode: Gymnasium's.
        record_episodes: Whether infos describe the episodes that end.
        timeout_s: Of a request.
        patience_s: Of a call.
    """
    if not urls or num_envs < len(urls):
        raise InvalidArgument(
            f"num_envs={num_envs} for {len(urls)} services: pass at least one service, and one sub-environment for each"
        )
    if len(urls) > 1 and request["mode"] == "ranked":
        raise InvalidArgument(f"{len(urls)} services with mode='ranked': pass one, where the whole attempt is played")
    secret = find_token(token)
    bounds = [num_envs * k // len(urls) for k in range(len(urls) + 1)]
    queues: list[ServiceQueue] = []
    spaces: tuple[Space[Any], ...] = ()
    with contextlib.ExitStack() as undoing:
        for url, start, stop in zip(urls, bounds, bounds[1:], strict=False):
            link = ServiceLink(url, secret, timeout_s=timeout_s, patience_s=patience_s)
            undoing.callback(link.close)
            link.get("/me", patience_s=min(_FIRST_REACH_S, patience_s))
            asked = {**request, "num_envs": stop - start, "autoreset_mode": autoreset_mode.name}
            described = link.post("/fleets", pack({**asked, "key": secrets.token_bytes(KEY_BYTES)}))
            try:
                queues.append(ServiceQueue(link, str(described["fleet"]), range(start, stop)))
                undoing.callback(queues[-1].close, _UNDO_S)
                found = tuple(space_from_plain(described[f"{name}_space"]) for name in ("observation", "action"))
                engine = RemoteEngine(queues, described, found, record_episodes=record_episodes)
            except (KeyError, TypeError, ValueError) as error:
                raise WireError(f"{url} described a fleet as {described!r:.200}: {error!r}") from error
            if described["num_envs"] != stop - start:
                raise WireError(f"{url} made {described['num_envs']} sub-environments, asked for {stop - start}")
            spaces = spaces or found
            if found != spaces:
                raise InvalidArgument(
                    f"{url} has spaces {found}, {urls[0]} has {spaces}: connect to services that offer the same "
                    "environment"
                )
        undoing.pop_all()
    return engine
