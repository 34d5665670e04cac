"""Which native implementation an environment has, and what `backend="native"` and `"auto"` make of it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import envfleet
from envfleet.errors import InvalidArgument


def test_auto_says_that_the_task_equals_the_original() -> None:
    with envfleet.make("InvertedPendulum-v5", 2) as fleet:
        assert fleet.plan.backend == "native"
        assert "equal to the original in every bit" in fleet.plan.reason
        assert fleet.spec is gym.spec("InvertedPendulum-v5")


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [({"reset_noise_scale": np.float64(0.1)}, "reset_noise_scale"), ({"render_mode": "depth_array"}, "depth_array")],
)
def test_arguments_that_need_the_original(kwargs: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{reason}.* needs the original"):
        envfleet.make("InvertedPendulum-v5", 2, backend="native", **kwargs)


def test_auto_falls_back_to_the_original() -> None:
    with envfleet.make("InvertedPendulum-v5", 1, reset_noise_scale=np.float64(0.1)) as fleet:
        assert fleet.plan.backend == "serial"


def test_native_names_the_compiled_twin() -> None:
    with envfleet.make("CartPole-v1", 2, backend="native") as fleet:
        assert fleet.plan.backend == "kernel"
        assert fleet.reset(seed=0)[0].shape == (2, 4)


def test_native_adopts_a_registered_vector_environment() -> None:
    with envfleet.make("ale_py:ALE/Pong-v5", 2, backend="native") as fleet:
        assert fleet.plan.backend == "adopted"
        assert fleet.reset(seed=0)[0].shape[0] == 2


def test_native_refuses_what_has_no_twin() -> None:
    with pytest.raises(InvalidArgument, match="no kernel, task or vector_entry_point"):
        envfleet.make("LunarLander-v3", 2, backend="native")
