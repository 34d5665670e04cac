"""Environments that hang or cannot be built: their user gets an error, others are not affected, nothing stays."""

from __future__ import annotations

import io
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest
from tests.service.conftest import Caller
from tests.service.serving import make_settings, serve_here
from tests.service.test_fleets import process

from envfleet.errors import InvalidArgument, KernelError
from envfleet.service.hosting.hosted import FleetConfig, HostedFleet
from envfleet.service.hosting.process_room import ProcessRoom
from envfleet.service.offers import make_offer
from envfleet.service.refusals import Busy, EnvFailed
from envfleet.service.service import Service

HANGING, FAILING, USUAL = "Hanging-v0", "FailingConstructor-v0", "CartPole-v1"
LIMIT_S = 2.0


@pytest.fixture(scope="module")
def fired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is there from the moment in which the environment hangs."""
    return tmp_path_factory.mktemp("hanging") / "fired"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, fired: Path) -> Iterator[tuple[httpx.Client, Service]]:
    faulty = "envfleet.testing.faults:FaultyEnv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gym.envs.registration, "registry", dict(gym.registry))
        kwargs: dict[str, Any] = {"fault": "native_loop", "when": "step", "once": str(fired)}
        gym.register(HANGING, faulty, disable_env_checker=True, kwargs=kwargs)
        gym.register(FAILING, faulty, disable_env_checker=True, kwargs={"fault": "raise", "when": "constructor"})
        offers = tuple(make_offer(name, step_timeout_s=LIMIT_S) for name in (HANGING, FAILING))
        offers += (make_offer(USUAL).model_copy(update={"readable": ("unheard_of", "np_random")}),)
        with serve_here(make_settings(tmp_path_factory.mktemp("service"), offers=offers)) as both:
            yield both


def test_what_hangs_is_ended_while_others_go_on(ann: Caller, bob: Caller, service: Service, fired: Path) -> None:
    fleet = ann.create(HANGING, 2)
    ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=1)
    hosted = service.fleets.held(fleet)
    assert hosted is not None
    pid = hosted.fleet.stats().workers[0].pid
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(ann.post, f"/fleets/{fleet}/step", seq=1, actions=[1, 0])
        while not fired.exists() and not hanging.done():
            time.sleep(0.01)
        other = bob.create(USUAL, 2)
        bob.call(f"/fleets/{other}/reset", seq=0)
        assert bob.call(f"/fleets/{other}/step", seq=1, actions=[0, 1])["seq"] == 2
        answer = hanging.result()
    assert (answer.status_code, answer.json()["code"]) == (500, "env_failed")
    assert "took longer than the 2 s that it may take here" in answer.json()["detail"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert ann.call(f"/fleets/{fleet}/step", seq=1, actions=[1, 0])["seq"] == 2
    assert ann.post(f"/fleets/{fleet}/close").status_code == 200
    assert service.fleets.num_held == 1
    assert bob.post(f"/fleets/{other}/close").status_code == 200


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "the environment raised PlainError: broken on purpose; the service's log says more"),
        ("sigkill", "the process of the environment ended; the fleet stands where it stood before the call"),
    ],
)
@pytest.mark.parametrize("call", ["reset", "step"])
def test_what_fails_once_is_brought_back_to_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: str, message: str
) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    kwargs: dict[str, Any] = {"fault": fault, "when": call, "nth": 2, "once": str(tmp_path / "fired")}
    gym.register("FailsOnce-v0", "envfleet.testing.faults:FaultyEnv", disable_env_checker=True, kwargs=kwargs)
    events: dict[str, Any] = {
        "reset": {"do": "reset", "rows": None, "seeds": 3},
        "step": {"do": "step", "actions": np.ones(2, np.int64)},
    }
    with process(make_settings(tmp_path, offers=(make_offer("FailsOnce-v0"),))) as here:
        user = here.user("ann")
        fleet, other = (here.create(user, "FailsOnce-v0", 2) for _ in range(2))
        for seq, each in enumerate(("reset", "step")):
            here.call(user, fleet, seq, **events[each])
        with pytest.raises(EnvFailed, match=re.escape(message)):
            here.call(user, fleet, 2, **events[call])
        actual = here.call(user, fleet, 2, **events[call])
        for seq, each in enumerate(("reset", "step", call)):
            expected = here.call(user, other, seq, **events[each])
    np.testing.assert_array_equal(actual["observations"], expected["observations"])


@pytest.mark.parametrize("name", ["unheard_of", "np_random"])  # the environment raises; a value that cannot be sent
def test_an_unreadable_attribute_keeps_the_fleet(ann: Caller, service: Service, name: str) -> None:
    fleet = ann.create(USUAL, 2)
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    hosted = service.fleets.held(fleet)
    assert hosted is not None
    for _ in range(2):
        answer = ann.get(f"/fleets/{fleet}/attributes/{name}")
        assert (answer.status_code, answer.json()["code"]) == (500, "env_failed")
        assert service.fleets.held(fleet) is hosted
    os.kill(hosted.fleet.stats().workers[0].pid, signal.SIGKILL)
    assert "the process of the environment ended" in ann.get(f"/fleets/{fleet}/attributes/{name}").json()["detail"]
    assert service.fleets.held(fleet) is None
    assert ann.call(f"/fleets/{fleet}/step", seq=1, actions=[0, 1])["seq"] == 2
    ann.call(f"/fleets/{fleet}/close")


def test_a_fleet_whose_environment_fails_to_close_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO
) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    kwargs: dict[str, Any] = {"fault": "raise", "when": "close"}
    gym.register("FailsToClose-v0", "envfleet.testing.faults:FaultyEnv", disable_env_checker=True, kwargs=kwargs)
    with process(make_settings(tmp_path, offers=(make_offer("FailsToClose-v0"),))) as here:
        user = here.user("ann")
        fleets = [here.create(user, "FailsToClose-v0", 1) for _ in range(2)]
        here.fleets.close_fleet(user.user_id, fleets[0])
        assert here.fleets.num_held == 1
    assert logged.getvalue().count("broken on purpose") >= len(fleets)


def test_the_error_of_a_constructor_has_its_type_and_message(
    ann: Caller, service: Service, logged: io.StringIO
) -> None:
    answer = ann.post("/fleets", env=FAILING, num_envs=1)
    assert (answer.status_code, answer.json()["code"]) == (500, "env_failed")
    assert (
        answer.json()["detail"]
        == f"{FAILING} cannot be made (PlainError: broken on purpose; the service's log says more)"
    )
    assert "Traceback" in logged.getvalue()
    assert service.fleets.num_held == 0


def test_participants_are_not_told_of_errors_within_the_service(
    ann: Caller, service: Service, logged: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KernelError("line 7 of secret.py cannot be compiled")

    monkeypatch.setattr(service.fleets, "create", fail)
    answer = ann.post("/fleets", env=HANGING, num_envs=1)
    assert (answer.status_code, answer.json()["code"]) == (500, "kernel")
    assert answer.json()["detail"] == "the service failed to do this; its log says why"
    assert "line 7 of secret.py" in logged.getvalue()


def test_idle_processes_make_room_for_others(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, offers=(make_offer(USUAL),), max_processes=2)
    with process(settings) as here:
        ann, bob = here.user("ann"), here.user("bob")
        others = here.create(bob, num_envs=1)
        first = here.create(ann, num_envs=1)
        here.reset(ann, first, seeds=3)
        with pytest.raises(Busy, match="all 2 worker processes"):  # all were used just now, and ann has as many
            here.create(ann, num_envs=1)
        unused, used = here.fleets.held(others), here.fleets.held(first)
        assert unused is not None
        assert used is not None
        unused.touched_at -= 2 * settings.queue_timeout_s
        second = here.create(ann, num_envs=1)
        assert [here.fleets.held(fleet) is None for fleet in (others, first, second)] == [True, False, False]
        here.reset(bob, others, seeds=3)  # ann has both places, bob none
        assert [here.fleets.held(fleet) is None for fleet in (others, first, second)] == [False, True, False]
        with pytest.raises(Busy):
            here.step(ann, first, 1, [0])  # and each has one now
        noted = {row["id"]: row["touched_at"] for row in here.store.open_fleets()}
        assert noted[first] == used.touched_at  # when it was reset is known, though it has left


def test_processes_count_from_before_start_until_their_end(tmp_path: Path) -> None:
    offer = make_offer(USUAL)
    room = ProcessRoom(make_settings(tmp_path, max_processes=1), list, lambda _: False)
    config = FleetConfig(env=USUAL, version="1", num_envs=1, autoreset_mode="NEXT_STEP", mode="training", options={})

    def make() -> HostedFleet:
        with pytest.raises(Busy):
            room.build(2, 1, make)
        return HostedFleet("", 1, offer, config)

    for _ in range(2):
        hosted = room.build(1, 1, make)
        with pytest.raises(Busy):
            room.build(2, 1, make)
        hosted.close()
    with pytest.raises(InvalidArgument, match="2 worker processes in a service that may have 1"):
        room.build(2, 2, make)
