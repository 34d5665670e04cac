"""Fleets of kernels against Gymnasium's own vector environment over the same kernels, one environment each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from tests.unit.kernels.parts import Pair, Rover
from tests.unit.kernels.samples import SAMPLES

import envfleet
from envfleet.kernels import Kernel
from envfleet.kernels.env import KernelEnv
from envfleet.testing.duel import Duel, Finding, differences_of

Mode = AutoresetMode


def make_env(kernel: type[Kernel], **params: Any) -> gym.Env[Any, Any]:
    env = KernelEnv(kernel, **params)
    return env if kernel.max_episode_steps is None else TimeLimit(env, kernel.max_episode_steps)


def make_sync(kernel: type[Kernel], num_envs: int, autoreset_mode: Mode, **params: Any) -> Any:
    return SyncVectorEnv([functools.partial(make_env, kernel, **params)] * num_envs, autoreset_mode=autoreset_mode)


def make_serial(kernel: type[Kernel], num_envs: int, autoreset_mode: Mode, **params: Any) -> Any:
    return envfleet.make(kernel, num_envs, backend="serial", autoreset_mode=autoreset_mode, **params)


def make_fleet(kernel: type[Kernel], num_envs: int, autoreset_mode: Mode = Mode.NEXT_STEP, **more: Any) -> Any:
    return envfleet.make(kernel, num_envs, backend="kernel", autoreset_mode=autoreset_mode, **more)


@pytest.fixture(params=[*SAMPLES, Rover, Pair], ids=lambda kernel: kernel.__name__)
def kernel(request: pytest.FixtureRequest) -> type[Kernel]:
    return request.param


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "view"])
@pytest.mark.parametrize("make_reference", [make_sync, make_serial])
def test_rollouts_with_every_reset(
    kernel: type[Kernel], autoreset_mode: Mode, make_reference: Callable[..., Any], copy: bool
) -> None:
    num_envs = 5
    reference = make_reference(kernel, num_envs, autoreset_mode)
    subject = make_fleet(kernel, num_envs, autoreset_mode, workers=2, copy=copy)
    try:
        differences = [f"{where}: {message}" for where, message in compare(Duel(reference, subject), copy)]
    finally:
        reference.close()
        subject.close()
    assert not differences, "\n".join(differences)


def compare(duel: Duel, copy: bool) -> Iterator[Finding]:
    for name in ("observation_space", "single_observation_space", "action_space", "single_action_space"):
        yield from differences_of(getattr(duel.reference, name), getattr(duel.subject, name), name)
    duel.reference.action_space.seed(3)
    yield from duel.reset(seed=7)
    yield from duel.roll(12)
    yield from duel.reset(seed=[4, None, 2**40, None, 0])
    yield from duel.roll(9)
    yield from duel.reset()
    yield from duel.roll(3)
    yield from duel.reset(options={"reset_mask": np.array([True, False, False, True, True])})
    yield from duel.roll(3)
    mask = np.array([True, False, True, True, False])
    yield from duel.reset(seed=[9, 8, None, 6, 5], options={"reset_mask": mask})
    yield from duel.roll(9)
    if copy:
        yield from duel.check_kept()
