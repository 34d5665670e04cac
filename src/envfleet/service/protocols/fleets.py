"""The fleet protocol: one call for all sub-environments of a fleet, with binary bodies, and safe to repeat."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from envfleet.remote.codec import pack
from envfleet.service.hosting.hosted import FleetConfig, pack_reply
from envfleet.service.offers import find_offer
from envfleet.service.protocols.requests import BINARY, BinaryRoute, caller, read, reply_with, service_of
from envfleet.service.protocols.schemas import CreateFleet
from envfleet.service.refusals import NotFound

router = APIRouter(prefix="/api/v2", tags=["fleets"], route_class=BinaryRoute)
scores_router = APIRouter(prefix="/api/v2", tags=["fleets"])


@router.post("/fleets", openapi_extra=BINARY, status_code=201, response_class=Response)
async def create_fleet(request: Request) -> Response:
    """Make a fleet."""
    service, identity = await caller(request)
    body = await request.body()  # after authentication

    def work() -> bytes:
        asked = read(CreateFleet, body)
        offer = find_offer(service.settings.offers, asked.env)
        offer.check(asked.num_envs, asked.options, is_ranked=asked.mode == "ranked")
        config = FleetConfig(
            version=offer.version(),
            env=offer.env,
            **asked.model_dump(exclude={"key", "env"}),
            **offer.ranked_terms(asked.mode),
        )
        most = service.quotas.limits(identity)[0]
        fleet = service.fleets.create(identity.user_id, config, asked.key.hex(), most_live_envs=most)
        with service.fleets.use(identity.user_id, fleet) as hosted:
            return pack(hosted.describe())

    return reply_with(await service.run(identity, "create", work, computes=False), status=201)


@router.get("/fleets", response_class=Response)
async def list_fleets(request: Request) -> Response:
    """Return the open fleets of the token's user."""
    service, identity = await caller(request)
    rows = await service.in_thread(lambda: service.store.open_fleets(identity.user_id))
    shown = [{"fleet": row["id"], **FleetConfig.model_validate(row["config"]).model_dump()} for row in rows]
    return reply_with(pack({"fleets": shown}))


@router.get("/fleets/{fleet}", response_class=Response)
async def get_fleet(fleet: str, request: Request) -> Response:
    """Return a fleet as it stands."""
    service, identity = await caller(request)

    def work() -> bytes:
        with service.fleets.use(identity.user_id, fleet) as hosted:
            return pack(hosted.describe())

    return reply_with(await service.run(identity, "get", work, computes=False))


@router.get("/fleets/{fleet}/last", response_class=Response)
async def get_last(fleet: str, request: Request) -> Response:
    """Return a fleet as it stands, with its last call and the reply to it, for a client that resumes it."""
    service, identity = await caller(request)

    def work() -> bytes:
        return pack_reply(service.fleets.describe_last(identity.user_id, fleet))

    return reply_with(await service.run(identity, "last", work, computes=False))


# `FleetCalls` answers the next two before they come here. Their routes describe them, and refuse other methods.


@router.post("/fleets/{fleet}/reset", openapi_extra=BINARY, response_class=Response)
async def reset_fleet(fleet: str, request: Request) -> Response:
    """Reset a fleet, or some rows of it."""
    raise NotFound(f"fleet {fleet[:80]!r} does not exist")


@router.post("/fleets/{fleet}/step", openapi_extra=BINARY, response_class=Response)
async def step_fleet(fleet: str, request: Request) -> Response:
    """Step a fleet, or some rows of it."""
    raise NotFound(f"fleet {fleet[:80]!r} does not exist")


@router.post("/fleets/{fleet}/close", response_class=Response)
async def close_fleet(fleet: str, request: Request) -> Response:
    """Close a fleet; its running episodes are abandoned."""
    service, identity = await caller(request)
    user_id = identity.user_id
    await service.run(identity, "close", lambda: service.fleets.close_fleet(user_id, fleet), computes=False)
    return reply_with(pack({}))


@router.get("/me", response_class=Response)
async def me(request: Request) -> Response:
    """Return the token's user and the used part of the quotas."""
    service, identity = await caller(request)
    quota = await service.in_thread(lambda: service.quotas.used(identity))
    return reply_with(pack({"user": identity.name, "role": identity.role, "quota": quota}))


@router.get("/envs", response_class=Response)
async def envs(request: Request) -> Response:
    """Return the environments that can be had."""
    service, _ = await caller(request)
    shown = {
        offer.env: {
            "options": sorted(offer.options),
            "max_num_envs": offer.max_num_envs,
            "max_episode_steps": offer.max_episode_steps,
            "abandon_penalty": offer.abandon_penalty,
            "ranked_episodes": offer.ranked_episodes,
        }
        for offer in service.settings.offers
    }
    return reply_with(pack({"envs": shown}))


@router.get("/attempts", response_class=Response)
async def attempts(request: Request) -> Response:
    """Return the last ranked attempts of the token's user."""
    service, identity = await caller(request)
    rows = await service.in_thread(lambda: service.scores.attempts(identity.user_id))
    return reply_with(pack({"attempts": rows}))


@scores_router.get("/scores/{env:path}")
async def scores(env: str, request: Request) -> dict[str, Any]:
    """Return the leaderboard of an environment."""
    service = service_of(request)
    if not service.settings.has_public_scores:
        await caller(request)
    offer = find_offer(service.settings.offers, env)
    rows = await service.in_thread(lambda: service.scores.fresh_board(offer.env))
    return {"env": offer.env, "episodes": offer.ranked_episodes, "scores": rows}
