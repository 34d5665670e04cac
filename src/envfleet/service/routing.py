"""Routes of binary calls, which FastAPI describes and does not read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute


class BinaryRoute(APIRoute):
    """A route whose function takes the request and the parts of its path, and returns a response.

    Looking for other parameters and converting what is returned would take longer than many a step.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler."""
        endpoint = self.endpoint

        async def answer(request: Request) -> Response:
            response: Response = await endpoint(request=request, **request.path_params)
            return response

        return answer
