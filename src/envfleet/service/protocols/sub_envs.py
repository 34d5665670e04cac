"""Looking into the sub-environments of a fleet, as far as the service allows: attributes and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from envfleet.errors import InvalidArgument, ResetNeeded, SubEnvError, WireError
from envfleet.remote.codec import pack
from envfleet.service.hosting.hosted import HostedFleet
from envfleet.service.protocols.requests import BinaryRoute, caller, reply_with
from envfleet.service.refusals import failed

router = APIRouter(prefix="/api/v2", tags=["fleets"], route_class=BinaryRoute)
_MOST_BYTES = 64 * 2**20
_MOST_PICTURES = 256  # of a call; how large they are is known only once they are drawn


@router.get("/fleets/{fleet}/attributes/{name}", response_class=Response)
async def get_attribute(fleet: str, name: str, request: Request) -> Response:
    """Return an attribute of every sub-environment, if it is one that participants may know."""
    return await _look(fleet, request, "attribute", lambda hosted: {"values": _attribute(hosted, name)})


@router.get("/fleets/{fleet}/frames", response_class=Response)
async def get_frames(fleet: str, request: Request) -> Response:
    """Return a picture of every sub-environment, of a fleet made with `render_mode`."""
    return await _look(fleet, request, "frames", lambda hosted: {"frames": _frames(hosted)})


async def _look(fleet: str, request: Request, verb: str, look: Any) -> Response:
    service, identity = await caller(request)

    def work() -> bytes:
        with service.fleets.use(identity.user_id, fleet) as hosted:
            try:
                return pack(look(hosted))
            except (InvalidArgument, ResetNeeded):
                raise
            except Exception as error:
                if not isinstance(error, (SubEnvError, WireError)):  # the fleet continues after these
                    service.fleets.drop(hosted)
                raise failed(error) from error

    return reply_with(await service.run(identity, verb, work, computes=False))


def _attribute(hosted: HostedFleet, name: str) -> list[Any]:
    if name not in hosted.readable:
        shown = ", ".join(hosted.readable) or "none"
        raise InvalidArgument(
            f"attribute {name!r} of {hosted.config.env} is not readable (it may reveal hidden state); readable: {shown}"
        )
    return list(hosted.fleet.get_attr(name))


def _frames(hosted: HostedFleet) -> list[Any]:
    if hosted.config.options.get("render_mode") is None:
        raise InvalidArgument(
            f"this fleet of {hosted.config.env} draws no pictures: connect with render_mode='rgb_array', where the "
            "service allows it"
        )
    if hosted.config.num_envs > _MOST_PICTURES:
        raise InvalidArgument(
            f"this fleet has {hosted.config.num_envs} sub-environments, those of {_MOST_PICTURES} are drawn at most: "
            "connect with fewer to see them"
        )
    frames = [np.asarray(frame) for frame in hosted.fleet.render() or ()]
    size_bytes = sum(frame.nbytes for frame in frames)
    if size_bytes > _MOST_BYTES:
        raise InvalidArgument(f"{len(frames)} pictures have {size_bytes:,} bytes, {_MOST_BYTES:,} are sent at most")
    return frames
