"""Requests and replies: authentication, binary bodies, and routes that check the token before they read the body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.remote.codec import MEDIA_TYPE, unpack
from envfleet.service.protocols.packed import check_packed
from envfleet.service.protocols.schemas import Schema
from envfleet.service.refusals import OutOfStep, answer_to, describe
from envfleet.service.service import Service
from envfleet.service.users.auth import Identity

_S = TypeVar("_S", bound=Schema)
REFUSED: tuple[type[Exception], ...] = (EnvfleetError, SQLAlchemyError, TimeoutError)
"""Errors that become error responses, in addition to those of HTTP."""

BINARY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}
"""Media type of MessagePack bodies."""


def json_of(schema: type[Schema]) -> dict[str, Any]:
    """Describe the JSON body of a call that reads it itself, in its turn; FastAPI would parse it on the event loop."""
    content = {"schema": schema.model_json_schema(ref_template="#/components/schemas/{model}")}
    return {"requestBody": {"required": True, "content": {"application/json": content}}}


def bearer(request: Request) -> str | None:
    """Return the token of a request."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


async def caller(request: Request) -> tuple[Service, Identity]:
    """Return the service and the identity of the caller.

    Raises:
        Unauthorized: The token is missing or unknown.
    """
    service = service_of(request)
    return service, await service.identify(bearer(request))


def service_of(request: Request) -> Service:
    """Return the service that answers a request."""
    service: Service = request.app.state.service
    return service


def read(schema: type[_S], body: bytes, *, is_json: bool = False) -> _S:
    """Return a request's body, checked.

    Raises:
        WireError: The body is not MessagePack although it must be, or has too many elements or levels.
        InvalidArgument: It is something else than `schema` says.
    """
    try:
        if is_json:
            return schema.model_validate_json(body)
        check_packed(body)
        return schema.model_validate(unpack(body))
    except ValidationError as error:
        raise InvalidArgument(describe(error.errors())) from error


def refuse(service: Service, error: Exception) -> JSONResponse:
    """Return the answer to an error, and count it."""
    status, code, detail, retry_after_s = answer_to(error)
    service.metrics.denials.labels(code).inc()
    headers = None if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
    more = {"seq": error.seq} if isinstance(error, OutOfStep) else {}
    return JSONResponse({"code": code, "detail": detail, **more}, status, headers)


def reply_with(body: bytes, *, status: int = 200) -> Response:
    """Return a packed answer."""
    return Response(body, status, media_type=MEDIA_TYPE)


class TokenRoute(APIRoute):
    """A route of JSON calls: its token, in the header of either protocol, is checked before a body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            if request.method == "POST":
                await service_of(request).identify(bearer(request) or request.headers.get("user-token"))
            return await handle(request)

        return answer


class BinaryRoute(APIRoute):
    """A route of binary calls: its function takes the request and the parts of its path, and returns a response.

    FastAPI describes such a call and does not read it.
    Looking for other parameters and converting what is returned would take longer than many a step.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        endpoint = self.endpoint

        async def answer(request: Request) -> Response:
            response: Response = await endpoint(request=request, **request.path_params)
            return response

        return answer
