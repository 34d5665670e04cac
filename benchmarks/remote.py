"""Fleets of a service on this machine: the fleet protocol, the episode protocol, and a local fleet."""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from benchmarks.case import Record, Session

import envfleet

ENV = "envfleet/Turbofan-v0"


class Served:
    """`envfleet serve` on this machine, which can be killed and started again at the same address.

    Args:
        folder: Folder of the log and, if none is given, of the database.
        *options: Options of the command.
        database: URL of an empty database; SQLite's if it is empty.
        prefix: Words before the command.

    Attributes:
        url: Address.
        token: Token of the administrator.
        process: First process.
    """

    def __init__(self, folder: str, *options: str, database: str = "", prefix: Sequence[str] = ()) -> None:
        self._log, self.url, self.token = Path(folder, "log"), "", ""
        self._command = [*prefix, sys.executable, "-m", "envfleet.cli", "serve", "--max-live-envs", "1000000"]
        self._command += ["--database", database or f"sqlite:///{folder}/db", *options]
        self.start()

    def start(self) -> None:
        """Start it, at a free port the first time."""
        port = self.url.rpartition(":")[2] or "0"
        with self._log.open("w") as out:
            self.process = psutil.Popen([*self._command, "--port", port], stdout=out, stderr=subprocess.STDOUT)
        deadline_s = time.monotonic() + 180.0
        while "For others" not in (text := self._log.read_text()):
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise SystemExit(f"the service did not start:\n{text}")
            time.sleep(0.1)
        self.url = re.findall(r"at (http://\S+)", text)[0]
        self.token = (re.findall(r"once: (\S+)", text) or [self.token])[0]

    def stop(self) -> None:
        """End it, and wait for that."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    @property
    def log(self) -> str:
        """What it printed since the last start."""
        return self._log.read_text()


@contextlib.contextmanager
def serve(*options: str, database: str = "", prefix: Sequence[str] = ()) -> Iterator[Served]:
    """Run a service; arguments are those of `Served`."""
    with tempfile.TemporaryDirectory() as folder:
        served = Served(folder, *options, database=database, prefix=prefix)
        try:
            yield served
        finally:
            served.stop()


class EpisodeClient:
    """The episode protocol: one request steps all engines, another one resets those that ended."""

    def __init__(self, url: str, token: str, num_envs: int) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers={"User-Token": token}, timeout=300.0)
        self._http.post("/session/create")
        body = {"env_config": {"env_type": "DegradationEnv", "step_size": 10}, "num_envs": num_envs}
        self._ids = self._post("/vectorized/episodes/create", body)["episode_ids"]
        self.close = self._http.close

    def _post(self, path: str, body: Any) -> Any:
        response = self._http.post(path, json=body)
        response.raise_for_status()
        return response.json()

    def step(self, actions: Any) -> None:
        steps = [
            {"episode_id": each, "action": action, "step_size": 10, "return_all_states": True}
            for each, action in zip(self._ids, actions.tolist(), strict=True)
        ]
        reply = self._post("/episode/vectorized_step", {"episode_actions": steps})
        for observation in reply["observations"]:
            np.asarray(observation, np.float32)
        ended = [k for k, flag in enumerate(reply["terminateds"]) if flag or reply["truncateds"][k]]
        if ended:
            body = {"episode_ids": [self._ids[k] for k in ended], "seeds": [None] * len(ended)}
            for k, new in zip(ended, self._post("/episode/vectorized_reset", body)["new_episode_ids"], strict=True):
                self._ids[k] = new or self._ids[k]


def compare_protocols(
    session: Session,
    *,
    sizes: tuple[int, ...] = (4, 64, 1024, 16_384),
    clients: tuple[int, ...] = (1, 8, 32),
    openenv: bool = False,
) -> None:
    """Compare the fleet protocol of a service with the episode protocol, in CPU time of both ends.

    The notes are transitions per second. Both ends share the cores, so CPU time is compared, which does not depend on
    waiting for a core. The last settings are milliseconds of wall time of a step of 64 engines with several clients
    at once. With `openenv`, OpenEnv's own server and client exchange as many numbers, without engines.
    """
    with serve() as served:
        url, token = served.url, served.token
        for num_envs in sizes:
            remote = envfleet.connect(url, ENV, num_envs, token=token, autoreset_mode="SAME_STEP", timeout_s=300.0)
            local = envfleet.make(ENV, num_envs, backend="kernel", autoreset_mode="SAME_STEP")
            with contextlib.ExitStack() as stack:
                for fleet in (remote, local):
                    stack.enter_context(fleet)
                episodes = stack.enter_context(contextlib.closing(EpisodeClient(url, token, num_envs)))
                remote.reset(seed=0)
                local.reset(seed=0)
                rates: dict[str, list[float]] = {}

                def measure(
                    name: str, step: Any, num_envs: int = num_envs, rates: Any = rates, service: Any = served.process
                ) -> float:
                    rate, cost_ms = _drive(step, num_envs, session.seconds, service)
                    rates.setdefault(name, []).append(rate)
                    return cost_ms

                steps = {"fleet protocol": remote.step, "episode protocol": episodes.step, "local fleet": local.step}
                contenders = {name: functools.partial(measure, name, step) for name, step in steps.items()}
                notes = {name: functools.partial(_rate_note, rates, name) for name in steps}
                if openenv:
                    from benchmarks.openenv_side import open_client

                    step, server = stack.enter_context(open_client(num_envs))
                    contenders["OpenEnv"] = functools.partial(measure, "OpenEnv", step, service=server)
                session.compare(f"{num_envs:,} engines", contenders, notes)
        for count in clients:
            p50, p99 = latencies(url, token, count, session.seconds)
            name = f"64 engines, {count} clients, wall time"
            session.add(Record(name, "fleet protocol", [p50], {"p99": f"{p99:.1f}"}))


def _rate_note(rates: dict[str, list[float]], name: str) -> dict[str, str]:
    return {"transitions/s": f"{np.median(rates[name]):,.0f}"}


def _drive(step: Any, num_envs: int, seconds: float, service: psutil.Process) -> tuple[float, float]:
    """Return transitions per second, and milliseconds of CPU time of this process and the service per call."""

    def cpu_s() -> float:
        times = service.cpu_times()
        return time.process_time() + float(times.user + times.system)

    actions = np.random.default_rng(0).choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], (64, num_envs))
    step(actions[0])
    start_s, start_cpu_s, count = time.perf_counter(), cpu_s(), 0
    while time.perf_counter() - start_s < seconds:
        step(actions[count % 64])
        count += 1
    return count * num_envs / (time.perf_counter() - start_s), 1e3 * (cpu_s() - start_cpu_s) / count


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Run a function with the numbers from 0, each in a thread, until all have returned."""
    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def latencies(url: str, token: str, num_clients: int, seconds: float) -> tuple[float, float]:
    """Return the median and the 99th percentile of the milliseconds of a step of 64 engines."""
    times: list[float] = []
    barrier = threading.Barrier(num_clients)

    def work(seed: int) -> None:
        with envfleet.connect(url, ENV, 64, token=token, autoreset_mode="SAME_STEP") as fleet:
            fleet.reset(seed=seed)
            barrier.wait()
            end_s = time.perf_counter() + seconds
            while (start_s := time.perf_counter()) < end_s:
                fleet.step(np.zeros(64, np.int64))
                times.append(time.perf_counter() - start_s)

    in_threads(num_clients, work)
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return float(p50), float(p99)
