"""Fleets with one faulty sub-environment, and the healthy run to compare the others with."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import AutoresetMode
from tests.waiting import PATIENCE_S

from envfleet.testing.envs import CountingEnv
from envfleet.testing.faults import FaultyEnv, When

if TYPE_CHECKING:  # workers import this module, and shall not import pytest
    from tests.conftest import Backend

NUM_ENVS = 4
FAULTY = 1

COUNTING = {"length": 4, "vary": True, "ends": "alternate"}


class StuckEnv(CountingEnv):
    """Stays in its n-th step until there is a file."""

    def __init__(self, release: Path | str, nth: int) -> None:
        super().__init__(10**6)
        self.release, self.steps_left = Path(release), nth

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        if self.steps_left == 0:
            self._stay()
        return super().step(action)

    def _stay(self) -> None:
        while not self.release.exists():
            time.sleep(0.005)


class ThirdTimeLuckyEnv(CountingEnv):
    """The first is lost in its first step, the second hangs while it is built, the third is sound."""

    def __init__(self, folder: Path, is_worker_lost: bool) -> None:
        super().__init__(50)
        self.is_worker_lost = is_worker_lost
        self.number = len(list(folder.iterdir()))
        (folder / str(self.number)).touch()
        if self.number == 1:
            time.sleep(3600)

    def step(self, action: Any) -> Any:
        if self.number == 0:
            if self.is_worker_lost:
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("lost")
        return super().step(action)


def build(index: int, faulty: tuple[int, ...], fault: str, when: When, options: dict[str, Any]) -> FaultyEnv:
    return FaultyEnv(fault if index in faulty else None, when, **{**COUNTING, **options})


def env_fns_with(
    fault: str, when: When = "step", faulty: tuple[int, ...] = (FAULTY,), num_envs: int = NUM_ENVS, **options: Any
) -> list[Callable[[], CountingEnv]]:
    """Builders of which those in `faulty` fail; the others are plain `CountingEnv`s."""
    return [functools.partial(build, index, faulty, fault, when, options) for index in range(num_envs)]


def step_often(fleet: Any, count: int, num_envs: int = NUM_ENVS) -> None:
    """Step with the usual actions, resetting by hand what awaits it."""
    for step in range(count):
        if fleet.metadata["autoreset_mode"] == AutoresetMode.DISABLED and fleet.terminated_indices:
            fleet.reset_envs(fleet.terminated_indices)
        fleet.step(actions(step, num_envs))


def reset_and_step(fleet: Any, count: int = 1, num_envs: int = NUM_ENVS, seed: int = 0) -> None:
    fleet.reset(seed=seed)
    step_often(fleet, count, num_envs)


def receive_often(fleet: Any, count: int = NUM_ENVS) -> None:
    """Send once, receive often."""
    fleet.send(actions(0))
    for _ in range(count):
        fleet.recv(timeout_s=PATIENCE_S)


def actions(step: int, num_envs: int = NUM_ENVS) -> np.ndarray:
    """The same actions for every run."""
    return np.random.default_rng(step).integers(4, size=num_envs)


Row = tuple[Any, ...]


def run(
    backend: Backend, env_fns: Sequence[Callable[[], Any]], num_steps: int, mode: AutoresetMode, **options: Any
) -> tuple[list[list[Row]], list[dict[str, Any]]]:
    """Step a fleet; returns for every sub-environment its rows in order, and the infos of every step."""
    rows: list[list[Row]] = [[] for _ in env_fns]
    all_infos = []
    with backend(env_fns, autoreset_mode=mode, **options) as fleet:
        fleet.reset(seed=0)
        for step in range(num_steps):
            if mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                fleet.reset_envs(fleet.terminated_indices)
            observations, rewards, terminated, truncated, infos = fleet.step(actions(step, len(env_fns)))
            all_infos.append(infos)
            for index, row in enumerate(rows):
                row.append(
                    (observations[index].copy(), float(rewards[index]), bool(terminated[index]), bool(truncated[index]))
                )
    return rows, all_infos


def assert_rows_equal(expected: list[Row], actual: list[Row], context: str = "") -> None:
    assert len(expected) == len(actual)
    for step, (one, other) in enumerate(zip(expected, actual, strict=True)):
        np.testing.assert_array_equal(one[0], other[0], err_msg=f"{context}, step {step}")
        assert one[1:] == other[1:], f"{context}, step {step}"
