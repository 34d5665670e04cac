"""Failures of networks and services: no step is repeated or invented, and errors name a remedy."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.remote.conftest import TURBOFAN, Network, Place, lose_reply, lose_request, network_of, say_busy, use_httpx

import envfleet
from envfleet.errors import CallPending, InvalidArgument, ServiceRefused, ServiceUnreachable, WireError
from envfleet.remote import connecting
from envfleet.remote.codec import pack, unpack
from envfleet.remote.service_link import ServiceLink
from envfleet.testing.compare import mismatches

FLY = np.zeros(4, np.int64)


@pytest.fixture
def local() -> Iterator[Any]:
    with envfleet.make(TURBOFAN, 4, backend="kernel") as fleet:
        fleet.reset(seed=0)
        yield fleet


def connect(place: Place, num_services: int = 1, **more: Any) -> Any:
    fleet = envfleet.connect([place.url] * num_services, TURBOFAN, 4, token=place.token, **more)
    fleet.reset(seed=0)
    return fleet


@pytest.mark.parametrize("tricks", [[lose_request], [lose_reply], [lose_reply, lose_request, say_busy, lose_reply]])
def test_a_call_without_an_answer_is_repeated_and_made_once(place: Place, local: Any, tricks: list[Any]) -> None:
    with connect(place) as fleet:
        network = network_of(fleet)
        for _ in range(3):
            network.tricks, network.bodies = list(tricks), []
            actual, expected = fleet.step(FLY), local.step(FLY)
            np.testing.assert_array_equal(actual[0], expected[0])
            np.testing.assert_array_equal(actual[1], expected[1])
            assert len(set(network.bodies)) == 1  # the same key
            assert len(network.bodies) == 1 + len(tricks)
        assert fleet.stats().retries == 3 * len(tricks)


@pytest.mark.parametrize("num_services", [1, 2])
@pytest.mark.parametrize("trick", [lose_request, lose_reply])
def test_a_call_that_failed_can_be_made_again(place: Place, local: Any, trick: Any, num_services: int) -> None:
    with connect(place, num_services) as fleet:
        network_of(fleet, num_services - 1, patience_s=0.5).tricks = [trick] * 9
        with pytest.raises(ServiceUnreachable, match=r"no answer from .*asked") as caught:
            fleet.step(FLY)
        assert caught.value.code == "service_unreachable"
        fleet.engine._queues[-1].link._http._transport.tricks.clear()
        with pytest.raises(CallPending, match="make the same call again"):
            fleet.step(FLY + 1)
        actual, expected = fleet.step(FLY), local.step(FLY)
        np.testing.assert_array_equal(actual[0], expected[0])
        np.testing.assert_array_equal(fleet.step(FLY)[0], local.step(FLY)[0])


def test_a_busy_service_differs_from_a_silent_one(place: Place) -> None:
    with connect(place) as fleet:
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [say_busy] * 9
        with pytest.raises(
            ServiceUnreachable, match=r"put the call off, asked .*the last time: 503 stopping\. Try again"
        ):
            fleet.step(FLY)
        network.tricks.clear()


@pytest.mark.parametrize("num_services", [1, 2])
def test_a_step_that_was_interrupted_can_be_made_again(place: Place, local: Any, num_services: int) -> None:
    def interrupt(request: httpx.Request, ask: Any) -> Any:
        ask()
        raise KeyboardInterrupt

    with connect(place, num_services) as fleet:
        for _ in range(3):
            network_of(fleet).tricks = [interrupt]
            with pytest.raises(KeyboardInterrupt):
                fleet.step(FLY)
            with pytest.raises(CallPending, match="make the same call again"):
                fleet.reset_envs([1])
            np.testing.assert_array_equal(fleet.step(FLY)[0], local.step(FLY)[0])


def play(fleet: Any, kind: int, rows: Any, actions: Any, insist: Any) -> Any:
    """Make one or two calls of a kind; `insist` makes each again until it is answered."""
    if kind == 0:
        return insist(lambda: fleet.step(actions))
    if kind == 1:
        fleet.send(actions[: len(rows)], rows)
        return insist(lambda: fleet.recv(env_indices=rows))
    return insist(lambda: fleet.reset_envs(rows))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_whatever_the_network_does_each_call_is_made_once(place: Place, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def interrupt(request: httpx.Request, ask: Any) -> Any:
        if rng.random() < 0.5:
            ask()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return httpx.ReadError("cut")

    def insist(call: Any) -> Any:
        for network in networks:
            tricks = lose_request, lose_reply, say_busy, interrupt
            network.tricks = [tricks[k] for k in rng.integers(-4, 4, 4).tolist() if k >= 0]
        while True:
            try:
                return call()
            except (ServiceUnreachable, KeyboardInterrupt):
                assert fleet._calls.state.name in ("READY", "PENDING")

    options: dict[str, Any] = {"autoreset_mode": "SAME_STEP", "max_episode_steps": 5}
    with (
        envfleet.connect([place.url] * 2, "CartPole-v1", 4, token=place.token, **options) as fleet,
        envfleet.make("CartPole-v1", 4, backend="serial", **options) as local,
    ):
        fleet.reset(seed=seed)
        local.reset(seed=seed)
        networks = network_of(fleet, 0, patience_s=0.01), network_of(fleet, 1, patience_s=0.01)
        for _ in range(40):
            kind, rows, actions = int(rng.integers(3)), rng.permutation(4)[: rng.integers(1, 5)], rng.integers(0, 2, 4)
            try:
                actual = play(fleet, kind, rows, actions, insist)
            finally:
                for network in networks:
                    network.tricks = []
            assert mismatches(play(local, kind, rows, actions, lambda call: call()), actual) == []


def test_a_reset_that_was_not_answered_is_made_once(place: Place) -> None:
    token = place.service.tokens.create("eve")
    with envfleet.connect(place.url, TURBOFAN, 2, token=token, mode="ranked") as fleet:
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [lose_reply] * 9
        with pytest.raises(ServiceUnreachable):
            fleet.reset()
        network.tricks = []
        fleet.reset()
        fleet.step([2, 2])
    assert [row["attempts"] for row in place.service.scores.board(TURBOFAN) if row["user"] == "eve"] == [1]


def test_after_a_failure_all_can_be_reset(place: Place, local: Any) -> None:
    with connect(place) as fleet:
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [lose_reply] * 9
        with pytest.raises(ServiceUnreachable):
            fleet.step(FLY)
        network.tricks = []
        np.testing.assert_array_equal(fleet.reset(seed=0)[0], local.reset(seed=0)[0])
        np.testing.assert_array_equal(fleet.step(FLY)[0], local.step(FLY)[0])


def test_what_was_sent_and_failed_is_received_later(place: Place, local: Any) -> None:
    with connect(place, 2) as fleet:
        network_of(fleet, 1, patience_s=0.5).tricks = [lose_reply] * 9
        fleet.send(FLY)
        with pytest.raises(ServiceUnreachable):
            fleet.recv()
        fleet.engine._queues[1].link._http._transport.tricks.clear()
        np.testing.assert_array_equal(fleet.recv().observations, local.step(FLY)[0])


def changed(**fields: Any) -> Any:
    """A trick: the reply with other fields."""

    def trick(request: httpx.Request, ask: Any) -> httpx.Response:
        reply = {**unpack(ask().content), **fields}
        return httpx.Response(200, headers={"Content-Type": "application/msgpack"}, content=pack(reply))

    return trick


def raw(content: bytes, kind: str = "application/msgpack", status: int = 200) -> Any:
    return lambda request, ask: httpx.Response(status, headers={"Content-Type": kind}, content=content)


@pytest.mark.parametrize(
    ("trick", "clue"),
    [
        (raw(b"<html>Please log in</html>", "text/html"), "Please log in"),
        (raw(b""), "MessagePack"),
        (raw(b"\xc1\xff\x00"), "MessagePack"),
        (raw(pack([1, 2])), "expected a reply"),
        (raw(pack({"seq": 1})), "expected a reply"),
        (raw(pack({"seq": 2})), "observations are"),
        (changed(observations=np.zeros((4, 10, 8), np.float32)), "observations are"),
        (changed(observations=np.zeros((4, 10, 9))), "observations are float64"),
        (changed(rewards="all of it"), "rewards are a str"),
        (changed(rewards=np.zeros(5)), "rewards are"),
        (changed(terminated=np.zeros(4)), "terminated are"),
        (changed(infos=[1]), "infos cannot be read"),
        (changed(infos={"reason": {"rows": np.array([9]), "values": np.array([1])}}), "infos cannot be read"),
    ],
)
def test_garbage_is_an_error_and_no_observation(place: Place, trick: Any, clue: str) -> None:
    with connect(place) as fleet:
        network_of(fleet).tricks = [trick]
        with pytest.raises(WireError, match=clue):
            fleet.step(FLY)
        assert fleet.step(FLY)[1].shape == (4,)  # asked again, the service gives what it stored


def revoke(request: httpx.Request, ask: Any) -> httpx.Response:
    return httpx.Response(401, json={"code": "unauthorized", "detail": "the token was revoked"})


def fail(status: int) -> Any:
    def trick(request: httpx.Request, ask: Any) -> httpx.Response:
        return httpx.Response(status, text="an error page of something in between")

    return trick


@pytest.mark.parametrize(
    "tricks", [[lose_reply, fail(500)], [lose_reply, fail(403)], [lose_reply, revoke], [fail(500)]]
)
def test_a_refusal_after_a_lost_reply_leaves_the_call_open(place: Place, local: Any, tricks: list[Any]) -> None:
    local.reset(seed=1)
    with connect(place) as fleet:
        fleet.reset(seed=1)
        network_of(fleet).tricks += tricks
        with pytest.raises((ServiceUnreachable, WireError)):
            fleet.step(FLY)
        with pytest.raises(CallPending, match="unknown whether it was carried out"):
            fleet.step(FLY + 1)
        assert not mismatches(local.step(FLY), fleet.step(FLY))


@pytest.mark.parametrize("verb", ["connect", "step", "close"])
def test_patience_ends_though_the_service_is_silent(place: Place, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if verb == "connect":
            with pytest.raises(ServiceUnreachable):
                envfleet.connect(address, TURBOFAN, 1, token="t", patience_s=0.5, timeout_s=3600.0)
        else:
            fleet = connect(place, patience_s=3600.0, timeout_s=3600.0)
            fleet.reset()
            link = fleet.engine._queues[0].link
            use_httpx(link)
            link._http.base_url = address
            if verb == "step":
                link._patience_s = 1.0
                with pytest.raises(ServiceUnreachable):
                    fleet.step(FLY)
            with pytest.warns(RuntimeWarning, match="did not close"):
                fleet.close(timeout=0.5)


def test_a_refusal_is_final(place: Place) -> None:
    with connect(place) as fleet:
        network = network_of(fleet)
        body = b'{"code": "quota", "detail": "steps per day: 10 of 10"}'
        network.tricks = [raw(body, "application/json", 403)]
        with pytest.raises(ServiceRefused, match="steps per day") as caught:
            fleet.step(FLY)
        assert (caught.value.status, caught.value.reason, len(network.bodies)) == (403, "quota", 1)
        network.tricks = [raw(b"", status=307)]
        with pytest.raises(ServiceRefused, match="elsewhere"):
            fleet.step(FLY)


def test_a_service_that_is_gone_is_told_when_the_fleet_closes(place: Place) -> None:
    fleet = connect(place)
    network_of(fleet).tricks = [lose_request] * 99
    with pytest.warns(RuntimeWarning, match="did not close fleet"):
        fleet.close()
    assert fleet.closed


# ---------------------------------------------------------------------- connecting


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>A web page</html>")

    def log_message(self, *arguments: Any) -> None:
        pass


def test_an_address_without_a_service() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _Page) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(WireError, match="A web page"):
                envfleet.connect(url, TURBOFAN, token="any")
        finally:
            server.shutdown()
            thread.join()
    with pytest.raises(ServiceUnreachable, match="Check the address"):
        envfleet.connect(url, TURBOFAN, token="any", patience_s=0.2)


def test_connect_has_the_patience_that_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gave up after 10 s, so that a service that starts or restarts was not waited for."""
    timeouts_s: list[float] = []

    class Link(ServiceLink):
        def get(self, path: str, *, patience_s: float | None = None) -> Any:
            timeouts_s.append(self._patience_s if patience_s is None else patience_s)
            raise ServiceUnreachable("nobody answers")

    monkeypatch.setattr(connecting, "ServiceLink", Link)
    with pytest.raises(ServiceUnreachable):
        envfleet.connect("http://127.0.0.1:9", TURBOFAN, token="any", patience_s=345.0)
    assert timeouts_s == [345.0]


def test_a_service_that_takes_long_to_make_a_fleet_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before, networks = place.service.fleets.num_held, []

    class SlowLink(ServiceLink):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            use_httpx(self)
            networks.append(Network(self._http._transport))
            self._http._transport = networks[-1]
            networks[-1].tricks = [lambda request, ask: ask(), lose_reply, lose_reply]

    monkeypatch.setattr(connecting, "ServiceLink", SlowLink)
    with envfleet.connect(place.url, TURBOFAN, 2, token=place.token) as fleet:
        assert fleet.num_envs == 2
        assert place.service.fleets.num_held == before + 1  # the one that the first request made
        assert networks[0].bodies[1] == networks[0].bodies[2] == networks[0].bodies[3]


@pytest.mark.parametrize("url", ["", "host:8001", "ftp://host", "http://", "http://[::"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidArgument, match="url="):
        envfleet.connect(url, TURBOFAN, token="any")


def test_a_wrong_token(place: Place) -> None:
    with pytest.raises(ServiceRefused, match="does not accept the token") as caught:
        envfleet.connect(place.url, TURBOFAN, token="ef_wrong")
    assert (caught.value.status, caught.value.reason, caught.value.code) == (401, "unauthorized", "service_refused")
    assert str(caught.value).count("ask for another") == 1
    with pytest.raises(InvalidArgument, match="copy it again"):
        envfleet.connect(place.url, TURBOFAN, token="ef wrong\n")


def test_tokens_come_from_the_environment_or_a_file(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENVFLEET_TOKEN", raising=False)
    with pytest.raises(InvalidArgument, match="no token"):
        envfleet.connect(place.url, TURBOFAN)
    (tmp_path / ".env").write_text(f"ENVFLEET_TOKEN={place.token}\n")
    envfleet.connect(place.url, TURBOFAN).close()
    monkeypatch.setenv("ENVFLEET_TOKEN", "ef_other")
    with pytest.raises(ServiceRefused):
        envfleet.connect(place.url, TURBOFAN)


@pytest.mark.parametrize(
    ("more", "clue"),
    [
        ({"env": "Pong-v5"}, "not offered"),
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 1_000_000}, "num_envs=1000000"),
        ({"step_size": 1000}, "step_size"),
        ({"reveal": True}, "reveal"),
        ({"mode": "rated"}, "mode="),
        ({"autoreset_mode": "never"}, "autoreset_mode"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"batch_size": 3}, "batch_size=3"),
    ],
)
def test_what_a_service_does_not_offer(place: Place, more: dict[str, Any], clue: str) -> None:
    with pytest.raises(InvalidArgument, match=clue):
        envfleet.connect(place.url, **{"env": TURBOFAN, "num_envs": 2, "token": place.token, **more})


def test_several_services_need_a_sub_environment_each(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="one sub-environment for each"):
        envfleet.connect([place.url, place.url], TURBOFAN, 1, token=place.token)
    before = place.service.fleets.num_held
    monkeypatch.setattr(connecting, "ServiceLink", _SecondHasNoToken())
    with pytest.raises(ServiceRefused):  # the first part is closed again
        envfleet.connect([place.url, place.url], TURBOFAN, 2, token=place.token)
    assert place.service.fleets.num_held == before


def test_a_fleet_that_is_described_wrongly_is_closed_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = place.service.fleets.num_held
    post = ServiceLink.post
    monkeypatch.setattr(ServiceLink, "post", lambda *args, **more: {**post(*args, **more), "num_envs": 3})
    with pytest.raises(WireError, match="made 3 sub-environments, asked for 2"):
        envfleet.connect(place.url, TURBOFAN, 2, token=place.token)
    assert place.service.fleets.num_held == before


class _SecondHasNoToken:
    def __init__(self) -> None:
        self._links = 0

    def __call__(self, url: str, token: str, **more: Any) -> Any:
        self._links += 1
        return ServiceLink(url, token if self._links == 1 else None, **more)
