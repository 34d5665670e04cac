"""Every agent learns what is known to be learnable; budgets and hyperparameters are those of `benchmarks/agents.py`."""

from __future__ import annotations

import pytest
import torch
from benchmarks.agents import TASKS, evaluate, train


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TASKS)
def test_an_agent_reaches_its_goal(name: str) -> None:
    task, threads = TASKS[name], torch.get_num_threads()
    torch.set_num_threads(1)
    agent, _ = train(task, seed=0)
    torch.set_num_threads(threads)
    reached = evaluate(lambda observations: agent.act_batch(observations, deterministic=True), task.env, 100)
    assert reached >= task.goal
