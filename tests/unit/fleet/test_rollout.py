"""Rollouts that step in a loop keep the infos of every step as they are, or leave them out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import envfleet
from envfleet.testing import CountingEnv

INFOS: list[dict[str, Any]] = [
    {"number": 1, "late": 1, "ragged": np.zeros(2), "kind": 1},
    {"number": 1.75, "ragged": np.zeros(3), "kind": "text"},
    {"number": 2, "late": 2, "ragged": np.zeros(2), "kind": 1},
]


class Unlike(CountingEnv):
    """Gives infos of another type or shape at each step."""

    def inform(self, info: dict[str, Any]) -> dict[str, Any]:
        return INFOS[(self.count - 1) % len(INFOS)]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_infos_of_steps_are_not_truncated(mode: AutoresetMode) -> None:
    with envfleet.make(lambda: Unlike(length=3), 2, backend="serial", autoreset_mode=mode) as fleet:
        fleet.reset(seed=0)
        infos = [fleet.step(np.zeros(2, np.int64))[-1] for _ in range(6)]
        fleet.reset(seed=0)
        rollout = fleet.rollout(np.zeros((6, 2), np.int64), 6)
        fleet.step(np.zeros(2, np.int64))
    assert {*rollout.infos} == {"number", "late"}
    for name, slab in rollout.infos.items():
        np.testing.assert_array_equal(slab, [step.get(name, np.zeros(2)) for step in infos])
    assert rollout.infos["late"].dtype == np.int64


def test_last_infos_may_be_unlike_those_of_steps() -> None:
    with envfleet.make(lambda: Unlike(length=2), 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        fleet.reset(seed=0)
        rollout = fleet.rollout(np.zeros((4, 2), np.int64), 4)
    assert {*rollout.infos} == {"number", "late", "ragged", "kind"}
    assert {name: values.tolist() for name, values in rollout.episodes.infos.items()} == {
        "number": [1.75] * 4,
        "late": [0] * 4,
    }
