"""Agents with networks on a CUDA device; skipped where torch finds none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from tests.unit.agents import samples
from tests.unit.agents import test_compiled as lessons
from tests.unit.agents import test_packing as observed
from tests.unit.agents.conftest import _nothing_stays_open  # noqa: F401  # a fixture, which closes fleets

from envfleet.agents import load_agent
from envfleet.agents.randomness import Random

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch has no CUDA", allow_module_level=True)


@pytest.mark.parametrize("kind", lessons.KINDS)
def test_updates_are_the_cpus(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def normal(random: Random, like: Any) -> Any:
        return torch.from_numpy(random.replay.standard_normal(like.shape, np.float32)).to(like.device)

    monkeypatch.setattr(Random, "normal", normal)
    agent_class, space, config, own = lessons.KINDS[kind]
    options = {**lessons.SMALL, **own, "compiled": False}
    agents = [
        agent_class(lessons.OBSERVATIONS, space, config(**options), num_envs=3, seed=0, device=device)
        for device in ("cpu", "cuda")
    ]
    for agent in agents:
        if agent.replay.priorities is not None:
            agent.replay.priorities.add(np.arange(lessons.ROWS))
    expected, actual = lessons.learn(agents, 100)
    for metrics, wanted in zip(actual, expected, strict=True):
        assert metrics == pytest.approx(wanted, rel=2e-3, abs=2e-3)
    rows = np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32)
    wanted_actions, actions = (agent.act_batch(rows, deterministic=True) for agent in agents)
    assert np.mean(np.abs(actions - wanted_actions)) < 1e-3


@pytest.mark.parametrize("kind", samples.KINDS)
def test_agents_learn_and_act_the_same_from_a_file(kind: str, tmp_path: Path) -> None:
    agent_class, space, config = samples.KINDS[kind]
    agent = agent_class(samples.OBSERVATIONS, space, config, num_envs=3, seed=0, device="cuda")
    metrics = samples.Run(agent).go_on(15)
    assert agent.num_updates > 0
    assert all(np.isfinite(value) for figure in metrics for value in figure.values())
    agent.save(tmp_path / "agent.pt", "all")
    rows = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    expected = agent.act_batch(rows, deterministic=True)
    for device in ("cpu", "cuda"):
        loaded = load_agent(tmp_path / "agent.pt", device=device)
        np.testing.assert_allclose(loaded.act_batch(rows, deterministic=True), expected, rtol=1e-4, atol=1e-4)
        samples.Run(loaded).go_on(5)


@pytest.mark.parametrize("space", observed.SPACES.values(), ids=observed.SPACES)
@pytest.mark.parametrize("kind", observed.KINDS)
def test_agents_learn_in_every_space(kind: str, space: spaces.Space[Any]) -> None:
    agent_class, config, actions = observed.KINDS[kind]
    agent = agent_class(space, actions, config, num_envs=4, seed=0, device="cuda")
    assert all(np.isfinite(value) for value in observed.learn(agent, space).values())
    assert len(agent.act_batch(observed.drawn(space, 4), deterministic=True)) == 4
