"""Networks that cut connections, fall silent for a while or for good, or block the driver's port."""

from __future__ import annotations

import functools
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray
from tests.conftest import SERIAL
from tests.ray.conftest import FAR, actors, no_actor_stays
from tests.ray.proxy import Proxy

from envfleet.errors import EnvfleetError, InvalidArgument, WorkerDied
from envfleet.testing import CountingEnv, InfoEnv
from envfleet.testing.compare import mismatches
from envfleet.workers.transports.ray.transport import RayTransport

ENV_FNS = [functools.partial(InfoEnv, "numbers", index, length=3 + index % 3) for index in range(4)]


@pytest.fixture
def through_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[Any, Proxy]]]:
    """Return a fleet with workers that reach the driver through a proxy, and the proxy."""
    proxies: list[Proxy] = []
    fleets: list[Any] = []
    listen = RayTransport._listen

    def listen_behind(self: RayTransport) -> None:
        listen(self)
        proxies.append(Proxy(self._address))
        self._address = proxies[-1].address

    def make(env_fns: Any, **options: Any) -> tuple[Any, Proxy]:
        monkeypatch.setattr(RayTransport, "_listen", listen_behind)
        fleets.append(FAR(env_fns, **options))
        return fleets[-1], proxies[-1]

    yield make
    while fleets:  # which pytest keeps as long as the test
        fleets.pop().close()
    for proxy in proxies:
        proxy.close()
    assert no_actor_stays()


def pids(fleet: Any) -> list[int]:
    return [worker.pid for worker in fleet.stats().workers]


@pytest.mark.parametrize("batch_size", [None, 2], ids=["all", "by-rows"])
def test_connections_that_are_cut(through_proxy: Any, batch_size: int | None) -> None:
    """Workers connect again, and every request is answered once, with the same results as without a network."""
    fleet, proxy = through_proxy(ENV_FNS, batch_size=batch_size)
    with SERIAL(ENV_FNS) as serial:
        assert not mismatches(serial.reset(seed=3), fleet.reset(seed=3))
        before = pids(fleet)
        for count in range(30):
            actions = np.full(4, count % 2)
            fleet.send(actions)
            if count % 3 == 0:
                proxy.cut()
            expected = serial.step(actions)
            got = [fleet.recv(timeout_s=60)] if batch_size is None else [fleet.recv(timeout_s=60) for _ in range(2)]
            rows = np.concatenate([batch.env_indices for batch in got])
            order = np.argsort(rows)
            rewards = np.concatenate([batch.rewards for batch in got])[order]
            observations = np.concatenate([batch.observations for batch in got])[order]
            assert sorted(rows) == [0, 1, 2, 3]
            assert not mismatches(expected[:2], (observations, rewards))
        assert proxy.num_cuts >= 20
        assert pids(fleet) == before


def test_silence_shorter_than_the_limit(through_proxy: Any) -> None:
    """It ends no worker, also if it lasts longer than the time for a closed connection to be restored."""
    fleet, proxy = through_proxy([functools.partial(CountingEnv, 1000)] * 4)
    fleet.reset(seed=0)
    before = pids(fleet)
    for silence_s in (1.0, 2.0, 10.0):
        proxy.is_silent = True
        fleet.send(np.zeros(4, np.int64))
        time.sleep(silence_s)
        proxy.is_silent = False
        fleet.recv(timeout_s=60)
    assert pids(fleet) == before


def test_silence_for_good(through_proxy: Any) -> None:
    """The error says how long nothing was heard; it comes once for all workers of a node."""
    options = {"network_timeout_s": 4}
    fleet, proxy = through_proxy([functools.partial(CountingEnv, 1000)] * 4, workers=4, ray_options=options)
    assert "network_timeout_s=4" in fleet.plan.reason
    fleet.reset(seed=0)
    proxy.is_silent = True
    with pytest.raises(WorkerDied, match=r"silent for \d+ s, network_timeout_s=4"):
        fleet.step(np.zeros(4, np.int64))


def test_actors_that_stop_and_die(through_proxy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray is asked once about the ends of all workers, however many died together."""
    waits: list[int] = []
    wait = ray.wait

    def counted(refs: Any, **options: Any) -> Any:
        if options.get("timeout"):
            waits.append(len(refs))
        return wait(refs, **options)

    fleet, _ = through_proxy([functools.partial(CountingEnv, 1000)] * 4, workers=4, on_failure="restart")
    fleet.reset(seed=0)
    monkeypatch.setattr(ray, "wait", counted)
    for name in actors():
        if "ray::RayWorker" in name:
            os.kill(int(name.split()[0]), signal.SIGKILL)
    lost = np.zeros(4, np.bool_)
    while not lost.all():
        lost |= fleet.step(np.zeros(4, np.int64))[3]
    assert max(waits) > 1
    assert len(waits) < 4


def test_workers_that_cannot_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall: they are reached by actor calls, with one warning that says what to open."""
    listen = RayTransport._listen

    def listen_behind_a_firewall(self: RayTransport) -> None:
        listen(self)
        with socket.create_server((self._address[0], 0)) as closed:
            self._address = closed.getsockname()[:2]

    monkeypatch.setattr(RayTransport, "_listen", listen_behind_a_firewall)
    with pytest.warns(RuntimeWarning, match=r"cannot be reached .* by Ray's actor calls.*ENVFLEET_RAY_PORT") as warned:
        fleet = FAR(ENV_FNS)
    assert len([one for one in warned if "actor calls" in str(one.message)]) == 1
    with SERIAL(ENV_FNS) as serial, fleet:
        assert "2 by actor calls" in repr(fleet)
        assert not mismatches(serial.reset(seed=3), fleet.reset(seed=3))
        for count in range(10):
            assert not mismatches(serial.step(np.full(4, count % 2)), fleet.step(np.full(4, count % 2)))
        os.kill(pids(fleet)[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            fleet.step(np.zeros(4, np.int64))
    assert no_actor_stays()


def test_the_port_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an option, or by a variable of the environment; of a range, each fleet takes the first that is free."""
    with socket.create_server(("", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("ENVFLEET_RAY_PORT", f"{port}-{port + 20}")
    with FAR([CountingEnv], workers=1) as first, FAR([CountingEnv], workers=1) as second:
        used = [transport_of(fleet)._address[1] for fleet in (first, second)]
        assert used[0] in range(port, port + 20)
        assert used[1] in range(used[0] + 1, port + 21)
        assert f"driver at port {used[0]}" in first.plan.reason
        with pytest.raises(EnvfleetError, match=r"cannot listen at .*own, so allow more"):
            FAR([CountingEnv], ray_options={"port": used[0]})
    for wrong in ("high", 70_000, (5, 3)):
        with pytest.raises(InvalidArgument, match=r"ray_options\['port'\]"):
            FAR([CountingEnv], ray_options={"port": wrong})


def transport_of(fleet: Any) -> Any:
    return fleet.engine._pool.transport


def test_patience_is_checked() -> None:
    with pytest.raises(InvalidArgument, match=r"network_timeout_s.*above 0"):
        FAR([CountingEnv], ray_options={"network_timeout_s": 0})
