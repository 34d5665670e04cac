"""A user who steps 64 engines next to another user whose requests are meant to freeze the service."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import numpy as np
from benchmarks.case import Record, Session
from benchmarks.remote import ENV, in_threads, latencies, serve

import envfleet
from envfleet.remote.codec import pack, unpack

_MIB = 2**20
_NIL = b"\xc0"
_TIMEOUT_S = 300.0
_DESCRIPTORS = 512
_WARM_UP_S = 2.0
Work = Callable[[str, str, Any], None]
"""Presses on a service: takes its URL, a token, and a queue for the statuses of answers."""


def _client(url: str, token: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {token}", "User-Token": token, "Content-Type": "application/msgpack"}
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S, limits=limits)


def _create(http: httpx.Client, num_envs: int) -> str:
    body = pack({"env": ENV, "num_envs": num_envs, "key": b"pressure" * 2, "autoreset_mode": "SAME_STEP"})
    fleet: str = unpack(http.post("/api/v2/fleets", content=body).raise_for_status().content)["fleet"]
    return fleet


def _post_forever(http: httpx.Client, path: str, body: bytes, answers: Any) -> None:
    while True:
        try:
            answers.put(http.post(path, content=body).status_code)
        except httpx.TransportError:  # refused before the body was sent
            answers.put(0)


def send_nil(size_bytes: int, url: str, token: str, answers: Any) -> None:
    """Send arrays of nil as steps of the largest fleet, by four clients; size 0 is the most that it accepts."""
    with _client(url, token) as http:
        path = f"/api/v2/fleets/{_create(http, 16_384)}/step"
        size_bytes = size_bytes or 16_384 * 3 * 16
        body = b"\x83\xa3seq\x00\xa3key" + pack(bytes(16)) + b"\xa7actions\xdd"
        body += (size_bytes - len(body) - 4).to_bytes(4, "big")
        body += _NIL * (size_bytes - len(body))
        in_threads(4, lambda _: _post_forever(http, path, body, answers))


def ask_unknown(url: str, token: str, answers: Any) -> None:
    """Step 30,000 episodes that do not exist, by four clients."""
    steps = [{"episode_id": f"x{k}", "action": 0} for k in range(30_000)]
    body = json.dumps({"episode_actions": steps}).encode()
    with _client(url, token) as http:
        http.headers["Content-Type"] = "application/json"
        in_threads(4, lambda _: _post_forever(http, "/api/v1/episode/vectorized_step", body, answers))


def send_halves(url: str, token: str, answers: Any) -> None:
    """Send all but the end of large bodies, over 100 connections at a time."""
    with _client(url, token) as http:
        fleet, address = _create(http, 16_384), httpx.URL(url)
    size_bytes = 16_384 * 3 * 16
    head = f"POST /api/v2/fleets/{fleet}/step HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    half = f"{head}Content-Length: {size_bytes}\r\n\r\n".encode() + bytes(size_bytes - 1)

    def work(_: int) -> None:
        while True:
            with contextlib.suppress(OSError), socket.create_connection((address.host, address.port or 80)) as one:
                one.settimeout(5.0)
                one.sendall(half)
                answers.put(int(one.recv(100).split()[1]))

    in_threads(100, work)


def take_descriptors(url: str, token: str, answers: Any) -> None:
    """Open more connections than the service has descriptors, again and again."""
    address = httpx.URL(url)
    while True:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for _ in range(2 * _DESCRIPTORS):
                stack.enter_context(socket.create_connection((address.host, address.port or 80), 10.0))
                answers.put(0)
            time.sleep(0.5)


def step_many(num_envs: int, url: str, token: str, answers: Any) -> None:
    """Step fleets by 32 clients as fast as they can."""
    actions = np.zeros(num_envs, np.int64)

    def work(seed: int) -> None:
        with envfleet.connect(url, ENV, num_envs, token=token, autoreset_mode="SAME_STEP", timeout_s=300.0) as fleet:
            fleet.reset(seed=seed)
            while True:
                fleet.step(actions)
                answers.put(200)

    in_threads(32, work)


WORKS: Mapping[str, Work | None] = {
    "nothing": None,
    "16 MiB of nil": functools.partial(send_nil, 16 * _MIB),
    "60 MiB of nil": functools.partial(send_nil, 60 * _MIB),
    "as much nil as is accepted": functools.partial(send_nil, 0),
    "30,000 unknown ids": ask_unknown,
    "half-sent bodies": send_halves,
    "connections": take_descriptors,
    "20,000 engines by 32 clients": functools.partial(step_many, 625),
}


def measure_pressure(session: Session, *, works: tuple[str, ...] = tuple(WORKS)) -> None:
    """Time the steps of one user while another user presses on the service."""
    limited = ("sh", "-c", f'ulimit -n {_DESCRIPTORS}; exec "$@"', "sh")
    with serve(prefix=limited) as served:
        with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {served.token}"}) as http:
            ann, bob = (
                http.post("/api/v2/admin/tokens", json={"name": name}).raise_for_status().json()["token"]
                for name in ("ann", "bob")
            )
        for name in works:
            session.progress(name)
            with _pressing(WORKS[name], served.url, bob) as statuses:
                p50, p99 = latencies(served.url, ann, 1, session.seconds)
            answers = ", ".join(f"{count:,} × {status or 'closed'}" for status, count in sorted(statuses.items()))
            notes = {"p99": f"{p99:.1f}", "answers to the other user": answers or "–"}
            notes["memory of the service"] = f"{served.process.memory_info().rss / _MIB:,.0f} MiB"
            session.add(Record(f"beside {name}", "another user", [p50], notes))


@contextlib.contextmanager
def _pressing(work: Work | None, url: str, token: str) -> Iterator[collections.Counter[int]]:
    """Have a process press; yield the statuses of answers that it got, complete at the end."""
    statuses: collections.Counter[int] = collections.Counter()
    if work is None:
        yield statuses
        return
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=work, args=(url, token, answers), daemon=True)
    process.start()
    try:
        statuses[answers.get(timeout=_TIMEOUT_S)] += 1
        time.sleep(_WARM_UP_S)
        yield statuses
    finally:
        for _ in range(answers.qsize()):
            statuses[answers.get()] += 1
        process.kill()
        process.join()
