"""Infos of every kind, as Gymnasium's vector environments merge, corrupt or refuse them."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from envfleet.testing import InfoEnv
from envfleet.testing.compare import mismatches


def merged(kind: str, num_steps: int) -> list[dict[str, Any]]:
    """Return the infos of a vector environment with three sub-environments."""
    envs = SyncVectorEnv([lambda index=index: InfoEnv(kind, index, length=9) for index in range(3)])  # type: ignore[misc]
    infos = [envs.reset(seed=0)[1]]
    infos += [envs.step(np.zeros(3, np.int64))[4] for _ in range(num_steps)]
    envs.close()
    return infos


def test_infos_of_kinds_change_with_sub_environment_and_step() -> None:
    first, second = InfoEnv("numbers", 0), InfoEnv("numbers", 1)
    infos = [env.reset(seed=0)[1] for env in (first, second)]
    assert mismatches(infos[0], infos[1])
    assert mismatches(infos[0], first.step(0)[4])


@pytest.mark.parametrize("kind", ["numbers", "objects", "nested", "sparse", "reserved"])
def test_gymnasium_merges_common_kinds(kind: str) -> None:
    for step, infos in enumerate(merged(kind, 3)):
        for index in range(3):
            env = InfoEnv(kind, index, length=9)
            own = env.reset(seed=0)[1]
            for _ in range(step):
                own = env.step(0)[4]
            assert {key for key in own if infos[f"_{key}"][index]} == own.keys()


def test_changing_infos_have_other_types_in_each_step() -> None:
    env = InfoEnv("changing", 1, length=20)
    infos = [env.reset(seed=0)[1], *(env.step(0)[4] for _ in range(8))]
    kinds = [type(info["key"]) if "key" in info else None for info in infos]
    assert len(set(kinds)) >= 7
    assert None in kinds
    assert merged("changing", 8)


def test_gymnasium_truncates_mixed_numbers() -> None:
    assert InfoEnv("mixed", 1).reset(seed=0)[1]["number"] == 1.25
    with pytest.raises((AssertionError, OverflowError, ValueError)):
        assert merged("mixed", 0)[0]["number"].tolist() == [0, 1.25, 2]


def test_gymnasium_refuses_ragged_arrays() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        merged("ragged", 0)


def test_unpicklable_infos_cannot_be_pickled() -> None:
    info = InfoEnv("unpicklable").reset(seed=0)[1]
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(info)
