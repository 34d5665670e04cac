"""Every agent learns what is known to be learnable; budgets and hyperparameters are those of `benchmarks/agents.py`."""

from __future__ import annotations

import pytest
from benchmarks.agents import TASKS, evaluate, train


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("name", TASKS)
def test_an_agent_reaches_its_goal(name: str) -> None:
    task = TASKS[name]
    agent, _ = train(task, seed=0)
    reached = evaluate(lambda observations: agent.act_batch(observations, deterministic=True), task.env, 100)
    assert reached >= task.goal
