"""Fleets behind a service on this machine: the fleet protocol against the episode protocol, and against a local fleet.

    python -m benchmarks.remote [--seconds 2] [--num-envs 4 64 1024 16384] [--clients 1 8 32] [--json FILE]

One service (`envfleet serve`, SQLite on disk) answers all. The contenders take turns in every round, and the ratios are
of the same round; the median of the rounds is shown. Both ends share the cores. Where others use them, too, look at the
CPU time: what client and service together spend on a step of all engines, in milliseconds, which waiting for a core
does not change.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

import envfleet

ENV, FLOOR = "envfleet/Turbofan-v0", 5.0
_START_S = 180.0


@contextlib.contextmanager
def serve(folder: Path, *options: str) -> Iterator[tuple[str, str, psutil.Process]]:
    """`envfleet serve` with options; yields its address, a token and its process."""
    command = [
        sys.executable,
        "-m",
        "envfleet.cli",
        "serve",
        "--port",
        "0",
        "--max-live-envs",
        "1000000",
        "--database",
        f"sqlite:///{folder}/db",
        *options,
    ]
    log = folder / "log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + _START_S
            while not (found := re.search(r"at (http://\S+)[\s\S]*once: (\S+)", log.read_text())):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the service did not start:\n{log.read_text()}")
                time.sleep(0.1)
            yield found[1], found[2], psutil.Process(process.pid)
        finally:
            process.terminate()


class Json:
    """The episode protocol: one request for all engines, those that ended are reset by another."""

    def __init__(self, url: str, token: str, num_envs: int) -> None:
        self._http = httpx.Client(base_url=f"{url}/api/v1", headers={"User-Token": token}, timeout=300.0)
        self._http.post("/session/create")
        body = {"env_config": {"env_type": "DegradationEnv", "step_size": 10}, "num_envs": num_envs}
        self._ids = self._post("/vectorized/episodes/create", body)["episode_ids"]

    def _post(self, path: str, body: Any) -> Any:
        response = self._http.post(path, json=body)
        response.raise_for_status()
        return response.json()

    def step(self, actions: Any) -> None:
        asked = [
            {"episode_id": each, "action": action, "step_size": 10, "return_all_states": True}
            for each, action in zip(self._ids, actions.tolist(), strict=True)
        ]
        reply = self._post("/episode/vectorized_step", {"episode_actions": asked})
        for observation in reply["observations"]:
            np.asarray(observation, np.float32)
        ended = [k for k, flag in enumerate(reply["terminateds"]) if flag or reply["truncateds"][k]]
        if ended:
            body = {"episode_ids": [self._ids[k] for k in ended], "seeds": [None] * len(ended)}
            for k, new in zip(ended, self._post("/episode/vectorized_reset", body)["new_episode_ids"], strict=True):
                self._ids[k] = new or self._ids[k]

    def close(self) -> None:
        self._http.close()


def cpu_s(service: psutil.Process) -> float:
    """Seconds that this process and the service have computed."""
    times = service.cpu_times()
    return time.process_time() + times.user + times.system


def drive(step: Callable[[Any], Any], num_envs: int, seconds: float, service: psutil.Process) -> tuple[float, float]:
    """Steps of sub-environments per second, and seconds of CPU time per step of all of them."""
    rng = np.random.default_rng(0)
    actions = rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2], (64, num_envs))
    step(actions[0])
    begun, begun_cpu_s, count = time.perf_counter(), cpu_s(service), 0
    while time.perf_counter() - begun < seconds:
        step(actions[count % 64])
        count += 1
    return count * num_envs / (time.perf_counter() - begun), (cpu_s(service) - begun_cpu_s) / count


def compare(
    url: str, token: str, num_envs: int, service: psutil.Process, *, seconds: float, rounds: int
) -> dict[str, float]:
    """The three ways to step, in turns."""
    rates: dict[str, list[float]] = {"local": [], "fleet": [], "json": []}
    costs: dict[str, list[float]] = {"local": [], "fleet": [], "json": []}
    remote = envfleet.connect(url, ENV, num_envs, token=token, autoreset_mode="SAME_STEP", timeout_s=300.0)
    local = envfleet.make(ENV, num_envs, backend="kernel", autoreset_mode="SAME_STEP")
    with remote, local, contextlib.closing(Json(url, token, num_envs)) as old:
        remote.reset(seed=0)
        local.reset(seed=0)
        for _ in range(rounds):
            for name, contender in (("local", local), ("fleet", remote), ("json", old)):
                rate, cost_s = drive(contender.step, num_envs, seconds, service)
                rates[name].append(rate)
                costs[name].append(cost_s * 1e3)
    found = {name: float(np.median(each)) for name, each in rates.items()}
    for over in ("json", "local"):
        found[f"fleet/{over}"] = float(np.median(np.divide(rates["fleet"], rates[over])))
    for name, each in costs.items():
        found[f"{name}_cpu_ms"] = float(np.median(each))
    found["cpu json/fleet"] = float(np.median(np.divide(costs["json"], costs["fleet"])))
    return found


def latencies(url: str, token: str, num_clients: int, *, num_envs: int, seconds: float) -> dict[str, float]:
    """Milliseconds of a step's request with several clients at once."""
    taken: list[float] = []
    start = threading.Barrier(num_clients)

    def work(seed: int) -> None:
        with envfleet.connect(url, ENV, num_envs, token=token, autoreset_mode="SAME_STEP") as fleet:
            fleet.reset(seed=seed)
            mine = []
            start.wait()
            end = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < end:
                fleet.step(np.zeros(num_envs, np.int64))
                mine.append(time.perf_counter() - begun)
            taken.extend(mine)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(num_clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p99 = np.percentile(taken, [50, 99]) * 1e3
    return {"p50_ms": float(p50), "p99_ms": float(p99), "requests_per_s": len(taken) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-envs", type=int, nargs="*", default=[4, 64, 1024, 16384])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count(), "steps_per_s": {}, "latency": {}}
    print(f"{found['cores']} cores, load {found['load']:.1f} before it began")
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder)) as (url, token, service):
        print(
            f"{'engines':>8} {'local/s':>12} {'fleet/s':>12} {'JSON/s':>10} {'fleet/JSON':>11} {'fleet/local':>12} "
            f"{'fleet CPU ms':>13} {'JSON CPU ms':>12} {'ratio':>7}"
        )
        for num_envs in args.num_envs:
            row = compare(url, token, num_envs, service, seconds=args.seconds, rounds=args.rounds)
            found["steps_per_s"][num_envs] = row
            note = "" if num_envs != 64 or row["fleet/json"] >= FLOOR else f"   below the floor of {FLOOR:g}"
            print(
                f"{num_envs:8,} {row['local']:12,.0f} {row['fleet']:12,.0f} {row['json']:10,.0f} "
                f"{row['fleet/json']:10.1f}x {row['fleet/local']:12.4f} "
                f"{row['fleet_cpu_ms']:13.2f} {row['json_cpu_ms']:12.2f} {row['cpu json/fleet']:6.1f}x{note}"
            )
        print(f"{'clients':>8} {'p50 ms':>9} {'p99 ms':>9} {'requests/s':>11}   (64 engines each)")
        for count in args.clients:
            row = latencies(url, token, count, num_envs=64, seconds=args.seconds)
            found["latency"][count] = row
            print(f"{count:8} {row['p50_ms']:9.1f} {row['p99_ms']:9.1f} {row['requests_per_s']:11.0f}")
    found["load_after"] = os.getloadavg()[0]
    print(f"load {found['load_after']:.1f} when it ended")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
