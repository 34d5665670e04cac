"""A service in this process, and callers of it."""

from __future__ import annotations

import io
import logging
import random
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from tests.service.postgres import postgres
from tests.service.serving import make_settings, serve_here

from envfleet.remote.codec import pack, unpack
from envfleet.service.service import Service

TURBOFAN = "envfleet/Turbofan-v0"


class Caller:
    """Calls a service with one token, by both protocols."""

    def __init__(self, http: httpx.Client, token: str) -> None:
        self.http, self.token = http, token

    def post(self, path: str, **body: Any) -> httpx.Response:
        body.setdefault("key", secrets.token_bytes(8))
        return self.post_raw(path, pack(body))

    def post_raw(self, path: str, body: bytes) -> httpx.Response:
        return self.http.post(f"/api/v2{path}", content=body, headers={"Authorization": f"Bearer {self.token}"})

    def call(self, path: str, **body: Any) -> Any:
        response = self.post(path, **body)
        assert response.status_code < 300, response.text
        return unpack(response.content)

    def get(self, path: str) -> httpx.Response:
        return self.http.get(f"/api/v2{path}", headers={"Authorization": f"Bearer {self.token}"})

    def json(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(f"/api/v1{path}", json=body, headers={"User-Token": self.token})

    def episode(self, path: str) -> httpx.Response:
        return self.http.get(f"/api/v1/episode/{path}", headers={"User-Token": self.token})

    def create(self, env: str = TURBOFAN, num_envs: int = 3, **more: Any) -> str:
        fleet: str = self.call("/fleets", env=env, num_envs=num_envs, **more)["fleet"]
        return fleet


@pytest.fixture
def seeded_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds that the service of this process draws for ranked episodes are the same each time."""
    monkeypatch.setattr("envfleet.service.hosting.hosted.secrets.randbits", random.Random(0).getrandbits)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Log of the test; pytest's `caplog` is off, since it slows down every test."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    logging.getLogger().addHandler(handler)
    yield text
    logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Service]]:
    with serve_here(make_settings(tmp_path_factory.mktemp("service"))) as both:
        yield both


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """A new database on one server for all tests."""
    name = f"test_{secrets.token_hex(4)}"
    engine = sa.create_engine(postgres_server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return sa.engine.make_url(postgres_server).set(database=name).render_as_string(hide_password=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of either kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def http(running: tuple[httpx.Client, Service]) -> httpx.Client:
    return running[0]


@pytest.fixture
def service(running: tuple[httpx.Client, Service]) -> Service:
    return running[1]


@pytest.fixture
def ann(http: httpx.Client, service: Service) -> Caller:
    return Caller(http, service.tokens.create("ann"))


@pytest.fixture
def bob(http: httpx.Client, service: Service) -> Caller:
    return Caller(http, service.tokens.create("bob"))


@pytest.fixture
def admin(http: httpx.Client, service: Service) -> Caller:
    return Caller(http, service.tokens.create("root", role="admin"))
