"""A service that is killed and started again in the middle of a run: its clients notice nothing but the time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.remote.conftest import TURBOFAN
from tests.service.serving import Command
from tests.waiting import PATIENCE_S

import envfleet

NUM_ENVS, NUM_STEPS, KILL = 6, 24, 9


def step_all(remote: Any, local: Any, actions: NDArray[np.int64]) -> None:
    actual, expected = remote.step(actions), local.step(actions)
    for one, other in zip(actual[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(one, other)


def step_in_parts(remote: Any, local: Any, actions: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
    """Three calls one behind the other, of which the service makes one when it is killed."""
    for part in np.split(rows, 3):
        remote.send(actions[part], part)
    expected = local.step(actions)
    seen: list[int] = []
    while len(seen) < NUM_ENVS:
        batch = remote.recv()
        seen += batch.env_indices.tolist()
        for one, other in zip(batch[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(one, other[batch.env_indices])


def test_a_run_survives_a_killed_and_restarted_service(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'service.db'}"
    rng = np.random.default_rng(0)
    actions = rng.choice([0, 0, 0, 0, 0, 1, 2], (NUM_STEPS, NUM_ENVS))
    started: list[Command] = []

    def kill_and_start_again(service: Command) -> None:
        time.sleep(0.005)
        service.kill()
        started.append(Command(database, port=service.port))

    with Command(database) as service:
        token = service.read_token()
        with (
            envfleet.make(TURBOFAN, NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP") as local,
            envfleet.connect(
                service.url,
                TURBOFAN,
                NUM_ENVS,
                token=token,
                autoreset_mode="SAME_STEP",
                batch_size=4,
                patience_s=PATIENCE_S,
            ) as remote,
        ):
            np.testing.assert_array_equal(remote.reset(seed=4)[0], local.reset(seed=4)[0])
            for k in range(NUM_STEPS):
                if k == KILL:
                    starter = threading.Thread(target=kill_and_start_again, args=(service,))
                    starter.start()
                if k % 2:
                    step_in_parts(remote, local, actions[k], rng.permutation(NUM_ENVS))
                else:
                    step_all(remote, local, actions[k])
                np.testing.assert_array_equal(remote.episode_returns, local.episode_returns)
            starter.join()
            stats: Any = remote.stats()
            assert stats.retries > 0
    started[0].kill()
