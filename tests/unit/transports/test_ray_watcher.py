"""What looks after the workers of a node keeps nothing of them."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from envfleet.core.arrays import ArraysSpec, FleetArrays, Progress
from envfleet.core.memory import SharedBlock

pytest.importorskip("ray")

from envfleet.transports.ray.watcher import Watched, Watcher

SPACE = gym.spaces.MultiBinary(1000)
SPEC = ArraysSpec(SPACE, gym.spaces.Discrete(2), 3, 2, has_finals=False, has_columns=False)


def maps_and_descriptors() -> tuple[int, int]:
    return Path("/proc/self/maps").read_text().count("envfleet-watched"), len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """Those that came to this process, which is the worker here."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGUSR2, before)


def test_watcher_keeps_nothing_of_a_worker(interrupts: list[int]) -> None:
    """Also not of one that is gone, whose arrays would stay in memory until the fleet is closed."""
    watcher = Watcher()
    before = maps_and_descriptors()
    for count in range(3):  # one worker after the other, in the same place
        with SharedBlock.create(SPEC.block_layout().size_bytes, label="envfleet-watched") as block:
            arrays = FleetArrays.bind(SPEC, block.buffer)
            arrays.progress[1, Progress.STEPS] = count
            stack_fd = os.memfd_create("envfleet-stack")
            os.write(stack_fd, b"before")
            watched = Watched(os.getpid(), 1, block.fd, stack_fd, SPEC)
            assert watcher.progress(watched)[Progress.STEPS] == count
            watcher.interrupt(watched, 7)
            assert arrays.progress[1, Progress.INTERRUPT] == 7
            faulthandler.register(signal.SIGUSR1, file=stack_fd)
            assert "test_watcher_keeps_nothing" in watcher.stack(watched)
            faulthandler.unregister(signal.SIGUSR1)
            os.close(stack_fd)
        del arrays
        assert maps_and_descriptors() == before
    assert len(interrupts) == 3
