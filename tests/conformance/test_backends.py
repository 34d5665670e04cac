"""Every backend passes the public conformance suite."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.conformance.model import make_registered
from tests.conftest import ADOPTED, BACKENDS, SERIAL, Backend

from envfleet.testing import CASES, CHECKS, Case, CountingEnv, check_backend
from envfleet.testing.checks import Trial, check_rollout

# One class applies the modes, whatever the backend; `transports/test_far.py` tests another. Five sub-environments over
# two workers are an uneven split.
THOROUGH = [*((SERIAL, mode) for mode in AutoresetMode), (Backend("process", 2), AutoresetMode.NEXT_STEP)]
FEW = [
    case
    for case in CASES
    if case.name in ("counting-dict", "counting-varied", "in-place", "in-place-sequence", "info-nested", "space-graph")
]


@pytest.mark.parametrize(("backend", "mode"), THOROUGH, ids=str)
def test_conforms(backend: Backend, mode: AutoresetMode) -> None:
    assert check_backend(backend, num_envs=5, autoreset_modes=[mode], copy_modes=[True]) > len(CASES)


@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_conforms_without_copies(backend: Backend, autoreset_mode: AutoresetMode) -> None:
    """Every split, over few environments: views instead of copies are the stricter way."""
    check_backend(backend, cases=FEW, num_envs=4, num_steps=5, autoreset_modes=[autoreset_mode], copy_modes=[False])


def test_auto_conforms() -> None:
    """The trial that chooses a backend leaves no trace."""
    check_backend(Backend("auto"), cases=FEW, copy_modes=[True], skip=CHECKS[1:])


def test_an_adopted_vector_environment_conforms(autoreset_mode: AutoresetMode) -> None:
    """But for what it does to infos itself, and to the metadata of its environments."""
    own = {"infos-mixed", "infos-ragged", "metadata"}
    own |= {"in-place", "in-place-sequence", "action-kept", "action-mutated"}
    check_backend(ADOPTED, autoreset_modes=[autoreset_mode], copy_modes=[True], skip=own)


def test_one_sub_environment(backend: Backend) -> None:
    check_backend(backend, cases=CASES[:2], num_envs=1, copy_modes=[True])


_TAXI = "Taxi-v3" if "Taxi-v3" in gym.registry else "Taxi-v4"
ENV_IDS = ("CartPole-v1", _TAXI, "Blackjack-v1", "Pendulum-v1")


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_gymnasium_environments(env_id: str, backend: Backend, autoreset_mode: AutoresetMode) -> None:
    """Gymnasium's own environments, wrappers and all, over enough steps that episodes end."""
    trial = Trial(backend, autoreset_mode, copy=False, num_envs=3, num_steps=40, seed=11)
    assert list(check_rollout(trial, Case(env_id, functools.partial(make_registered, env_id)))) == []


@pytest.mark.parametrize("mode", tuple(AutoresetMode), ids=lambda mode: mode.name.lower())
def test_same_trajectories_everywhere(mode: AutoresetMode) -> None:
    """One run on each backend and worker count: equal to the bit, with no reference in between."""
    runs = {str(backend): _trajectory(backend, mode) for backend in (*BACKENDS, ADOPTED)}
    first, *others = runs
    for name in others:
        for step, (one, other) in enumerate(zip(runs[first], runs[name], strict=True)):
            np.testing.assert_array_equal(one, other, err_msg=f"{first} against {name}, step {step}")


def test_a_hundred_sub_environments() -> None:
    mode = AutoresetMode.SAME_STEP
    expected = np.concatenate(_trajectory(SERIAL, mode, num_envs=100)[1:])
    for backend in (Backend("thread", 3), Backend("process", 3)):
        np.testing.assert_array_equal(np.concatenate(_trajectory(backend, mode, num_envs=100)[1:]), expected)


def _trajectory(backend: Backend, mode: AutoresetMode, num_envs: int = 7, **options: Any) -> list[np.ndarray]:
    env_fns = [functools.partial(CountingEnv, 6, vary=True, ends="alternate")] * num_envs
    rng = np.random.default_rng(3)
    rows = []
    with backend(env_fns, autoreset_mode=mode, **options) as fleet:
        rows.append(fleet.reset(seed=5)[0])
        for _ in range(25):
            if mode == AutoresetMode.DISABLED and fleet.terminated_indices:
                fleet.reset_envs(fleet.terminated_indices)
            observations, rewards, terminated, truncated, _ = fleet.step(rng.integers(4, size=num_envs))
            rows.append(np.column_stack([observations, rewards, terminated, truncated, fleet.episode_ids]))
    return rows
