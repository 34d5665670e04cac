"""Schemas of the requests of both protocols."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from envfleet.remote.codec import shrink

MAX_SEED = 2**62
_MOST_EPISODES = 2**17  # of a call
_Batch = Field(fail_fast=True)  # one error is enough: those of all entries would take longer than the call


def _read_rows(rows: Any) -> NDArray[Any] | None:
    """Return indices that a client sent in as few bytes as hold them, for they are stored."""
    if rows is None:
        return None
    array = np.asarray(rows) if isinstance(rows, list) else rows
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError("expected a list or an array of indices")
    return shrink(array)


Key = Annotated[bytes, Field(min_length=8, max_length=64)]
Count = Annotated[int, Field(ge=0, lt=2**53, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=MAX_SEED, strict=True)]
EpisodeId = Annotated[str, Field(min_length=1, max_length=200)]
Rows = Annotated[Any, BeforeValidator(_read_rows)]


class Schema(BaseModel):
    """Of a request; arrays pass through."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True)


class CreateFleet(Schema):
    """`POST /api/v2/fleets`."""

    env: Annotated[str, Field(min_length=1, max_length=200)]
    num_envs: Annotated[int, Field(ge=1, lt=2**31, strict=True)]
    key: Key
    autoreset_mode: Literal["NEXT_STEP", "SAME_STEP", "DISABLED"] = "NEXT_STEP"
    mode: Literal["training", "ranked"] = "training"
    options: dict[str, bool | int | float | str] = Field(default_factory=dict, max_length=20)


class FleetCall(Schema):
    """Fields of every call that changes a fleet."""

    seq: Count
    key: Key


class ResetFleet(FleetCall):
    """`POST /api/v2/fleets/{fleet}/reset`."""

    rows: Rows = None
    seeds: Seed | Annotated[list[Seed | None], _Batch] | None = None


class StepFleet(FleetCall):
    """`POST /api/v2/fleets/{fleet}/step`."""

    actions: Any
    rows: Rows = None


class CreateToken(Schema):
    """`POST /api/v2/admin/tokens`."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    role: Literal["participant", "admin"] | None = None
    max_live_envs: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    max_steps_per_day: Annotated[int, Field(ge=0, lt=2**53)] | None = None


# ---------------------------------------------------------------------- the episode protocol


class EpisodeConfig(Schema):
    """Options of one episode; other fields that clients send are ignored."""

    env_type: str | None = None
    ranked: bool = False
    max_steps_per_episode: Annotated[int, Field(ge=1, lt=2**31, description="Decisions, not flights.")] = 1000


class CreateEpisodes(Schema):
    """`POST /api/v1/vectorized/episodes/create`."""

    env_config: EpisodeConfig
    num_envs: Annotated[int, Field(ge=1, lt=2**31)]


class ResetEpisode(Schema):
    """`POST /api/v1/episode/reset`."""

    episode_id: EpisodeId
    seed: Annotated[int, Field(ge=0, lt=MAX_SEED)] | None = None


class StepEpisode(Schema):
    """`POST /api/v1/episode/step`, and one of a vectorized step."""

    episode_id: EpisodeId
    action: int
    step_size: Annotated[int, Field(ge=1)] = 10
    return_all_states: bool = True


class ResetEpisodes(Schema):
    """`POST /api/v1/episode/vectorized_reset`."""

    episode_ids: Annotated[list[EpisodeId], _Batch, Field(max_length=_MOST_EPISODES)]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=MAX_SEED)] | None], _Batch] | None = None


class StepEpisodes(Schema):
    """`POST /api/v1/episode/vectorized_step`."""

    episode_actions: Annotated[list[StepEpisode], _Batch, Field(max_length=_MOST_EPISODES)]
