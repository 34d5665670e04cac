"""Settings of a service."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from envfleet.service.offers import Offer


class Settings(BaseModel):
    """Settings of a service.

    Attributes:
        database: SQLAlchemy's URL.
        offers: The environments it hosts.
        max_live_envs: Sub-environments that a user may hold.
        max_steps_per_day: Steps of sub-environments that a user may make between midnights, UTC; `None` for any number.
        attempts_per_day: Ranked attempts that a user may start between midnights, UTC, in each environment.
        requests_per_s: Calls of one token, on the average; those above wait.
        max_body_bytes: Maximum size of the body of a request.
        queue_timeout_s: Maximum time that a call waits in the queue, in seconds.
        max_processes: Maximum number of worker processes per service process, for environments that are not kernels.
            At the limit, fleets unused for `queue_timeout_s` and fleets of users with more processes than the caller
            leave the memory; without such fleets the call is refused and can be repeated.
        max_running: Maximum number of calls that run at the same time; the others wait.
        idle_timeout_s: Time without use after which a fleet is closed, in seconds.
        evict_after_s: Time without use after which a fleet leaves the memory until its next use, in seconds.
        retention_days: Days for which the events of closed fleets are kept.
        snapshot_every: Events between two snapshots of a fleet.
        has_public_scores: Show leaderboards to visitors without a token.
        has_access_log: Write one line of JSON per request to standard output.
        metrics_token: Bearer token of `/metrics`, in addition to those of administrators.
        tend_every_s: Seconds between two searches for idle fleets.
    """

    model_config = ConfigDict(frozen=True)

    database: str
    offers: tuple[Offer, ...]
    max_live_envs: int = Field(default=20_000, ge=1)
    max_steps_per_day: int | None = Field(default=None, ge=1)
    attempts_per_day: int = Field(default=5, ge=1)
    requests_per_s: float = Field(default=500.0, gt=0)
    max_body_bytes: int = Field(default=64 * 2**20, ge=1024)
    queue_timeout_s: float = Field(default=20.0, gt=0)
    max_processes: int = Field(default=128, ge=1)
    max_running: int = Field(default=32, ge=1)
    idle_timeout_s: float = Field(default=3600.0, gt=0)
    evict_after_s: float = Field(default=600.0, gt=0)
    retention_days: float = Field(default=30.0, gt=0)
    snapshot_every: int = Field(default=200, ge=1)
    tend_every_s: float = Field(default=30.0, gt=0)
    has_public_scores: bool = True
    has_access_log: bool = False
    metrics_token: str | None = None
