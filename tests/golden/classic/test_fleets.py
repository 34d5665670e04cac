"""Compiled kernels against Gymnasium's own environments under Gymnasium's own vector environment."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.golden.classic.originals import PAIRS, Pair, assert_same

import envfleet
from envfleet import Fleet
from envfleet.kernels.kernel import read_kernel

NUM_ENVS = 60
SEED = 1000
KERNELS_PAGE = (Path(__file__).resolve().parents[3] / "docs" / "kernels.md").read_text(encoding="utf-8")


def make_fleet(pair: Pair, num_envs: int, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> Fleet:
    return envfleet.make(pair.kernel, num_envs, backend="kernel", autoreset_mode=mode)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_initial_states_are_the_same_to_the_bit(pair: Pair) -> None:
    num_envs = 300
    original = pair.make()
    states, observations = [], []
    for seed in range(SEED, SEED + num_envs):
        observations.append(original.reset(seed=seed)[0])
        states.append(pair.fields(original))
    with make_fleet(pair, num_envs) as fleet:
        actual, _ = fleet.reset(seed=SEED)
        names = read_kernel(pair.kernel).state.names[: len(states[0])]
        np.testing.assert_array_equal(np.stack([fleet.get_attr(name) for name in names], axis=1), states)
    assert_same(actual, observations)


class Gap:
    """The largest difference between arrays of ours and the original's, in the words of the documentation's table."""

    def __init__(self) -> None:
        self._largest = 0.0

    def add(self, actual: Any, expected: Any) -> None:
        actual, expected = np.asarray(actual), np.asarray(expected)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        if actual.tobytes() != expected.tobytes():
            largest = float(np.abs(actual.astype(np.float64) - expected).max())
            self._largest = max(self._largest, largest, sys.float_info.min)  # other bits may be a zero of another sign

    def __str__(self) -> str:
        return f"within 1e{math.ceil(math.log10(self._largest))}" if self._largest else "to the bit"


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_whole_episodes_are_as_equal_as_the_documentation_says(pair: Pair, mode: AutoresetMode) -> None:
    observations_gap, rewards_gap = Gap(), Gap()
    originals: Any = SyncVectorEnv([pair.make] * NUM_ENVS, autoreset_mode=mode)
    rng = np.random.default_rng(0)
    num_ended = num_terminated = 0
    with make_fleet(pair, NUM_ENVS, mode) as fleet:
        expected, _ = originals.reset(seed=SEED)
        actual, _ = fleet.reset(seed=SEED)
        for step in range(pair.num_steps):
            observations_gap.add(actual, expected)
            actions = pair.actions(expected, step, rng)
            expected, rewards, terminated, truncated, infos = originals.step(actions)
            actual, found_rewards, found_terminated, found_truncated, found_infos = fleet.step(actions)
            rewards_gap.add(found_rewards, rewards)
            np.testing.assert_array_equal(found_terminated, terminated, err_msg=str(step))
            np.testing.assert_array_equal(found_truncated, truncated, err_msg=str(step))
            ended = terminated | truncated
            if mode is AutoresetMode.SAME_STEP and ended.any():
                finals, found_finals = (np.stack(list(each["final_obs"][ended])) for each in (infos, found_infos))
                observations_gap.add(found_finals, finals)
                np.testing.assert_array_equal(found_infos["_final_obs"], ended)
            num_ended += int(ended.sum())
            num_terminated += int(terminated.sum())
    originals.close()
    assert f"\n| `envfleet/{pair.id}` | {observations_gap} | {rewards_gap} | equal |\n" in KERNELS_PAGE
    assert num_ended >= NUM_ENVS
    assert num_ended > num_terminated
    assert (num_terminated > 0) is (pair.id != "Pendulum-v1")
