"""Service under bad clients, then with very many sessions: everything that must hold is checked.

Every client plays episodes with numbers that are known from a local fleet, and misbehaves: it gives up before the
answer and asks again, sends a call twice, drops the connection within a request, sends garbage, or leaves without
closing. Meanwhile, the service may be killed and started again at any moment.
"""

from __future__ import annotations

import collections
import contextlib
import json
import random
import re
import secrets
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import psutil
from benchmarks.case import Record, Session
from benchmarks.remote import ENV, Served, latencies, serve

import envfleet
from envfleet.remote.codec import pack, unpack

NUM_ENVS, TOKENS = 8, 20
ALLOWED_GROWTH = 0.25  # of the memory after a third of the time
_METRICS_TOKEN = "soak"
_PUT_OFF = (429, 503)  # nothing was done; the latter from a process that ends
TIMEOUT_S = 120.0  # above the deadline of the service's queue and the grace period of requests that are stuck


class Tally:
    """Answers, misdeeds and faults of all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answers: collections.Counter[int] = collections.Counter()
        self.deeds: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def note(self, status: int, text: str = "") -> None:
        """Count an answer."""
        with self._lock:
            self.answers[status] += 1
            if status >= 500 and status not in _PUT_OFF:
                self.faults.append(f"{status}: {text[:200]}")

    def count(self, deed: str) -> None:
        """Count a misdeed."""
        with self._lock:
            self.deeds[deed] += 1


class BadClient:
    """Plays and misbehaves until a time.

    Args:
        url: Address of the service.
        token: Token of the client.
        tally: Tally of all clients.
        seed: Seed of what it does.
    """

    def __init__(self, url: str, token: str, tally: Tally, seed: int) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v2", headers={"Authorization": f"Bearer {token}"})
        self._address, self._token, self._tally = httpx.URL(url), token, tally
        self._random = random.Random(seed)
        self._left_open: list[str] = []

    def run(self, end_s: float) -> None:
        with self._http:
            while time.monotonic() < end_s:
                self._play(end_s)
            for fleet in self._left_open:
                self._call(f"/fleets/{fleet}/close", {})

    def _play(self, end_s: float) -> None:
        seed, num_steps = self._random.randrange(2**31), self._random.randrange(20, 200)
        fleet = self._call("/fleets", {"env": ENV, "num_envs": NUM_ENVS, "autoreset_mode": "SAME_STEP"})["fleet"]
        rng, calls = np.random.default_rng(seed), 1
        self._left_open.append(fleet)
        with envfleet.make(ENV, NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP") as local:
            reply = self._call(f"/fleets/{fleet}/reset", {"seq": 0, "seeds": seed})
            self._compare(fleet, reply["observations"], local.reset(seed=seed)[0])
            while calls <= num_steps and time.monotonic() < end_s:
                actions = rng.choice(3, NUM_ENVS, p=[0.9, 0.06, 0.04])
                if self._random.random() < 0.15:
                    self._misbehave(fleet, calls)
                reply = self._call(f"/fleets/{fleet}/step", {"seq": calls, "actions": actions})
                observations, rewards, *_ = local.step(actions)
                self._compare(fleet, reply["observations"], observations)
                self._compare(fleet, reply["rewards"], rewards)
                calls += 1
        if self._repeat("GET", f"/fleets/{fleet}", b"")["seq"] != calls:
            self._tally.faults.append(f"fleet {fleet} lost or repeated a step: it was called {calls} times")
        if self._random.random() < 0.7:
            self._call(f"/fleets/{fleet}/close", {})
            self._left_open.remove(fleet)

    def _compare(self, fleet: str, remote: Any, local: Any) -> None:
        if not np.array_equal(remote, local):
            self._tally.faults.append(f"fleet {fleet} answered other numbers than a local one")

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        """Repeat a call until it is answered; sometimes with a short timeout, sometimes once more than needed."""
        return self._repeat("POST", path, pack({**body, "key": secrets.token_bytes(12)}))

    def _repeat(self, method: str, path: str, packed: bytes) -> Any:
        deadline_s = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline_s:
            timeout_s = self._random.choice((0.001, 0.005, 0.02)) if self._random.random() < 0.1 else TIMEOUT_S
            response = self._send(method, path, packed, timeout_s)
            if response is None:
                self._tally.count("gave up")
                time.sleep(0.01)
                continue
            if response.status_code in _PUT_OFF:
                time.sleep(0.2)
                continue
            if response.status_code >= 300:
                raise SystemExit(f"{path}: {response.status_code} {response.text}")
            if method == "POST" and self._random.random() < 0.05 and not path.endswith("close"):
                again = self._send("POST", path, packed, TIMEOUT_S)
                self._tally.count("asked twice")
                if again is not None and again.status_code < 300 and _seq(again) != _seq(response):
                    self._tally.faults.append(f"{path}: a repeated call was executed again")
            return unpack(response.content)
        raise SystemExit(f"{path} was not answered within {TIMEOUT_S:g} s")

    def _send(self, method: str, path: str, body: bytes, timeout_s: float) -> httpx.Response | None:
        try:
            response = self._http.request(method, path, content=body, timeout=timeout_s)
        except httpx.TransportError:
            return None
        self._tally.note(response.status_code, response.text if response.status_code >= 500 else "")
        return response

    def _misbehave(self, fleet: str, seq: int) -> None:
        deed = self._random.choice(("garbage", "another step", "vanish", "episode garbage"))
        self._tally.count(deed)
        noise = self._random.randbytes(self._random.randrange(200))
        if deed == "garbage":
            self._send("POST", f"/fleets/{fleet}/{self._random.choice(('step', 'reset'))}", noise, TIMEOUT_S)
        elif deed == "another step":  # with the number of a past or a later call
            wrong = pack({"seq": seq + self._random.choice((-1, 1, 7)), "key": bytes(8), "actions": np.zeros(8)})
            self._send("POST", f"/fleets/{fleet}/step", wrong, TIMEOUT_S)
        elif deed == "episode garbage":
            text = json.dumps({"episode_actions": [{"episode_id": "x", "action": 1}] * 3})[: 5 + len(noise)]
            headers = {"User-Token": self._token, "Content-Type": "application/json"}
            url = str(self._address.join("/api/v1/episode/vectorized_step"))
            with contextlib.suppress(httpx.TransportError):
                self._tally.note(self._http.post(url, content=text, headers=headers, timeout=TIMEOUT_S).status_code)
        else:
            self._vanish(fleet)

    def _vanish(self, fleet: str) -> None:
        """Send a part of a request and close the connection."""
        head = (
            f"POST /api/v2/fleets/{fleet}/step HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
            "Content-Length: 500\r\n\r\nhalf"
        )
        address = self._address.host, self._address.port or 80
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=TIMEOUT_S) as broken:
            broken.sendall(head.encode()[: self._random.randrange(10, len(head))])


def _seq(response: httpx.Response) -> int:
    return int(unpack(response.content).get("seq", 0))


def run_soak(
    session: Session,
    *,
    clients: int = 12,
    sessions: int = 10_000,
    timed: tuple[int, ...] = (1, 8, 32),
    database: str = "",
    workers: int = 1,
    kill_every_s: float = 0.0,
) -> None:
    """Check a service under bad clients and with many sessions; exit with 1 on a fault."""
    options = ("--metrics-token", _METRICS_TOKEN, "--workers", str(workers))
    with serve(*options, database=database) as served:
        url, tokens = served.url, _make_tokens(served.url, served.token)
        tally = _run_clients(served, tokens, clients, session.seconds, kill_every_s, is_alone=workers == 1)
        answers = ", ".join(f"{count:,} × {status}" for status, count in sorted(tally.answers.items()))
        notes = {
            "answers": answers,
            "misdeeds": f"{tally.deeds.total() - tally.deeds['kill -9']:,}",
            "kill -9": f"{tally.deeds['kill -9']}",
            "faults": "; ".join(tally.faults[:20]) or "none",
        }
        name = f"soak, {clients} clients, {database.partition('+')[0] or 'sqlite'}, {workers} workers"
        session.add(Record(name, "faults", [len(tally.faults)], notes))
        for count in timed:
            p50, p99 = latencies(url, served.token, count, 2.0)
            session.add(Record("step of 64 engines, p50 ms", f"{count} clients", [p50], {"p99 ms": f"{p99:.1f}"}))
        if sessions:
            _hold(session, url, tokens, served.process, sessions)
    if tally.faults:
        raise SystemExit(f"{len(tally.faults)} faults: {tally.faults[:20]}")


def _make_tokens(url: str, admin: str) -> list[str]:
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {admin}"}, timeout=TIMEOUT_S) as http:
        bodies = ({"name": f"soak {k}", "max_live_envs": 1_000_000} for k in range(TOKENS))
        return [http.post("/api/v2/admin/tokens", json=body).json()["token"] for body in bodies]


def _num_fleets(url: str) -> float:
    headers = {"Authorization": f"Bearer {_METRICS_TOKEN}"}
    text = httpx.get(f"{url}/metrics", headers=headers, timeout=TIMEOUT_S).text
    match = re.search(r"^envfleet_fleets (\S+)$", text, re.MULTILINE)
    if match is None:
        raise SystemExit("/metrics lacks envfleet_fleets")
    return float(match[1])


def _run_clients(
    served: Served, tokens: list[str], clients: int, seconds: float, kill_every_s: float, *, is_alone: bool
) -> Tally:
    tally, memory, url = Tally(), [], served.url
    end_s = time.monotonic() + seconds
    with ThreadPoolExecutor(clients + 1) as pool:
        running = [pool.submit(BadClient(url, tokens[k % TOKENS], tally, k).run, end_s) for k in range(clients)]
        if kill_every_s:
            running.append(pool.submit(_kill_often, served, tally, end_s, kill_every_s))
        while time.monotonic() < end_s:
            time.sleep(seconds / 12)
            if not kill_every_s:
                memory.append(served.process.memory_info().rss)
        for each in running:
            each.result(TIMEOUT_S + seconds)
    if not is_alone:  # what is asked of one process is not known of the others
        return tally
    deadline_s = time.monotonic() + TIMEOUT_S
    while (left := _num_fleets(url)) and time.monotonic() < deadline_s:
        time.sleep(0.5)
    if left:
        tally.faults.append(f"{left:.0f} closed fleets are still in memory")
    if memory and memory[-1] > memory[len(memory) // 3] * (1.0 + ALLOWED_GROWTH):
        early, late = (size / 2**20 for size in (memory[len(memory) // 3], memory[-1]))
        tally.faults.append(f"memory grew from {early:.0f} to {late:.0f} MiB")
    return tally


def _kill_often(served: Served, tally: Tally, end_s: float, kill_every_s: float) -> None:
    """Kill one process of the service at random moments, and start the service again when it was the first one."""
    choose = random.Random(0)
    while (pause_s := choose.uniform(0.5, 1.5) * kill_every_s) < end_s - time.monotonic():
        time.sleep(pause_s)
        workers = [one for one in served.process.children() if "spawn_main" in " ".join(one.cmdline())]
        victim = choose.choice([served.process, *workers])
        victim.kill()
        tally.count("kill -9")
        if victim is served.process:
            victim.wait()
            psutil.wait_procs(workers, TIMEOUT_S)
            served.start()


def _hold(session: Session, url: str, tokens: list[str], service: psutil.Process, count: int) -> None:
    """Open sessions of one engine each, use each once, then step some of them."""
    before, start_s = service.memory_info().rss, time.monotonic()
    with ThreadPoolExecutor(TOKENS) as pool:
        opened = list(pool.map(lambda token: _open_fleets(url, token, max(1, count // TOKENS)), tokens))
        held, opening_s, after = _num_fleets(url), time.monotonic() - start_s, service.memory_info().rss
        times = [each for some in pool.map(_step_fleets, opened) for each in some]
    p50, p99 = np.percentile(times, [50, 99])
    notes = {"p99 ms": f"{p99:.1f}", "sessions": f"{held:,.0f}", "opened in": f"{opening_s:.0f} s"}
    notes["memory each"] = f"{(after - before) / 1024 / max(held, 1.0):.0f} KiB"
    session.add(Record("step of one engine, p50 ms", "many sessions", [float(p50)], notes))


def _post(http: httpx.Client, path: str, **body: Any) -> Any:
    packed = pack({**body, "key": secrets.token_bytes(8)})  # the same key in all attempts: executed once
    for _ in range(60):
        try:
            response = http.post(path, content=packed, timeout=300.0)
        except httpx.TransportError:
            continue
        if response.status_code != 429:
            response.raise_for_status()
            return unpack(response.content)
    raise SystemExit(f"{path} was not answered in 60 attempts")


def _open_fleets(url: str, token: str, count: int) -> tuple[httpx.Client, list[str]]:
    http, fleets = httpx.Client(base_url=f"{url}/api/v2", headers={"Authorization": f"Bearer {token}"}), []
    for _ in range(count):
        fleets.append(_post(http, "/fleets", env=ENV, num_envs=1)["fleet"])
        _post(http, f"/fleets/{fleets[-1]}/reset", seq=0)
    return http, fleets


def _step_fleets(opened: tuple[httpx.Client, list[str]]) -> list[float]:
    http, fleets = opened
    times = []
    with contextlib.closing(http):
        for fleet in fleets[:: max(1, len(fleets) // 10)]:
            start_s = time.perf_counter()
            _post(http, f"/fleets/{fleet}/step", seq=1, actions=np.zeros(1, np.int64))
            times.append(1e3 * (time.perf_counter() - start_s))
    return times
