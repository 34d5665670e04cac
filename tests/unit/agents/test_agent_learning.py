"""Every agent reaches its goal with the budgets and hyperparameters of `benchmarks/learning.py`."""

from __future__ import annotations

import pytest
from benchmarks.learning import TASKS, train


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", TASKS)
def test_an_agent_reaches_its_goal(name: str) -> None:
    task = TASKS[name]
    _, evaluations = train(task, seed=0)
    assert max(value for _, value in evaluations.points) >= task.goal
