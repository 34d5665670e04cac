"""A fleet on Ray returns the results of a serial one, over shared memory and TCP."""

from __future__ import annotations

import functools
import os
import signal
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conftest import SERIAL
from tests.ray.conftest import FAR, MIXED, NEAR, RayBackend
from tests.waiting import PATIENCE_S

from envfleet.errors import FleetBroken, WorkerDied
from envfleet.testing import CASES, CHECKS, InfoEnv, check_backend
from envfleet.testing.compare import mismatches
from envfleet.testing.envs import SpaceEnv

NUM_ENVS = 5  # over two workers of a mixed fleet: an uneven split
CHECKED = [case for case in CASES if case.name == "space-graph"]
SKIPPED = {name for name in CHECKS if name not in ("rollout", "infos-changing", "infos-mixed")}


def build(kind: str, index: int) -> gymnasium.Env[Any, Any]:
    """Build one with numbers as observations and infos of a kind, or one that observes and takes graphs."""
    length = 3 + index % 3
    return SpaceEnv("graph", "graph", length) if kind == "graph" else InfoEnv(kind, index, length=length)


class Subject(NamedTuple):
    """A backend with its environments and mode; every mode once, since workers apply it on any transport."""

    way: RayBackend
    workers: int
    mode: AutoresetMode
    kind: str
    note: str
    places: tuple[str, ...]

    def make(self, backend: Any, **options: Any) -> Any:
        env_fns = [functools.partial(build, self.kind, index) for index in range(NUM_ENVS)]
        return backend(env_fns, autoreset_mode=self.mode, **options)


HERE = "this machine, shared memory"
SUBJECTS = {
    "shared-memory": Subject(NEAR, 1, AutoresetMode.NEXT_STEP, "numbers", "1 by shared memory", (HERE,)),
    "mixed": Subject(
        MIXED, 2, AutoresetMode.SAME_STEP, "changing", "1 by shared memory, 1 by TCP",
        (HERE, "TCP (no shared memory: ConnectionRefusedError: the owner closed the connection)"),
    ),
    "tcp": Subject(FAR, 1, AutoresetMode.DISABLED, "graph", "1 by TCP", ("shared_memory=False",)),
}  # fmt: skip


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


@pytest.fixture(scope="module")
def fleet(subject: Subject) -> Iterator[Any]:
    """One for the tests of this module in their order, of which the last kills a worker."""
    with subject.make(subject.way, workers=subject.workers, batch_size=2) as fleet:
        yield weakref.proxy(fleet)  # what pytest keeps of a test shall not keep the fleet


def record(fleet: Any) -> list[Any]:
    """Everything a fleet can be asked, in one life."""
    steps: list[Any] = []
    fleet.action_space.seed(1)

    def act(count: int) -> None:
        for _ in range(count):
            if fleet.autoreset_mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                steps.append(fleet.reset_envs(fleet.terminated_indices))
            observations, rewards, terminated, truncated, infos = fleet.step(fleet.action_space.sample())
            steps.append((observations, rewards, terminated, truncated, infos, fleet.episode_ids.copy()))

    steps.append(fleet.reset(seed=3))
    act(6)
    steps.append(fleet.reset(options={"reset_mask": np.arange(NUM_ENVS) % 2 == 0}))
    states = fleet.get_state()
    act(5)
    steps.append(fleet.set_state(states))
    act(5)
    steps.append(fleet.reset_envs([1, 3], seeds=[7, 8]))
    steps.append(fleet.call("count"))
    fleet.set_attr("count", list(range(NUM_ENVS)))
    steps.append(fleet.get_attr("count"))
    act(3)
    return steps


def test_the_way_is_told(fleet: Any, subject: Subject) -> None:
    assert subject.note in str(fleet)
    for worker, place in zip(fleet.stats().workers, subject.places, strict=True):
        assert place in worker.place


def test_identical_to_serial(fleet: Any, subject: Subject) -> None:
    with subject.make(SERIAL) as serial:
        assert mismatches(record(serial), record(fleet)) == []


def test_rows_in_flight(fleet: Any, subject: Subject) -> None:
    """Each sub-environment returns what it would in steps of all."""
    count = 2 if subject.mode == AutoresetMode.DISABLED else 20  # no episode ends in two steps
    with subject.make(SERIAL) as serial:
        for one in (serial, fleet):
            one.reset(seed=0)
        fleet.set_state(serial.get_state())
        actions = [serial.action_space.sample() for _ in range(count)]
        expected = [serial.step(one)[0] for one in actions]
    seen = [0] * NUM_ENVS
    fleet.send(actions[0])
    while min(seen) < count:
        batch = fleet.recv(timeout_s=PATIENCE_S)
        assert len(batch.env_indices) <= 2
        for index, observation in zip(batch.env_indices.tolist(), batch.observations, strict=True):
            assert mismatches(expected[seen[index]][index], observation) == []
            seen[index] += 1
        again = [index for index in batch.env_indices.tolist() if seen[index] < count]
        if again:
            rows = [actions[seen[index]][index] for index in again]
            fleet.send(tuple(rows) if subject.kind == "graph" else np.array(rows), again)
    assert seen == [count] * NUM_ENVS


def test_killed_while_idle(fleet: Any) -> None:
    fleet.reset(seed=0)
    worker = fleet.plan.num_workers - 1
    os.kill(fleet.stats().workers[worker].pid, signal.SIGKILL)
    actions = fleet.action_space.sample()
    with pytest.raises(WorkerDied, match="killed by SIGKILL") as caught:
        fleet.step(actions)
    lost = (caught.value.worker, caught.value.env_indices, caught.value.exitcode)
    assert lost == (worker, (3, 4) if worker else (0, 1, 2, 3, 4), -9)
    with pytest.raises(FleetBroken):
        fleet.step(actions)


@pytest.mark.slow
@pytest.mark.parametrize("mode", AutoresetMode)
def test_conforms(mode: AutoresetMode) -> None:
    """Checks that depend on the transport; the whole suite takes many minutes, as Ray starts slowly."""
    copies = [mode is AutoresetMode.SAME_STEP]
    check_backend(NEAR, cases=CHECKED, autoreset_modes=[mode], copy_modes=copies, skip=SKIPPED)
