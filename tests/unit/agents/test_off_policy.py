"""Transitions that agents with a replay buffer reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.unit.agents.bandit import SMALL, SPACE, UNIT

from envfleet.agents import DDDQN, SAC, DDDQNConfig, SACConfig, Transitions
from envfleet.errors import InvalidArgument


def transitions_of(actions: Any, count: int) -> Transitions:
    nothing, seen = np.zeros(count, np.bool_), np.zeros((count, 2), np.float32)
    return Transitions(seen, actions, np.zeros(count), nothing, nothing, seen, np.arange(count))


def test_writes_beyond_compiled_arrays_are_refused(tmp_path: Path) -> None:
    agent = SAC(SPACE, UNIT, SACConfig(**SMALL, num_steps=3), num_envs=2)
    with pytest.raises(InvalidArgument, match=r"sub-environment 7, expected 0 to .*: create the agent with num_envs=8"):
        agent.remember(transitions_of(np.zeros((8, 1), np.float32), 8))
    chooser = DDDQN(SPACE, spaces.Discrete(3, start=5), DDDQNConfig(**SMALL), num_envs=2)
    for wrong in (4, 8, 50_000):
        with pytest.raises(InvalidArgument, match=f"action {wrong}, expected 5 to 7"):
            chooser.remember(transitions_of(np.array([5, wrong]), 2))
    chooser.remember(transitions_of(np.array([5, 7]), 2))
    agent.save(tmp_path / "two.pt", "all")
    many = SAC(SPACE, UNIT, SACConfig(**SMALL, num_steps=3), num_envs=4)
    many.load(tmp_path / "two.pt")
    many.remember(transitions_of(np.zeros((4, 1), np.float32), 4))
    assert torch.equal(many.weights()["actor"]["0.weight"], agent.weights()["actor"]["0.weight"])
