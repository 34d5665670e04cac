"""Steps of some rows, while others are still busy."""

from __future__ import annotations

import collections
import functools
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import Backend
from tests.fault.builders import StuckEnv
from tests.waiting import PATIENCE_S

from envfleet.errors import CallPending, CallTimeout, InvalidArgument


def zeros(count: int) -> np.ndarray:
    return np.zeros(count, dtype=np.int64)


@pytest.mark.parametrize("name", ["thread", "process"])
def test_one_that_is_stuck_does_not_hold_up_the_others(name: str, tmp_path: Path) -> None:
    """With one sub-environment per worker the others keep being served, all in order."""
    env_fns = [functools.partial(StuckEnv, tmp_path / ("release" if index == 0 else ""), nth=1) for index in range(3)]
    served: collections.Counter[int] = collections.Counter()
    with Backend(name, 3)(env_fns, batch_size=1) as fleet:
        fleet.reset(seed=0)
        fleet.send(zeros(3))
        while not served[0]:
            if min(served[1], served[2]) == 20:
                (tmp_path / "release").touch()
            batch = fleet.recv(timeout_s=PATIENCE_S)
            index = int(batch.env_indices[0])
            served[index] += 1
            assert batch.observations[0, 0] == served[index]
            fleet.send(zeros(1), [index])
    assert min(served[1], served[2]) >= 20


def test_certain_rows_are_waited_for_while_others_go_on(tmp_path: Path) -> None:
    """`recv(env_indices=…)`, also of what was sent to all at once: one half acts while the other half is still busy."""
    for name in ("thread", "process"):
        release = tmp_path / name
        env_fns = [functools.partial(StuckEnv, release if index == 3 else tmp_path, nth=1) for index in range(4)]
        with Backend(name, 2)(env_fns) as fleet:
            fleet.reset(seed=0)
            fleet.send(zeros(4))
            for step in (1, 2, 3):
                batch = fleet.recv(timeout_s=PATIENCE_S, env_indices=[1, 0])
                assert batch.env_indices.tolist() == [1, 0]
                assert batch.observations[:, 0].tolist() == [step, step]
                fleet.send(zeros(2), [0, 1])
            with pytest.raises(CallTimeout):
                fleet.recv(timeout_s=0.01, env_indices=[3])
            with pytest.raises(CallPending, match=r"reset\(\) with a mask"):  # it shows all, and some are being written
                fleet.reset(options={"reset_mask": np.array([True, False, False, False])})
            release.touch()
            assert fleet.recv(timeout_s=PATIENCE_S, env_indices=[2, 3]).observations[:, 0].tolist() == [1, 1]
            with pytest.raises(InvalidArgument, match=r"\[2\], which are not under way"):
                fleet.recv(env_indices=[0, 2])
            fleet.recv()
