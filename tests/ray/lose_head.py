"""Program with fleets on a cluster that loses its head; run by `test_head_lost.py`.

Prints one JSON object per attempt: its name and its outcome.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from ray.cluster_utils import Cluster
from tests.ray.conftest import FAR, HEAD, NEAR, no_actor_stays

import envfleet
from envfleet.testing import CountingEnv

ENV_FNS = [functools.partial(CountingEnv, 1000)] * 2


def attempt(what: str, action: Callable[[], Any]) -> None:
    try:
        action()
        outcome = "done"
    except Exception as error:  # noqa: BLE001 - any error is reported
        outcome = f"{type(error).__name__}: {error}"
    print(json.dumps({"what": what, "outcome": outcome}), flush=True)


def step(fleet: Any) -> None:
    fleet.step(np.zeros(2, np.int64))


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    head: Any = cluster.head_node  # Ray types it as what it is before the start
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.CRITICAL)
    fleets = {
        f"{way} {on_failure}": way(ENV_FNS, workers=1, on_failure=on_failure)
        for way, on_failure in ((NEAR, "restart"), (FAR, "raise"))
    }
    bystanders = {"tcp bystander": FAR(ENV_FNS, workers=1)}
    for fleet in (*fleets.values(), *bystanders.values()):
        fleet.reset(seed=0)
    pids = {name: fleet.stats().workers[0].pid for name, fleet in fleets.items()}  # which Ray may not report later
    for kind in ("gcs_server", "raylet"):
        for info in head.all_processes[kind]:
            os.kill(info.process.pid, signal.SIGKILL)
            info.process.wait()  # until then it still takes connections
    for name, fleet in {**bystanders, **fleets}.items():  # at once: without its raylet Ray ends actors sooner or later
        attempt(f"step {name}", functools.partial(step, fleet))
    for name, fleet in fleets.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[name], signal.SIGKILL)
        attempt(f"lost {name}", functools.partial(step, fleet))
        attempt(f"again {name}", functools.partial(step, fleet))
    attempt("make", lambda: envfleet.make(CountingEnv, 2, backend="ray"))
    for name, fleet in {**fleets, **bystanders}.items():
        attempt(f"close {name}", fleet.close)
    print(json.dumps({"what": "actors", "outcome": "gone" if no_actor_stays() else "left"}), flush=True)
    head.kill_all_processes(check_alive=False, allow_graceful=False)
    sys.stdout.flush()
    os._exit(0)  # Ray's own end would look for the head for five seconds


if __name__ == "__main__":
    main()
