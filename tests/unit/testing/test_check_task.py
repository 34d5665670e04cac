"""`check_task` passes tasks that are right, and says where compiled code differs from plain Python."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.physics.samples import Arm, Gusts

from envfleet.physics import Task
from envfleet.testing import KernelCheckError, check_task


@pytest.mark.parametrize("task", [Arm, Gusts])
def test_right_tasks_pass(task: type[Task]) -> None:
    assert check_task(task, num_steps=30, seeds=(1, 2)) == 60


class Overflow(Gusts):
    """Its reward is an integer of Python, which has no limit, or of compiled code, which has 64 bits."""

    @staticmethod
    def after_step(data: Any, state: Any) -> tuple[float, bool, bool]:  # type: ignore[override]
        number = 3
        for _ in range(80):
            number *= 2
        return float(number % 7), False, data.time > 0.1


def test_a_mismatch_names_step_and_field() -> None:
    with pytest.raises(KernelCheckError, match=r"Overflow: seed 5, step 1: reward is .*plain Python") as caught:
        check_task(Overflow, num_steps=3, seeds=[5])
    error = caught.value
    assert (error.seed, error.step, error.field) == (5, 1, "reward")
    assert error.expected == 3 * 2**80 % 7
