"""Infos on every backend have the keys of Gymnasium's `SyncVectorEnv`, in the same order, and the same values."""

from __future__ import annotations

import enum
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tests.conftest import Backend

from envfleet.testing import mismatches


class Side(enum.Enum):
    SHORT = 0
    LONG = 1


class MixedInfoEnv(gym.Env[Any, Any]):
    """Infos of numbers, enums, text and dicts in an order that depends on the step."""

    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, index: int, num_numbers: int) -> None:
        self.index, self.num_numbers, self.count = index, num_numbers, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return 0, {"name": "begun", "count": 0}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.count += 1
        step = self.count + self.index
        info: dict[str, Any] = {
            "label": ("low", "high")[step % 2],
            "profit": step / 2,
            "side": Side(step % 2),
            "nested": {"x": 1.0, "text": "a"},
            **{f"number{k}": k + step for k in range(self.num_numbers)},
            "is_new": np.bool_(step % 2),
            "nothing": None,
            "note": f"step {step}",
            "count": self.count,
        }
        if step % 4 == 3:
            info = dict(reversed(info.items()))
        elif step % 5 == 4:
            info = {"rare": step, **info}
        elif step % 7 == 6:
            info = {}
        return self.count, 1.0, self.count == 6 + self.index, False, info


def key_order(infos: Any) -> Any:
    return [(key, key_order(value)) for key, value in infos.items()] if isinstance(infos, dict) else None


@pytest.mark.parametrize("num_numbers", [3, 40])
def test_keys_and_values_equal_sync(backend: Backend, autoreset_mode: AutoresetMode, num_numbers: int) -> None:
    env_fns = [lambda index=index: MixedInfoEnv(index, num_numbers) for index in range(5)]
    expected_env = SyncVectorEnv(env_fns, autoreset_mode=autoreset_mode)
    actions = np.zeros(5, np.int64)
    with backend(env_fns, autoreset_mode=autoreset_mode) as fleet:
        for step in itertools.count():
            if step == 0 or (autoreset_mode is AutoresetMode.DISABLED and step % 6 == 0):
                expected, actual = expected_env.reset()[1], fleet.reset()[1]
            elif step < 30:
                expected, actual = expected_env.step(actions)[-1], fleet.step(actions)[-1]
            else:
                break
            assert [str(mismatch) for mismatch in mismatches(expected, actual, f"step {step}: infos")] == []
            assert key_order(actual) == key_order(expected), f"step {step}"
    expected_env.close()
