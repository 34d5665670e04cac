"""What a service reports to a user: name and role, quota, fleets, scores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from envfleet.errors import ServiceRefused, WireError
from envfleet.remote.service_link import ServiceLink

_MOST_FLEETS = 12  # that are asked for their episodes


@dataclasses.dataclass(frozen=True)
class OpenFleet:
    """A fleet that is open.

    Attributes:
        fleet_id: The service's id.
        env: What it runs.
        num_envs: Sub-environments.
        mode: `"training"` or `"ranked"`.
        running: Episodes that run; `None` if not asked for, as of the attributes that follow.
        mean_return: Of those, so far.
        mean_length: Of those, in steps so far.
    """

    fleet_id: str
    env: str
    num_envs: int
    mode: str
    running: int | None = None
    mean_return: float | None = None
    mean_length: float | None = None


@dataclasses.dataclass(frozen=True)
class Account:
    """A user of a service.

    Attributes:
        user: Their name.
        role: `"participant"` or `"admin"`.
        quota: By name what is used and the limit, `None` for none.
        fleets: Theirs that are open.
        scores: By environment the leaderboard: rows with `rank`, `user`, `score`, `best`, `episodes`.
    """

    user: str
    role: str
    quota: Mapping[str, tuple[float, float | None]]
    fleets: tuple[OpenFleet, ...]
    scores: Mapping[str, tuple[Mapping[str, Any], ...]]


def read_account(link: ServiceLink) -> Account:
    """Read the account of the user whose token a link has.

    Raises:
        EnvfleetError: As `ServiceLink.post`.
    """
    try:
        me, fleets, envs = link.get("/me"), link.get("/fleets")["fleets"], link.get("/envs")["envs"]
        shown = [_fleet(link, plain, is_asked=k < _MOST_FLEETS) for k, plain in enumerate(fleets)]
        boards = {env: tuple(link.send("GET", f"/scores/{env}").json()["scores"]) for env in envs}
        quota = {name: (each["used"], each["limit"]) for name, each in me["quota"].items()}
        return Account(str(me["user"]), str(me["role"]), quota, tuple(shown), boards)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise WireError(f"{link.url} answered something else than expected: {type(error).__name__}: {error}") from error


def _fleet(link: ServiceLink, plain: Mapping[str, Any], *, is_asked: bool) -> OpenFleet:
    fleet = OpenFleet(str(plain["fleet"]), str(plain["env"]), int(plain["num_envs"]), str(plain["mode"]))
    try:
        described = link.get(f"/fleets/{fleet.fleet_id}") if is_asked else None
    except ServiceRefused:  # it was closed meanwhile, or is of the episode protocol and cannot be described
        described = None
    if described is None:
        return fleet
    runs = np.full(fleet.num_envs, bool(described["seq"]))
    runs[described["ended"]] = False
    means = [float(described[name][runs].mean()) if runs.any() else None for name in ("returns", "lengths")]
    return dataclasses.replace(fleet, running=int(runs.sum()), mean_return=means[0], mean_length=means[1])
