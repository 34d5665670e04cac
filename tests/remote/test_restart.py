"""A service that is killed and started again in the middle of a run: its clients notice nothing but the time."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tests.remote.conftest import TURBOFAN
from tests.service.serving import Command

import envfleet

pytestmark = pytest.mark.timeout(110)

NUM_ENVS, NUM_STEPS, KILL = 6, 24, 9


def test_a_run_goes_on_bit_by_bit_when_the_service_is_killed_and_started_again(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'service.db'}"
    rng = np.random.default_rng(0)
    actions = rng.choice([0, 0, 0, 0, 0, 1, 2], (NUM_STEPS, NUM_ENVS))
    started: list[Command] = []

    def start_again(port: int) -> None:
        started.append(Command(database, port=port))

    with Command(database) as service:
        token = service.read_token()
        with (
            envfleet.make(TURBOFAN, NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP") as local,
            envfleet.connect(service.url, TURBOFAN, NUM_ENVS, token=token, autoreset_mode="SAME_STEP") as remote,
        ):
            np.testing.assert_array_equal(remote.reset(seed=4)[0], local.reset(seed=4)[0])
            for k in range(NUM_STEPS):
                if k == KILL:
                    service.kill()
                    starter = threading.Thread(target=start_again, args=(service.port,))
                    starter.start()
                found, expected = remote.step(actions[k]), local.step(actions[k])
                for one, other in zip(found[:4], expected[:4], strict=True):
                    np.testing.assert_array_equal(one, other)
                np.testing.assert_array_equal(remote.episode_returns, local.episode_returns)
            assert remote.stats().retries > 0
            starter.join()
    started[0].kill()
