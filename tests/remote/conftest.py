"""A service with several kinds of environments, a token for it, and a network that fails on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from tests.service.serving import make_settings, serve_here

from envfleet.service.offers import make_offer
from envfleet.service.service import Service

TURBOFAN = "envfleet/Turbofan-v0"
OFFERED = (TURBOFAN, "CartPole-v1", "Blackjack-v1")


class Place(NamedTuple):
    """Address, token and object of a service."""

    url: str
    token: str
    service: Service


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    offers = tuple(make_offer(name, backend="serial", ranked_episodes=2) for name in OFFERED)
    with serve_here(make_settings(tmp_path_factory.mktemp("service"), offers=offers)) as (client, service):
        yield Place(str(client.base_url).rstrip("/"), service.tokens.create("ann"), service)


Answer = httpx.Response | Exception
Trick = Callable[[httpx.Request, Callable[[], httpx.Response]], Answer]


class Network(httpx.BaseTransport):
    """Lets requests through, or plays one of its tricks on the next ones."""

    def __init__(self, real: httpx.BaseTransport) -> None:
        self._real = real
        self.tricks: list[Trick] = []
        self.bodies: list[bytes] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.read())

        def ask() -> httpx.Response:
            response = self._real.handle_request(request)
            response.read()
            return response

        answer = self.tricks.pop(0)(request, ask) if self.tricks else ask()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._real.close()


def lose_request(request: httpx.Request, ask: Callable[[], httpx.Response]) -> Answer:
    return httpx.ConnectError("the cable is out", request=request)


def lose_reply(request: httpx.Request, ask: Callable[[], httpx.Response]) -> Answer:
    assert ask().status_code < 300
    return httpx.ReadTimeout("nothing came back", request=request)


def say_busy(request: httpx.Request, ask: Callable[[], httpx.Response]) -> Answer:
    return httpx.Response(503, headers={"Retry-After": "0"}, json={"code": "stopping", "detail": "stopping"})


def use_httpx(link: Any) -> None:
    """Let a link make all its calls by httpx, because tests replace its transport."""
    if link._hot is not None:
        link._hot.close()
        link._hot = None


def network_of(fleet: Any, part: int = 0, patience_s: float | None = None) -> Network:
    """Put a network between a fleet and one of its services; calls to that one may get another patience from now on."""
    link = fleet.engine._queues[part].link
    if patience_s is not None:
        link._patience_s = patience_s
    use_httpx(link)
    link._http._transport = Network(link._http._transport)
    return link._http._transport
