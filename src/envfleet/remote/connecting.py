"""From addresses and a name to a remote fleet."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.core.layout import SpaceLayout
from envfleet.errors import EnvfleetError, InvalidArgument, WireError
from envfleet.packing.spaces import space_from_plain
from envfleet.packing.values import pack
from envfleet.remote.exchange import KEY_BYTES, Shard
from envfleet.remote.fleet import RemoteFleet
from envfleet.remote.service_link import ServiceLink
from envfleet.remote.settings import find_token

_FIRST_REACH_S = 10.0  # nothing runs yet, and an address may be wrong


def connect_fleet(
    urls: Sequence[str],
    num_envs: int,
    request: Mapping[str, Any],
    *,
    token: str | None,
    autoreset_mode: AutoresetMode,
    batch_size: int | None = None,
    timeout_s: float,
    patience_s: float,
) -> RemoteFleet:
    """Make a fleet at services; see `envfleet.connect`.

    Args:
        urls: Of the services.
        num_envs: In all.
        request: `env`, `mode` and `options`, as the protocol has them.
        token: For all services.
        autoreset_mode: Gymnasium's.
        batch_size: Rows that `recv` waits for; `None` for all.
        timeout_s: Of a request.
        patience_s: Of a call.
    """
    if not urls or num_envs < len(urls):
        raise InvalidArgument(
            f"num_envs={num_envs} for {len(urls)} services: pass at least one service, and one sub-environment for each"
        )
    secret = find_token(token)
    bounds = [num_envs * k // len(urls) for k in range(len(urls) + 1)]
    shards: list[Shard] = []
    made: list[tuple[ServiceLink, str]] = []
    links: list[ServiceLink] = []
    try:
        first: Mapping[str, Any] = {}
        for url, start, stop in zip(urls, bounds, bounds[1:], strict=False):
            links.append(ServiceLink(url, secret, timeout_s=timeout_s, patience_s=patience_s))
            asked = {**request, "num_envs": stop - start, "autoreset_mode": autoreset_mode.name}
            described = _create(links[-1], asked)
            made.append((links[-1], str(described.get("fleet"))))
            shards.append(_shard(links[-1], described, range(start, stop)))
            first = first or described
            _check_same(shards[0], shards[-1])
        return RemoteFleet(shards, first, batch_size)
    except BaseException:
        for link, fleet_id in made:
            _abandon(link, fleet_id)
        for link in links:
            link.close()
        raise


def _create(link: ServiceLink, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    body = pack({**asked, "key": secrets.token_bytes(KEY_BYTES)})
    described = link.post("/fleets", body, reach_s=_FIRST_REACH_S)
    if not isinstance(described, dict):
        raise WireError(f"{link.url} answered {described!r:.100}, expected the description of a fleet")
    return described


def _shard(link: ServiceLink, described: Mapping[str, Any], span: range) -> Shard:
    try:
        spaces = described["observation_space"], described["action_space"]
        fleet_id, num_envs = str(described["fleet"]), described["num_envs"]
        AutoresetMode[described["autoreset_mode"]], described["env"], described["mode"], dict(described["options"])
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"{link.url} described a fleet without {error}") from error
    if num_envs != len(span):
        raise WireError(f"{link.url} made {num_envs!r:.20} sub-environments, asked for {len(span)}")
    observations, actions = (SpaceLayout(space_from_plain(space)) for space in spaces)
    return Shard(link, fleet_id, span, (observations, actions))


def _check_same(first: Shard, other: Shard) -> None:
    for name in ("observations", "actions"):
        ours, theirs = getattr(first, name).space, getattr(other, name).space
        if ours != theirs:
            raise InvalidArgument(
                f"{other.link.url} has {name} {theirs}, {first.link.url} has {ours}: connect to services that offer "
                "the same environment"
            )


def _abandon(link: ServiceLink, fleet_id: str) -> None:
    """Close a part of a fleet that is not to be; a service that does not answer does so by itself in time."""
    try:
        body = pack({"key": secrets.token_bytes(KEY_BYTES)})
        link.post(f"/fleets/{fleet_id}/close", body, patience_s=1.0)
    except EnvfleetError:
        return
