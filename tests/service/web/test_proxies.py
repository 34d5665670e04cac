"""The real nginx and Caddy in front of a service, with the examples in deploy/, and a real browser in front of them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from tests.service.conftest import Caller
from tests.service.web.conftest import follow
from tests.waiting import PATIENCE_S, wait_until
from websockets.sync.client import connect

import envfleet
from envfleet.service.service import Service

DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = "course.example.org"


def find(program: str) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    assert path is not None, f"there is no {program}: apt-get install {program}, or `make test` as root on Debian"
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A proxy that answers at the port."""
    with (folder / "log").open("wb") as log:
        home = {
            "HOME": str(folder),
            "XDG_DATA_HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "PATH": "/usr/bin:/bin",
        }
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=home)

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text(errors="replace")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return True
            return False

        try:
            wait_until(answers, f"{command[0]} at port {port}")
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            finally:
                process.kill()


@contextlib.contextmanager
def nginx(server: str, port: int, folder: Path) -> Iterator[None]:
    """Run nginx with a file such as those of sites-enabled."""
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nworker_processes 1;\nevents {{}}\n"
        f"http {{\naccess_log {folder}/access.log;\n{paths}{server}\n}}\n",
        encoding="utf-8",
    )
    with running([find("nginx"), "-c", f"{folder}/nginx.conf", "-p", str(folder), "-e", "stderr"], port, folder):
        yield


def certificate(folder: Path) -> tuple[Path, Path]:
    paths = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    command += ["-addext", f"subjectAltName=DNS:{NAME}", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(command, check=True, capture_output=True)
    return paths


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.fixture(params=["nginx", "caddy"])
def tls(request: pytest.FixtureRequest, http: httpx.Client, tmp_path: Path) -> Iterator[str]:
    """The examples in deploy/ with ports of this machine; the address of the site."""
    port, upstream = free_port(), f"127.0.0.1:{http.base_url.port}"
    if request.param == "nginx":
        cert, key = certificate(tmp_path)
        text = replaced((DEPLOY / "nginx.conf").read_text(encoding="utf-8"), "127.0.0.1:8001", upstream)
        text = replaced(text, "listen 443", f"listen 127.0.0.1:{port}")
        text = replaced(text, "listen 80;", f"listen 127.0.0.1:{free_port()};")
        text = replaced(text, f"/etc/ssl/certs/{NAME}.pem", str(cert))
        text = replaced(text, f"/etc/ssl/private/{NAME}.key", str(key))
        with nginx(text, port, tmp_path):
            yield f"https://{NAME}:{port}"
        return
    text = replaced((DEPLOY / "Caddyfile").read_text(encoding="utf-8"), "127.0.0.1:8001", upstream)
    text = replaced(text, f"{NAME} {{", f"https://{NAME}:{port} {{\n\ttls internal")
    text = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}\n" + text
    (tmp_path / "Caddyfile").write_text(text, encoding="utf-8")
    with running([find("caddy"), "run", "--config", f"{tmp_path}/Caddyfile", "--adapter", "caddyfile"], port, tmp_path):
        wait_until(lambda: speaks_tls(port), "Caddy's own certificate")
        yield f"https://{NAME}:{port}"


def speaks_tls(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain, server_hostname=NAME):
            return True
    except ssl.SSLError:
        return False


@contextlib.contextmanager
def page_at(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    try:
        yield page
    finally:
        context.close()


def use_the_pages(page: Page, base: str, ann: Caller) -> dict[str, bool]:
    """Sign in, close a fleet by its form, and sign out; returns which cookies are sent over TLS only."""
    fleet = ann.create("CartPole-v1", num_envs=1)
    page.goto(f"{base}/me")
    page.get_by_label("Token").fill(ann.token)
    follow(page.get_by_role("main").get_by_role("button", name="Sign in"))
    assert page.url == f"{base}/me"
    assert page.get_by_role("heading", level=1).inner_text() == "ann"
    cookies = {cookie["name"]: bool(cookie["secure"]) for cookie in page.context.cookies()}
    page.goto(f"{base}/sign-in")  # which must not forget where the session began
    page.goto(f"{base}/me")
    follow(page.get_by_role("button", name=f"Close fleet {fleet}"))
    assert page.get_by_role("button", name=f"Close fleet {fleet}").count() == 0
    follow(page.get_by_role("button", name="Sign out"))
    page.goto(f"{base}/me")
    assert "/sign-in" in page.url
    return cookies


def test_people_use_the_pages_over_tls(browser: Browser, tls: str, ann: Caller) -> None:
    with page_at(browser) as page:
        cookies = use_the_pages(page, tls, ann)
    assert cookies == {"envfleet_session": True, "envfleet_origin": True}


def test_programs_train_through_a_proxy(tls: str, ann: Caller) -> None:
    port = int(tls.rpartition(":")[2])
    with httpx.Client(verify=False, base_url=f"https://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        extensions = {"sni_hostname": NAME}
        headers = {"Host": f"{NAME}:{port}", "Authorization": f"Bearer {ann.token}"}
        answer = client.get("/api/v2/me", headers=headers, extensions=extensions)
        assert answer.status_code == 200
        assert client.get("/metrics", headers=headers, extensions=extensions).status_code == 403


def test_programs_play_over_a_websocket_through_a_proxy(tls: str, ann: Caller) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    address = f"{tls.replace('https', 'wss')}/openenv/CartPole-v1/ws"
    headers = {"Authorization": f"Bearer {ann.token}"}
    with (
        socket.create_connection(("127.0.0.1", int(tls.rpartition(":")[2])), PATIENCE_S) as plain,
        connect(address, sock=plain, ssl=context, additional_headers=headers) as player,
    ):
        for message in ({"type": "reset", "data": {"seed": 1}}, {"type": "step", "data": {"action": 0}}):
            player.send(json.dumps(message))
            reply = json.loads(player.recv(PATIENCE_S))
            assert reply["type"] == "observation", reply
    assert reply["data"]["reward"] == 1.0


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_people_sign_in_behind_a_bare_proxy_pass(
    scheme: str, browser: Browser, http: httpx.Client, service: Service, ann: Caller, tmp_path: Path
) -> None:
    """Such a proxy passes on neither the name of the host nor the scheme."""
    port = free_port()
    cert, key = certificate(tmp_path)
    tls = f"ssl_certificate {cert}; ssl_certificate_key {key};" if scheme == "https" else ""
    listen = f"listen 127.0.0.1:{port}{' ssl' if tls else ''}; {tls}"
    server = f"server {{ {listen} location / {{ proxy_pass {str(http.base_url).rstrip('/')}; }} }}"
    with nginx(server, port, tmp_path), page_at(browser) as page:
        cookies = use_the_pages(page, f"{scheme}://{NAME}:{port}", ann)
        assert set(cookies.values()) == {scheme == "https"}
        if scheme == "http":
            with envfleet.connect(f"http://127.0.0.1:{port}", "CartPole-v1", 2, token=ann.token) as fleet:
                fleet.reset(seed=0)
                assert fleet.step(np.array([0, 1]))[1].tolist() == [1.0, 1.0]


def test_forms_of_other_sites_are_refused_behind_a_proxy(http: httpx.Client, ann: Caller) -> None:
    """If the proxy loses the host's name, the origin must be that of the page where the session began."""
    ours, foreign = {"Origin": f"http://{NAME}"}, {"Origin": "http://elsewhere.example"}
    with httpx.Client(base_url=http.base_url, timeout=PATIENCE_S) as visit:
        form = {"token": ann.token}
        assert visit.post("/sign-in", data=form, headers=ours).status_code == 403  # without our page and its cookie
        visit.get("/sign-in")
        assert visit.post("/sign-in", data=form, headers={"Origin": "null"}).status_code == 403
        assert visit.post("/sign-in", data=form, headers=ours).status_code == 303
        fleet = ann.create("CartPole-v1", num_envs=1)
        for headers in (foreign, {"Origin": "null"}, {**ours, "Sec-Fetch-Site": "cross-site"}):
            refused = visit.post(f"/fleets/{fleet}/close", data={"user_id": "1"}, headers=headers)
            assert refused.status_code == 403
        assert visit.post(f"/fleets/{fleet}/close", data={"user_id": "1"}, headers=ours).status_code == 303


def test_the_unit_of_systemd_names_commands_that_exist() -> None:
    text = (DEPLOY / "envfleet.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=\S+/envfleet (.*)$", text, re.MULTILINE)
    assert command is not None
    options = set(re.findall(r"--[a-z-]+", command[1]))
    from typer.main import get_command

    from envfleet.cli.serving import serve_app

    known = {name for parameter in get_command(serve_app).params for name in parameter.opts}
    assert options <= known
    assert re.findall(r"^\[(\w+)\]$", text, re.MULTILINE) == ["Unit", "Service", "Install"]
