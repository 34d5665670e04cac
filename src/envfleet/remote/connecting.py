"""From addresses and a name to the engine of a remote fleet."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import Space

from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.codec import pack, space_from_plain
from envfleet.remote.engine import RemoteEngine
from envfleet.remote.queue import KEY_BYTES, ServiceQueue
from envfleet.remote.service_link import ServiceLink
from envfleet.user_settings import find_token

_UNDO_S = 1.0


def connect_engine(
    urls: Sequence[str],
    num_envs: int,
    request: Mapping[str, Any],
    *,
    token: str | None,
    record_episodes: bool,
    timeout_s: float,
    patience_s: float,
    resume: bool | str = False,
) -> RemoteEngine:
    """Make a fleet at services; see `envfleet.connect`.

    Args:
        urls: Addresses of the services.
        num_envs: Sub-environments in all.
        request: `env`, `mode`, `options` and `autoreset_mode`, as the protocol has them.
        token: For all services.
        record_episodes: True to add `"episode"` to the infos of ended episodes.
        timeout_s: Timeout of a request.
        patience_s: Timeout of a call with its repetitions.
        resume: Id of the fleet to continue; True for the one that was made by the same arguments, if there is one.
    """
    if not urls or num_envs < len(urls):
        raise InvalidArgument(
            f"num_envs={num_envs} for {len(urls)} services: pass at least one service, and one sub-environment for each"
        )
    if len(urls) > 1 and request["mode"] == "ranked":
        raise InvalidArgument(f"{len(urls)} services with mode='ranked': pass one, where the whole attempt is played")
    if resume and len(urls) > 1:
        raise InvalidArgument(f"resume with {len(urls)} services: pass one, a fleet at a time")
    secret = find_token(token)
    bounds = [num_envs * k // len(urls) for k in range(len(urls) + 1)]
    queues: list[ServiceQueue] = []
    spaces: tuple[Space[Any], ...] = ()
    with contextlib.ExitStack() as undoing:
        for url, start, stop in zip(urls, bounds, bounds[1:], strict=False):
            link = ServiceLink(url, secret, timeout_s=timeout_s, patience_s=patience_s)
            undoing.callback(link.close)
            link.get("/me")
            part_request = {**request, "num_envs": stop - start}
            described: Any = _find_fleet(link, part_request, resume) if resume else None
            is_new = described is None
            if is_new:
                described = link.post("/fleets", pack({**part_request, "key": secrets.token_bytes(KEY_BYTES)}))
            try:
                queues.append(ServiceQueue(link, str(described["fleet"]), range(start, stop), seq=described["seq"]))
                undoing.callback(queues[-1].close, _UNDO_S if is_new else 0.0)
                offered = tuple(space_from_plain(described[f"{name}_space"]) for name in ("observation", "action"))
                engine = RemoteEngine(queues, described, offered, record_episodes=record_episodes)
            except (KeyError, TypeError, ValueError) as error:
                raise WireError(f"{url} described a fleet as {described!r:.200}: {error!r}") from error
            if described["num_envs"] != stop - start:
                raise WireError(f"{url} made {described['num_envs']} sub-environments, asked for {stop - start}")
            spaces = spaces or offered
            if offered != spaces:
                raise InvalidArgument(
                    f"{url} has spaces {offered}, {urls[0]} has {spaces}: connect to services that offer the same "
                    "environment"
                )
        undoing.pop_all()
    return engine


def _find_fleet(link: ServiceLink, request: Mapping[str, Any], resume: bool | str) -> Any:
    """Return the description of the fleet to continue, with its last call, or `None`.

    Raises:
        InvalidArgument: The fleet with this id was made by other arguments, or several were made by these.
    """
    if isinstance(resume, str):
        described = link.get(f"/fleets/{resume}/last")
        for name, expected in request.items():
            if not _is_same(name, described.get(name), expected):
                raise InvalidArgument(
                    f"fleet_id={resume!r} has {name}={described.get(name)!r}, but {expected!r} was passed: pass the "
                    "fleet's own"
                )
        return described
    fleets = link.get("/fleets")["fleets"]
    same = [
        str(each["fleet"])
        for each in fleets
        if each["kind"] == "fleet" and all(_is_same(name, each.get(name), request[name]) for name in request)
    ]
    if len(same) > 1:
        raise InvalidArgument(
            f"resume=True, but {len(same)} open fleets match: pass fleet_id=, one of {', '.join(same)}"
        )
    return link.get(f"/fleets/{same[0]}/last") if same else None


def _is_same(name: str, value: Any, expected: Any) -> bool:
    """Compare an argument of two fleets; the namespace of an environment is optional."""
    return bool(value == expected or (name == "env" and value == f"envfleet/{expected}"))
