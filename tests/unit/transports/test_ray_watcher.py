"""What looks after the workers of a node keeps nothing of them."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import gymnasium as gym
import pytest

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.memory import SharedBlock
from envfleet.transports.ray.placing import Placed
from envfleet.transports.ray.watcher import Watched, Watcher, Watchers

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
            arrays.progress[1, PlaceWord.STEPS] = count
            stack_fd = os.memfd_create("envfleet-stack")
            os.write(stack_fd, b"before")
            watched = Watched(os.getpid(), 1, block.fd, stack_fd, SPEC)
            assert watcher.progress(watched)[PlaceWord.STEPS] == count
            watcher.interrupt(watched, 7)
            assert arrays.progress[1, PlaceWord.INTERRUPT] == 7
            faulthandler.register(signal.SIGUSR1, file=stack_fd)
            assert "test_watcher_keeps_nothing" in watcher.stack(watched)
            faulthandler.unregister(signal.SIGUSR1)
            os.close(stack_fd)
        del arrays
        assert maps_and_descriptors() == before
    assert len(interrupts) == 3


class _Asked:
    """Stands for a connection, with a head or without."""

    def __init__(self, *, has_head: bool) -> None:
        self._has_head = has_head

    def can_ask(self) -> bool:
        return self._has_head

    def is_open(self) -> bool:
        return True


@pytest.mark.parametrize("has_head", [True, False])
def test_nobody_is_ended_by_a_head_that_is_gone(has_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for it: watchers are let go, workers that were placed are asked to leave."""
    ended: list[Any] = []
    monkeypatch.setattr("ray.kill", ended.append)
    connection: Any = _Asked(has_head=has_head)
    watchers, watcher, worker = Watchers(connection), object(), MagicMock()
    watchers._by_node["node"] = watcher
    watchers.forget("node")
    watchers.close()
    Placed(worker, MagicMock(), None, connection).give_up()
    assert ended == ([watcher, worker] if has_head else [])
    assert worker.leave.remote.called == (not has_head)
