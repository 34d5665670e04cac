"""Every agent learns what is known to be learnable; budgets and hyperparameters are those of `benchmarks/agents.py`."""

from __future__ import annotations

import pytest
from benchmarks.agents import TASKS, train


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", TASKS)
def test_an_agent_reaches_its_goal(name: str) -> None:
    task = TASKS[name]
    _, curve = train(task, seed=0)
    assert max(reached for _, _, reached in curve) >= task.goal
