"""Health, readiness, metrics, logs, and the commands."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import Caller
from tests.service.serving import make_settings, serve_here
from typer.testing import CliRunner, Result

from envfleet.cli.app import app
from envfleet.errors import InvalidArgument
from envfleet.service.database.store import Store
from envfleet.service.offers import make_offer
from envfleet.service.run import run as run_service
from envfleet.service.service import Service
from envfleet.service.users.auth import Tokens


def test_health_and_readiness(http: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ok"}
    monkeypatch.setattr(service, "is_ready", False)
    assert (http.get("/readyz").status_code, http.get("/healthz").status_code) == (503, 200)


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process cannot grow."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_service_on_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    """It could read, so that it seemed to be well while each call failed."""
    with serve_here(make_settings(tmp_path)) as (http, _):
        assert http.get("/readyz").status_code == 200
        with full_disk():
            answer = http.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "stopping")
        assert "the database does not commit" in answer.json()["detail"]
        assert http.get("/readyz").status_code == 200


def test_figures_are_for_those_who_operate_the_service(tmp_path: Path) -> None:
    with serve_here(make_settings(tmp_path, metrics_token="scrape")) as (http, service):
        tokens = {"root": service.tokens.create("root", role="admin"), "ann": service.tokens.create("ann")}
        tokens |= {"prometheus": "scrape", "other": "scrap\xe9"}

        def status(token: str) -> int:
            return http.get("/metrics", headers=[(b"Authorization", f"Bearer {token}".encode())]).status_code

        assert {name: status(token) for name, token in tokens.items()} == {
            "root": 200,
            "ann": 403,
            "prometheus": 200,
            "other": 401,
        }
        assert http.get("/metrics").status_code == 401


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/openapi.json", "/api/v2/scores/CartPole-v1"])
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    whole, head = http.get(path), http.head(path)
    assert (head.status_code, head.content) == (whole.status_code, b"")
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]


def test_behind_a_proxy_in_containers_cookies_are_for_tls_only() -> None:
    compose = (Path(__file__).parents[2] / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    assert 'ports: ["127.0.0.1:8001:8001"]' in compose
    assert "FORWARDED_ALLOW_IPS: ${FORWARDED_ALLOW_IPS:-*}" in compose


def test_figures(ann: Caller, admin: Caller) -> None:
    fleet = ann.create()
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(3, np.int64))
    text = figures(admin)
    for line in (
        'envfleet_env_steps_total{env="envfleet/Turbofan-v0"} 3.0',
        'envfleet_requests_total{method="POST",route="/api/v2/fleets/{fleet}/step",status="200"} 1.0',
        'envfleet_call_seconds_count{call="step"} 1.0',
        "envfleet_live_envs 3.0",
        "envfleet_fleets 1.0",
        "envfleet_calls_waiting 0.0",
    ):
        assert line in text


def figures(admin: Caller) -> str:
    return admin.http.get("/metrics", headers={"Authorization": f"Bearer {admin.token}"}).text


def test_any_number_of_methods_is_one_figure(http: httpx.Client, admin: Caller) -> None:
    for method in ("BREW", "PROPFIND"):
        http.request(method, "/healthz")
    text = figures(admin)
    assert 'method="other"' in text
    assert "BREW" not in text


def test_the_interface_is_described(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert "/api/v2/fleets/{fleet}/step" in paths
    assert "/api/v1/episode/vectorized_step" in paths
    assert [http.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]  # they load third-party scripts
    codes = [http.post(path).json()["code"] for path in ("/api/v2/nothing", "/api/v2/me")]
    assert codes == ["not_found", "not_allowed"]


def test_the_access_log_is_json_without_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    access = logging.getLogger("envfleet.access")
    before = access.handlers, access.level, access.propagate
    try:
        with serve_here(make_settings(tmp_path, has_access_log=True)) as (http, service):
            token = service.tokens.create("ann")
            http.get(f"/api/v1/user/{token}/score")
            http.post("/api/v2/fleets", content=b"", headers={"Authorization": f"Bearer {token}"})
    finally:
        access.handlers, access.level, access.propagate = [], before[1], before[2]
    text = capsys.readouterr().out
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines[-2:]] == [
        ("GET", "/api/v1/user/***/score", 200),
        ("POST", "/api/v2/fleets", 400),
    ]
    assert token not in text


def panel_text(result: Result) -> str:
    """Return the text of a command's panel on one line."""
    return " ".join(result.stderr.replace("│", "").split())


def test_tokens_by_command(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'service.db'}"

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--database", database])

    for command in (["create", "ann"], ["list"], ["revoke", "1"], ["rotate", "1"]):
        refused = run("token", *command)
        assert (refused.exit_code, "does not exist" in refused.stderr) == (2, True)
    assert not list(tmp_path.iterdir())
    store = Store(database)
    store.migrate()
    store.close()
    token = run("token", "create", "ann").stdout.strip()
    assert token.startswith("ef_")
    listed = run("token", "list").stdout
    assert "ann" in listed
    assert token[:7] in listed
    assert token not in listed
    promoted = run("token", "create", "ann", "--role", "admin")
    assert (promoted.exit_code, "user 'ann' has role='participant'" in panel_text(promoted)) == (2, True)
    assert run("token", "revoke", "1").exit_code == 0
    revived = run("token", "rotate", "1")
    assert (revived.exit_code, "token 1 was revoked" in panel_text(revived)) == (2, True)
    missing = run("token", "revoke", "7")
    assert (missing.exit_code, "token id 7 does not exist" in missing.stderr) == (2, True)
    many = run("serve", "--workers", "2")
    assert (many.exit_code, "PostgreSQL" in many.stderr) == (2, True)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_nobody_else_reads_the_files_of_sqlite(tmp_path: Path) -> None:
    expected = {f"service.db{suffix}": 0o600 for suffix in ("", "-shm", "-wal")}
    before = os.umask(0o022)
    try:
        for _ in range(2):
            store = Store(f"sqlite:///{tmp_path / 'service.db'}")
            store.migrate()
            Tokens(store).create("ann")
            assert modes(tmp_path) == expected
            for path in tmp_path.iterdir():  # as they were made before
                path.chmod(0o644)
            again = Store(str(store.engine.url))
            again.migrate()
            assert modes(tmp_path) == expected
            again.close()
            store.close()
    finally:
        os.umask(before)


def test_a_database_that_others_read_and_is_not_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "service.db").touch(0o644)

    def chmod(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", chmod)
    with pytest.raises(InvalidArgument, match=r"cannot be used: .*not permitted; check that .* is yours alone"):
        Store(f"sqlite:///{tmp_path / 'service.db'}").migrate()


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'service.db'}")
    store.migrate()
    store.migrate()  # which finds it up to date
    with store.engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0002'"))
    with pytest.raises(InvalidArgument, match=r"another version of the service .*0002.*pass a new --database"):
        store.migrate()
    store.close()


def test_commands_say_which_database_cannot_be_reached() -> None:
    database = "postgresql+psycopg://ann:s3cret@127.0.0.1:1/envfleet"
    result = CliRunner().invoke(app, ["token", "list", "--database", database])
    assert result.exit_code == 2
    message = "".join(result.stderr.replace("│", "").split())
    assert "postgresql+psycopg://ann:***@127.0.0.1:1/envfleetcannotbeused" in message
    assert "s3cret" not in result.stderr


def test_a_start_that_fails_makes_no_token(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, offers=(make_offer("CartPole-v1"),))
    messages: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for host, port, advice in (
            ("127.0.0.1", taken.getsockname()[1], "choose another --port"),
            ("192.0.2.1", 0, "--host 192.0.2.1 is not an address of this machine"),
        ):
            with pytest.raises(InvalidArgument, match=re.escape(advice)):
                run_service(settings, host=host, port=port, workers=1, tell=messages.append)
    store = Store(settings.database)
    assert (messages, Tokens(store).has_any()) == ([], False)
    store.close()


def test_mistakes_are_told_at_the_start(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'nodir' / 'service.db'}"
    for options, clue in (
        (["--backend", "proces"], "pass one of serial, thread, process, ray"),
        (["--env", "CartPole-v1"], "does not exist: make it"),
    ):
        result = CliRunner().invoke(app, ["serve", "--database", database, *options])
        message = " ".join(result.stderr.replace("│", "").split())
        assert (result.exit_code, clue in message) == (2, True), message


def test_help_fits_a_terminal_of_80_columns() -> None:
    for command in (["serve"], ["token", "create"], ["status"]):
        text = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80", "TERM": "xterm"}).stdout
        assert "--help" in text
        assert "…" not in text.replace("://…", "")
