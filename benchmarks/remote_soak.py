"""A service under bad clients for a while, then with very many sessions, then timed: what must hold is checked.

    python -m benchmarks.remote_soak [--seconds 60] [--clients 12] [--sessions 10000] [--json FILE]

In the soak, every client plays episodes whose every number is known from a local fleet, and misbehaves: it gives up
before the answer comes and asks again, sends a call twice, drops the connection in the middle of a request, sends
garbage, or leaves without closing anything. At the end: no answer was a failure of the service, every fleet made as
many calls as its client did and answered each with the right numbers, nothing is left in memory, and it did not grow.
Ends with status 1 if any of that is not so.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import secrets
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from benchmarks.remote import ENV, latencies, serve

import envfleet
from envfleet.remote.codec import pack, unpack

NUM_ENVS, TOKENS = 8, 20
ALLOWED_GROWTH = 0.25  # of the memory after a third of the time
_SETTLE_S = 120.0  # the queue's deadline and the grace of stuck requests are well below
_PATIENCE_S = 120.0


class Tally:
    """What the clients saw, together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.statuses: collections.Counter[int] = collections.Counter()
        self.deeds: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def note(self, status: int, text: str = "") -> None:
        """An answer."""
        with self._lock:
            self.statuses[status] += 1
            if status >= 500:
                self.faults.append(f"{status}: {text[:200]}")

    def did(self, deed: str) -> None:
        """Something a client did."""
        with self._lock:
            self.deeds[deed] += 1

    def fault(self, text: str) -> None:
        """Something that must not be."""
        with self._lock:
            self.faults.append(text)


class Client:
    """One bad client.

    Args:
        url: Of the service.
        token: Its own.
        tally: To tell.
        seed: Of what it does.
    """

    def __init__(self, url: str, token: str, tally: Tally, seed: int) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v2", headers={"Authorization": f"Bearer {token}"})
        self._address, self._token, self._tally = httpx.URL(url), token, tally
        self._random = random.Random(seed)
        self.left_open: list[str] = []

    def run(self, end: float) -> None:
        """Play and misbehave until then."""
        with self._http:
            while time.monotonic() < end:
                self._play(end)
            for fleet in self.left_open:
                self._call(f"/fleets/{fleet}/close", {})

    def _play(self, end: float) -> None:
        seed, num_steps = self._random.randrange(2**31), self._random.randrange(20, 200)
        made = self._call("/fleets", {"env": ENV, "num_envs": NUM_ENVS, "autoreset_mode": "SAME_STEP"})
        fleet, rng = made["fleet"], np.random.default_rng(seed)
        self.left_open.append(fleet)
        with envfleet.make(ENV, NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP") as local:
            reply = self._call(f"/fleets/{fleet}/reset", {"seq": 0, "seeds": seed})
            self._compare(fleet, reply["observations"], local.reset(seed=seed)[0])
            for seq in range(1, num_steps + 1):
                if time.monotonic() > end:
                    num_steps = seq - 1
                    break
                actions = rng.choice(3, NUM_ENVS, p=[0.9, 0.06, 0.04])
                if self._random.random() < 0.15:
                    self._misbehave(fleet, seq)
                reply = self._call(f"/fleets/{fleet}/step", {"seq": seq, "actions": actions})
                observations, rewards, *_ = local.step(actions)
                self._compare(fleet, reply["observations"], observations)
                self._compare(fleet, reply["rewards"], rewards)
        found = self._send("GET", f"/fleets/{fleet}", b"", _PATIENCE_S)
        if found is None or unpack(found.content)["seq"] != num_steps + 1:
            self._tally.fault(f"fleet {fleet} lost or doubled a step: {num_steps + 1} calls were made")
        if self._random.random() < 0.7:
            self._call(f"/fleets/{fleet}/close", {})
            self.left_open.remove(fleet)

    def _compare(self, fleet: str, found: Any, expected: Any) -> None:
        if not np.array_equal(found, expected):
            self._tally.fault(f"fleet {fleet} answered other numbers than a local one")

    def _call(self, path: str, body: dict[str, Any]) -> Any:
        """A call until it is answered; now and then with little patience, or twice."""
        packed = pack({**body, "key": secrets.token_bytes(12)})
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            timeout_s = self._random.choice((0.001, 0.005, 0.02)) if self._random.random() < 0.1 else _PATIENCE_S
            response = self._send("POST", path, packed, timeout_s)
            if response is None:
                self._tally.did("gave up")
                continue
            if response.status_code == 429:
                time.sleep(0.2)
                continue
            if response.status_code >= 300:
                raise SystemExit(f"{path}: {response.status_code} {response.text}")
            if self._random.random() < 0.05 and not path.endswith("close"):
                again = self._send("POST", path, packed, _PATIENCE_S)
                self._tally.did("asked twice")
                if again is not None and again.status_code < 300 and _seq(again) != _seq(response):
                    self._tally.fault(f"{path}: a call that was repeated was made again")
            return unpack(response.content)
        raise SystemExit(f"{path} was not answered in {_PATIENCE_S:g} s")

    def _send(self, method: str, path: str, body: bytes, timeout_s: float) -> httpx.Response | None:
        try:
            response = self._http.request(method, path, content=body, timeout=timeout_s)
        except httpx.TransportError:
            return None
        self._tally.note(response.status_code, response.text if response.status_code >= 500 else "")
        return response

    def _misbehave(self, fleet: str, seq: int) -> None:
        deed = self._random.choice(("garbage", "another step", "vanish", "episode garbage"))
        self._tally.did(deed)
        noise = self._random.randbytes(self._random.randrange(200))
        if deed == "garbage":
            self._send("POST", f"/fleets/{fleet}/{self._random.choice(('step', 'reset'))}", noise, _PATIENCE_S)
        elif deed == "another step":  # of a count that has passed, or is yet to come
            wrong = pack({"seq": seq + self._random.choice((-1, 1, 7)), "key": bytes(8), "actions": np.zeros(8)})
            self._send("POST", f"/fleets/{fleet}/step", wrong, _PATIENCE_S)
        elif deed == "episode garbage":
            text = json.dumps({"episode_actions": [{"episode_id": "x", "action": 1}] * 3})[: 5 + len(noise)]
            headers = {"User-Token": self._token, "Content-Type": "application/json"}
            url = str(self._address.join("/api/v1/episode/vectorized_step"))
            self._tally.note(self._http.post(url, content=text, headers=headers, timeout=_PATIENCE_S).status_code)
        else:
            self._vanish(fleet)

    def _vanish(self, fleet: str) -> None:
        """Half a request, and gone."""
        head = (
            f"POST /api/v2/fleets/{fleet}/step HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n"
            "Content-Length: 500\r\n\r\nhalf"
        )
        with socket.create_connection((self._address.host, self._address.port or 80), timeout=_PATIENCE_S) as broken:
            broken.sendall(head.encode()[: self._random.randrange(10, len(head))])


def _seq(response: httpx.Response) -> int:
    return int(unpack(response.content).get("seq", 0))


def make_tokens(url: str, admin: str, count: int) -> list[str]:
    """Tokens of as many users."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {admin}"}, timeout=_PATIENCE_S) as http:
        bodies = ({"name": f"soak {k}", "max_live_envs": 1_000_000} for k in range(count))
        return [http.post("/api/v2/admin/tokens", json=body).json()["token"] for body in bodies]


def figure(url: str, name: str) -> float:
    """A figure of `/metrics`."""
    found = re.search(rf"^envfleet_{name} (\S+)$", httpx.get(f"{url}/metrics", timeout=_PATIENCE_S).text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"/metrics has no envfleet_{name}")
    return float(found[1])


def soak(url: str, tokens: list[str], service: psutil.Process, *, clients: int, seconds: float) -> dict[str, Any]:
    """Let bad clients loose; what they did and what must not be."""
    tally, memory = Tally(), []
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(Client(url, tokens[k % len(tokens)], tally, k).run, end) for k in range(clients)]
        while time.monotonic() < end:
            time.sleep(seconds / 12)
            memory.append(service.memory_info().rss)
        for each in running:
            each.result(_PATIENCE_S + seconds)
    deadline = time.monotonic() + _SETTLE_S
    while (left := figure(url, "fleets")) and time.monotonic() < deadline:
        time.sleep(0.5)
    if left:
        tally.fault(f"{left:.0f} fleets are left in memory, all were closed")
    early, late = memory[len(memory) // 3], memory[-1]
    if late > early * (1.0 + ALLOWED_GROWTH):
        tally.fault(f"memory grew from {early / 2**20:.0f} to {late / 2**20:.0f} MiB")
    return {
        "answers": dict(sorted(tally.statuses.items())),
        "deeds": dict(tally.deeds),
        "memory_mib": [early / 2**20, late / 2**20],
        "faults": tally.faults[:20],
    }


def hold(url: str, tokens: list[str], service: psutil.Process, count: int) -> dict[str, float]:
    """Open many sessions of one engine, each of which was used; then step some of them."""
    before, begun = service.memory_info().rss, time.monotonic()

    def work(token: str) -> list[float]:
        try:
            return open_some(token)
        except BaseException:
            barrier.abort()  # the others wait for this one
            raise

    def open_some(token: str) -> list[float]:
        mine, taken = [], []
        with httpx.Client(base_url=f"{url}/api/v2", headers={"Authorization": f"Bearer {token}"}) as http:

            def call(path: str, **body: Any) -> Any:
                packed = pack({**body, "key": secrets.token_bytes(8)})  # the same in all tries: it is made once
                for _ in range(60):
                    with contextlib.suppress(httpx.TransportError):
                        response = http.post(path, content=packed, timeout=300.0)
                        if response.status_code != 429:
                            response.raise_for_status()
                            return unpack(response.content)
                raise SystemExit(f"{path} was not answered in 60 tries")

            for _ in range(max(1, count // len(tokens))):
                mine.append(call("/fleets", env=ENV, num_envs=1)["fleet"])
                call(f"/fleets/{mine[-1]}/reset", seq=0)
            barrier.wait(3600.0)
            for fleet in mine[:: max(1, len(mine) // 10)]:
                start = time.perf_counter()
                call(f"/fleets/{fleet}/step", seq=1, actions=np.zeros(1, np.int64))
                taken.append(time.perf_counter() - start)
        return taken

    barrier = threading.Barrier(len(tokens) + 1)
    with ThreadPoolExecutor(len(tokens)) as pool:
        opened = [pool.submit(work, token) for token in tokens]
        try:
            barrier.wait(3600.0)
        except threading.BrokenBarrierError:
            errors = (each.exception() for each in opened)
            raise next(each for each in errors if not isinstance(each, threading.BrokenBarrierError | None)) from None
        held, opening_s, after = figure(url, "fleets"), time.monotonic() - begun, service.memory_info().rss
        taken = [each for some in opened for each in some.result(3600.0)]
    p50, p99 = np.percentile(taken, [50, 99]) * 1e3
    return {
        "sessions": held,
        "opening_s": opening_s,
        "kib_each": (after - before) / 1024 / max(held, 1.0),
        "step_p50_ms": float(p50),
        "step_p99_ms": float(p99),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the soak")
    parser.add_argument("--clients", type=int, default=12, help="of the soak")
    parser.add_argument("--sessions", type=int, default=10_000, help="to hold; 0 for none")
    parser.add_argument("--timed", type=int, nargs="*", default=[1, 8, 32], help="clients whose requests are timed")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    print(f"{found['cores']} cores, load {found['load']:.1f} before it began")
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as (url, admin, service):
        tokens = make_tokens(url, admin, TOKENS)
        if args.seconds > 0:
            found["soak"] = soak(url, tokens, service, clients=args.clients, seconds=args.seconds)
            print(f"soak of {args.seconds:g} s, {args.clients} clients: {json.dumps(found['soak'], indent=2)}")
        for count in args.timed:
            row = latencies(url, admin, count, num_envs=64, seconds=2.0)
            found.setdefault("latency", {})[count] = row
            print(f"{count:3} clients: p50 {row['p50_ms']:.1f} ms, p99 {row['p99_ms']:.1f} ms")
        if args.sessions:
            found["held"] = hold(url, tokens, service, args.sessions)
            print("held: " + ", ".join(f"{name} {value:,.1f}" for name, value in found["held"].items()))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2), encoding="utf-8")
    if found.get("soak", {}).get("faults"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
