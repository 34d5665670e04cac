"""What a fleet on Ray returns is what a serial one returns, whichever way data goes."""

from __future__ import annotations

import functools
import socket
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL
from tests.ray.conftest import FAR, NEAR, RayBackend

from envfleet.testing import CASES, CHECKS, CountingEnv, InfoEnv, check_backend
from envfleet.testing.compare import mismatches
from envfleet.workers.transports.ray.transport import RayTransport

NUM_ENVS = 5  # over two workers: an uneven split
CHECKED = [case for case in CASES if case.name == "space-graph"]
SKIPPED = {name for name in CHECKS if name not in ("rollout", "infos-changing", "infos-mixed")}
MODES = tuple(AutoresetMode)


def build(index: int) -> gymnasium.Env[Any, Any]:
    return InfoEnv("numbers", index, length=3 + index % 3)


def record(backend: Any, mode: AutoresetMode) -> list[Any]:
    """Everything a fleet can be asked, in one life."""
    found: list[Any] = []
    rng = np.random.default_rng(1)
    with backend([functools.partial(build, index) for index in range(NUM_ENVS)], autoreset_mode=mode) as fleet:

        def act(count: int) -> None:
            for _ in range(count):
                if mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                    found.append(fleet.reset_envs(fleet.terminated_indices))
                actions = rng.integers(2, size=NUM_ENVS)
                observations, rewards, terminated, truncated, infos = fleet.step(actions)
                found.append((observations, rewards, terminated, truncated, infos, fleet.episode_ids.copy()))

        found.append(fleet.reset(seed=3))
        act(6)
        found.append(fleet.reset(options={"reset_mask": np.arange(NUM_ENVS) % 2 == 0}))
        states = fleet.get_state()
        act(5)
        found.append(fleet.set_state(states))
        act(5)
        found.append(fleet.reset_envs([1, 3], seeds=[7, 8]))
        found.append(fleet.call("count"))
        fleet.set_attr("count", list(range(NUM_ENVS)))
        found.append(fleet.get_attr("count"))
        act(3)
    return found


# Of TCP in every mode, test_far.py has the same without Ray.
@pytest.mark.parametrize(("way", "mode"), [*((NEAR, mode) for mode in MODES), (FAR, MODES[1])], ids=str)
def test_identical_to_serial(way: RayBackend, mode: AutoresetMode) -> None:
    expected, found = record(SERIAL, mode), record(way, mode)
    assert mismatches(expected, found) == []


@pytest.mark.parametrize("mode", [MODES[0], *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[1:])])
def test_conforms(mode: AutoresetMode) -> None:
    """What depends on the way data goes; with Ray, which starts slowly, the whole suite takes many minutes."""
    copies = [mode is AutoresetMode.SAME_STEP]
    check_backend(NEAR, cases=CHECKED, autoreset_modes=[mode], copy_modes=copies, skip=SKIPPED)


def test_two_ways_in_one_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot reach the driver's memory is reached over TCP, beside one that can; rows in flight."""
    welcome = RayTransport._welcome

    def turn_away(self: RayTransport, ticket: int, peer: socket.socket, proof: bytes) -> None:
        if ticket == 1 and peer.family == socket.AF_UNIX:
            peer.close()
        else:
            welcome(self, ticket, peer, proof)

    monkeypatch.setattr(RayTransport, "_welcome", turn_away)
    env_fns = [functools.partial(CountingEnv, 50, vary=True)] * 4
    with NEAR(env_fns, batch_size=2) as fleet, SERIAL(env_fns) as serial:
        assert "1 by shared memory, 1 by TCP" in repr(fleet)
        ways = [worker.place for worker in fleet.stats().workers]
        assert ways[0] == "this machine, shared memory"
        assert "TCP (ConnectionRefusedError: the owner closed)" in ways[1]
        np.testing.assert_array_equal(fleet.reset(seed=0)[0], serial.reset(seed=0)[0])
        actions = np.zeros(4, np.int64)
        expected = [serial.step(actions)[0] for _ in range(20)]
        seen = [0] * 4
        fleet.send(actions)
        for _ in range(40):
            batch = fleet.recv(timeout_s=20)
            for index, observation in zip(batch.env_indices, batch.observations, strict=True):
                np.testing.assert_array_equal(observation, expected[seen[index]][index])
                seen[index] += 1
            again = [index for index in batch.env_indices.tolist() if seen[index] < 20]
            if again:
                fleet.send(actions[: len(again)], again)
        assert seen == [20] * 4


def test_shared_data_and_large_observations() -> None:
    """Shared arrays are read-only copies on other nodes."""
    table = np.arange(1000.0)
    with FAR([_TableEnv] * 2, workers=1, shared={"table": table}) as fleet:
        observations, _ = fleet.reset(seed=0)
        assert observations.shape == (2, 500, 100)
        assert fleet.step(np.array([3, 999]))[1].tolist() == [3.0, 999.0]
        assert fleet.call("is_writeable") == (False, False)


class _TableEnv(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (500, 100), np.float64)
    action_space = gymnasium.spaces.Discrete(1000)

    def __init__(self, table: Any) -> None:
        self._table = table

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros((500, 100)), {}

    def step(self, action: Any) -> Any:
        return np.zeros((500, 100)), float(self._table[action]), False, False, {}

    def is_writeable(self) -> bool:
        return bool(self._table.flags.writeable)
