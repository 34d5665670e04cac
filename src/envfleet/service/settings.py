"""What a service is started with."""

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
        requests_per_s: Calls of one token, on the average; those above wait.
        max_body_bytes: Of a request.
        queue_timeout_s: How long a call may wait for its turn.
        max_processes: Worker processes of one service process, for environments that are no kernels; beyond it fleets
            leave the memory that nobody used for `queue_timeout_s`, or whose user has more of them than the one who
            asks; if there are none, the call is refused and may be repeated.
        max_running: Calls that run at the same time; the others wait.
        idle_timeout_s: Fleets that nobody used for so long are closed.
        evict_after_s: Fleets that nobody used for so long leave the memory, and come back when they are used.
        retention_days: How long the events of closed fleets are kept.
        snapshot_every: Events between two snapshots of a fleet.
        has_public_scores: Whether leaderboards are shown to those who have no token.
        has_access_log: Whether to write a line of JSON per request to standard output.
        tend_every_s: How often to look for idle fleets.
    """

    model_config = ConfigDict(frozen=True)

    database: str
    offers: tuple[Offer, ...]
    max_live_envs: int = Field(default=20_000, ge=1)
    max_steps_per_day: int | None = Field(default=None, ge=1)
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
