"""The episode protocol: JSON as an older service spoke it, with the quirks that its clients depend on."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request

from envfleet.service.protocols.episode_calls import EpisodeCalls, find_episode_offer
from envfleet.service.protocols.requests import TokenRoute, json_of, service_of
from envfleet.service.protocols.schemas import (
    CreateEpisodes,
    EpisodeConfig,
    ResetEpisode,
    ResetEpisodes,
    StepEpisode,
    StepEpisodes,
)

VERSION = "0.4"
router = APIRouter(prefix="/api/v1", tags=["episodes"], route_class=TokenRoute)
UserToken = Annotated[str | None, Header()]
Reply = dict[str, Any]


@router.get("/version")
async def version() -> Reply:
    """Return the protocol's version."""
    return {"latest_version": VERSION}


@router.post("/session/create")
async def create_session(request: Request, user_token: UserToken = None) -> Reply:
    """Return a name for a visit; nothing depends on it."""
    await service_of(request).identify(user_token)
    return {"session_id": secrets.token_hex(12)}


async def _run(request: Request, token: str | None, call: Callable[..., Reply], *arguments: Any) -> Reply:
    service = service_of(request)
    identity = await service.identify(token)
    name = f"episode_{call.__name__}"
    return await service.run(identity, name, lambda: call(EpisodeCalls(service, identity), *arguments))


@router.post("/episode/create")
async def create_episode(body: EpisodeConfig, request: Request, user_token: UserToken = None) -> Reply:
    """Make one episode."""
    return await _run(request, user_token, EpisodeCalls.create_one, body)


@router.post("/vectorized/episodes/create")
async def create_episodes(body: CreateEpisodes, request: Request, user_token: UserToken = None) -> Reply:
    """Make a group of episodes."""
    return await _run(request, user_token, EpisodeCalls.create_many, body)


@router.get("/episode/{episode_id}")
async def get_episode(episode_id: str, request: Request, user_token: UserToken = None) -> Reply:
    """Return the state of an episode."""
    return await _run(request, user_token, EpisodeCalls.info, episode_id)


@router.get("/episode/{episode_id}/state/latest")
async def get_latest_state(episode_id: str, request: Request, user_token: UserToken = None) -> Reply:
    """Return what was seen of an episode last."""
    return await _run(request, user_token, EpisodeCalls.latest, episode_id)


@router.post("/episode/reset")
async def reset_episode(body: ResetEpisode, request: Request, user_token: UserToken = None) -> Reply:
    """Reset an episode."""
    return await _run(request, user_token, EpisodeCalls.reset_one, body)


@router.post("/episode/step")
async def step_episode(body: StepEpisode, request: Request, user_token: UserToken = None) -> Reply:
    """Decide for the next steps."""
    return await _run(request, user_token, EpisodeCalls.step_one, body)


@router.post("/episode/vectorized_reset", openapi_extra=json_of(ResetEpisodes))
async def reset_episodes(request: Request, user_token: UserToken = None) -> Reply:
    """Reset several episodes."""
    return await _run(request, user_token, EpisodeCalls.reset_many, await request.body())


@router.post("/episode/vectorized_step", openapi_extra=json_of(StepEpisodes))
async def step_episodes(request: Request, user_token: UserToken = None) -> Reply:
    """Decide for some episodes."""
    return await _run(request, user_token, EpisodeCalls.step_many, await request.body())


@router.get("/user/{token}/score")
async def score(token: str, request: Request) -> Reply:
    """Return a user's score: the figures of the best ranked attempt."""
    service = service_of(request)
    identity = await service.identify(token)
    env = find_episode_offer(service.settings.offers)[0].env
    return {"metrics": await service.in_thread(lambda: service.scores.metrics(env, identity.user_id))}
