"""OpenEnv's own server and client, around an environment that computes nothing.

One message has the actions of all sub-environments, as OpenEnv's protocol knows one environment per WebSocket.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
from tests.openenv_package import load


def run_server(port: int, num_envs: int) -> None:
    """Serve until the process is ended."""
    import uvicorn

    core = load("openenv.core.env_server")

    class Acts(core.Action):  # type: ignore[name-defined,misc]  # the package is imported at run time
        actions: list[int]

    class Seen(core.Observation):  # type: ignore[name-defined,misc]
        rows: list[list[float]]
        rewards: list[float]
        terminated: list[bool]
        truncated: list[bool]

    rng = np.random.default_rng(0)
    fields = {"rows": rng.random((num_envs, 9), np.float32).tolist(), "rewards": rng.random(num_envs).tolist()}
    fields |= dict.fromkeys(("terminated", "truncated"), [False] * num_envs)

    class Nothing(core.Environment):  # type: ignore[name-defined,misc]
        def reset(self, seed: int | None = None) -> Seen:
            return Seen(**fields)

        def step(self, action: Acts) -> Seen:
            return Seen(**fields)

        @property
        def state(self) -> Any:
            return core.State()

    app = core.create_fastapi_app(Nothing, Acts, Seen)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical")


@contextlib.contextmanager
def open_client(num_envs: int) -> Iterator[tuple[Callable[[Any], None], psutil.Popen]]:
    """Start the server; yield the step of OpenEnv's client, which takes all actions, and the server's process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    server = psutil.Popen([sys.executable, "-m", "benchmarks.openenv_side", str(port), str(num_envs)])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("OpenEnv's server did not start") from None
                time.sleep(0.1)
        client = load("openenv.core.generic_client").GenericEnvClient(base_url=f"http://127.0.0.1:{port}")
        with client.sync() as env:
            env.reset()

            def step(actions: Any) -> None:
                seen = env.step({"actions": actions.tolist()}).observation
                for name, dtype in (("rows", np.float32), ("rewards", np.float64), ("terminated", bool)):
                    np.array(seen[name], dtype)
                np.array(seen["truncated"], bool)

            yield step, server
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    run_server(*map(int, sys.argv[1:]))
