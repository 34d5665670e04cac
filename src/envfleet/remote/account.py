"""What a service tells a person: who they are to it, their quota, their fleets, their scores."""

from __future__ import annotations

import dataclasses
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
        calls: Resets and steps so far; `None` if not asked for, as of the attributes that follow.
        running: Episodes that run.
        mean_return: Of those, so far.
        mean_length: Of those, in steps so far.
    """

    fleet_id: str
    env: str
    num_envs: int
    mode: str
    calls: int | None = None
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
    """Ask a service for all of it.

    Raises:
        EnvfleetError: As `ServiceLink.post`.
    """
    try:
        me, fleets, envs = link.get("/me"), link.get("/fleets")["fleets"], link.get("/envs")["envs"]
        shown = [_fleet(link, plain, is_asked=k < _MOST_FLEETS) for k, plain in enumerate(fleets)]
        boards = {env: tuple(link.get_json(f"/scores/{env}")["scores"]) for env in envs}
        quota = {name: (each["used"], each["limit"]) for name, each in me["quota"].items()}
        return Account(str(me["user"]), str(me["role"]), quota, tuple(shown), boards)
    except (KeyError, TypeError, AttributeError) as error:
        raise WireError(f"{link.url} told something else than expected: {type(error).__name__}: {error}") from error


def _fleet(link: ServiceLink, plain: Mapping[str, Any], *, is_asked: bool) -> OpenFleet:
    fleet = OpenFleet(str(plain["fleet"]), str(plain["env"]), int(plain["num_envs"]), str(plain["mode"]))
    if not is_asked:
        return fleet
    try:
        described = link.get(f"/fleets/{fleet.fleet_id}")
    except ServiceRefused:  # it was closed meanwhile, or is of the episode protocol and cannot be described
        return fleet
    runs = np.ones(fleet.num_envs, np.bool_) if described["seq"] else np.zeros(fleet.num_envs, np.bool_)
    runs[described["ended"]] = False
    if not runs.any():
        return dataclasses.replace(fleet, calls=int(described["seq"]), running=0)
    return dataclasses.replace(
        fleet,
        calls=int(described["seq"]),
        running=int(runs.sum()),
        mean_return=float(described["returns"][runs].mean()),
        mean_length=float(described["lengths"][runs].mean()),
    )
