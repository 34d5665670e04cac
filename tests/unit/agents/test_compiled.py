"""Compiled updates against those that torch makes with autograd: the same numbers but for rounding."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envfleet.agents import DDDQN, SAC, TD3, DDDQNConfig, SACConfig, TD3Config
from envfleet.agents.optimizer import Adam
from envfleet.agents.replay import Batch

ROWS = 64
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (5,), np.float32)
TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden": (24, 16), "batch_size": ROWS, "capacity": 64, "warmup": 0, "learning_rate": 1e-3}
KINDS: dict[str, Any] = {
    "sac": (SAC, TORQUE, SACConfig, {}),
    "sac, short gradients": (SAC, TORQUE, SACConfig, {"max_grad_norm": 0.1, "target_entropy": -1.0}),
    "td3": (TD3, TORQUE, TD3Config, {}),
    "td3, penalty": (TD3, TORQUE, TD3Config, {"saturation_penalty": 0.1, "max_grad_norm": 0.1, "policy_delay": 1}),
    "dddqn": (DDDQN, spaces.Discrete(4), DDDQNConfig, {"max_grad_norm": None}),
    "dddqn, priorities": (DDDQN, spaces.Discrete(4), DDDQNConfig, {"prioritized": True, "target_period": 3}),
    "one layer": (SAC, TORQUE, SACConfig, {"hidden": (24,)}),
    "wide layers": (DDDQN, spaces.Discrete(4), DDDQNConfig, {"hidden": (40, 36)}),
    "wide critics": (SAC, TORQUE, SACConfig, {"hidden": (40, 70)}),
    "wide critics, three layers": (TD3, TORQUE, TD3Config, {"hidden": (20, 37, 130)}),
    "tanh": (SAC, TORQUE, SACConfig, {"activation": "tanh"}),
    "dddqn, tanh": (DDDQN, spaces.Discrete(4), DDDQNConfig, {"activation": "tanh"}),
}


def make(kind: str, **options: Any) -> Any:
    agent_class, space, config, own = KINDS[kind]
    return agent_class(OBSERVATIONS, space, config(**{**SMALL, **own, **options}), num_envs=3, seed=0)


def draw(rng: np.random.Generator, agent: Any) -> Batch:
    """A batch, as a buffer would have it."""
    is_discrete = isinstance(agent, DDDQN)
    actions = rng.integers(4, size=ROWS) if is_discrete else rng.uniform(-1, 1, (ROWS, 2)).astype(np.float32)
    observations, following = rng.standard_normal((2, ROWS, 5)).astype(np.float32)
    rewards, weights = 3 * rng.standard_normal(ROWS), rng.uniform(0.1, 1.0, ROWS)
    discounts = np.where(rng.random(ROWS) < 0.1, 0.0, 0.97)
    columns = (observations, actions, np.float32(rewards), np.float32(discounts), following)
    return Batch._make([*map(torch.from_numpy, (*columns, np.float32(weights))), np.arange(ROWS)])


def learn(agents: list[Any], num_updates: int, seed: int = 0) -> list[list[dict[str, float]]]:
    """Give all agents the same batches; metrics of each."""
    rng, metrics_of_all = np.random.default_rng(seed), [list[dict[str, float]]() for _ in agents]
    for _ in range(num_updates):
        batch = draw(rng, agents[0])
        for agent, metrics in zip(agents, metrics_of_all, strict=True):
            lesson = agent._to_arrays(batch) if agent.is_compiled else batch
            metrics.append(agent.publish(agent.learn([lesson])))
    return metrics_of_all


def means_of(optimizer: Adam) -> tuple[torch.Tensor, ...]:
    """First means of Adam of each parameter; after one step they are a tenth of the gradients."""
    return torch.split(optimizer.means, [parameter.numel() for parameter in optimizer.parameters])


def optimizers(agent: Any) -> dict[str, Adam]:
    return {name: part for name, part in agent._learners.items() if isinstance(part, Adam)}


@pytest.mark.parametrize("kind", KINDS)
def test_first_gradients_are_autograds(kind: str) -> None:
    compiled, plain = make(kind, compiled=True), make(kind, compiled=False)
    (metrics,), (expected,) = learn([compiled, plain], 1)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for name, optimizer in optimizers(plain).items():
        pairs = zip(means_of(optimizers(compiled)[name]), means_of(optimizer), strict=True)
        largest = [float(wanted.abs().max()) for wanted in means_of(optimizer)]
        for number, (actual, wanted) in enumerate(pairs):
            layer = number // 2 * 2  # weight and bias: their terms cancel out more
            scale = max(*largest[layer : layer + 2], 1e-6)
            assert float((actual - wanted).abs().max()) < 3e-6 * scale, name


@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_updates_are_torchs(kind: str) -> None:
    agents = [make(kind, compiled=True), make(kind, compiled=False)]
    for agent in agents:
        if agent.replay.priorities is not None:
            agent.replay.priorities.add(np.arange(ROWS))
    actual, expected = learn(agents, 300)
    for metrics, wanted in zip(actual, expected, strict=True):
        assert metrics == pytest.approx(wanted, rel=2e-3, abs=2e-3)
    observations = np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32)
    actions, wanted_actions = (agent.act_batch(observations, deterministic=True) for agent in agents)
    assert np.mean(np.abs(actions - wanted_actions)) < 1e-3
    if agents[0].replay.priorities is not None:
        priorities = [agent.replay.priorities.state_dict()["tree"] for agent in agents]
        assert priorities[0] == pytest.approx(priorities[1], rel=1e-3)


@pytest.mark.parametrize("kind", ["sac", "td3", "dddqn"])
def test_actions_are_torchs(kind: str) -> None:
    agents = [make(kind, compiled=True), make(kind, compiled=False)]
    observations = np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32)
    for rows in observations:
        for deterministic in (False, True):
            first, second = (agent.act_batch(rows, deterministic=deterministic) for agent in agents)
            assert first == pytest.approx(second, abs=1e-5)
            assert first.dtype == second.dtype


def test_both_ways_save_the_same_and_go_on_from_each_other() -> None:
    compiled, plain = make("sac", compiled=True), make("sac", compiled=False)
    learn([plain], 20)
    compiled.load_state_dict(plain.state_dict())
    actual, expected = learn([compiled, plain], 20, seed=1)
    for metrics, wanted in zip(actual, expected, strict=True):
        assert metrics == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    states = [agent.state_dict("learner")["learners"]["critic_optimizer"] for agent in (compiled, plain)]
    assert [state["count"] for state in states] == [40, 40]


def test_copies_do_not_follow() -> None:
    learner = make("sac")
    copied = copy.deepcopy(learner)
    rows = np.ones((3, 5), np.float32)
    before = learner.act_batch(rows, deterministic=True)
    learn([learner], 5)
    after = learner.act_batch(rows, deterministic=True)
    assert np.abs(after - before).max() > 1e-4
    assert np.array_equal(copied.act_batch(rows, deterministic=True), before)
    learn([copied], 5)
    assert np.array_equal(copied.act_batch(rows, deterministic=True), after)
    acting = [agent.state_dict()["memories"]["acting"]["actor"] for agent in (copied, learner)]
    assert torch.equal(*acting)


def test_what_is_not_finite_is_reported() -> None:
    for kind in ("sac", "td3", "dddqn"):
        agent = make(kind, compiled=True)
        batch = draw(np.random.default_rng(0), agent)
        batch.rewards[3] = torch.nan
        metrics = agent.learn([agent._to_arrays(batch)]).metrics
        assert not all(np.isfinite(value) for value in metrics.values())


class Cautious(SAC):
    """A subclass with another update."""

    def learn_batch(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"own": torch.zeros(())}


class RobustDDDQN(DDDQN):
    """A subclass with another loss."""

    def value_losses(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (values - targets).abs()


class Renamed(SAC):
    """A subclass that changes nothing of the updates."""

    def act_batch(self, observations: Any, deterministic: bool = False, **options: Any) -> Any:
        return super().act_batch(observations, deterministic, **options)


def test_torch_learns_what_compiled_code_does_not_know() -> None:
    assert make("sac").is_compiled
    assert not make("sac", compiled=False).is_compiled
    assert not Cautious(OBSERVATIONS, TORQUE, SACConfig(**SMALL), seed=0).is_compiled
    assert not RobustDDDQN(OBSERVATIONS, spaces.Discrete(3), DDDQNConfig(**SMALL), seed=0).is_compiled
    assert Renamed(OBSERVATIONS, TORQUE, SACConfig(**SMALL), seed=0).is_compiled
    assert not make("sac", layer_norm=True).is_compiled
    odd: list[Any] = [spaces.Discrete(3), spaces.Dict(a=OBSERVATIONS), spaces.Box(0, 255, (8, 8, 3), np.uint8)]
    for space in odd:
        assert not SAC(space, TORQUE, SACConfig(**SMALL)).is_compiled


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
import numpy as np
from gymnasium import spaces
from envfleet.agents import DDDQN, SAC, DDDQNConfig, SACConfig, Transitions
space, small = spaces.Box(-1, 1, (2,), np.float32), {"hidden": (8,), "batch_size": 4, "capacity": 20, "warmup": 0}
for agent in (
    SAC(space, space, SACConfig(**small, num_steps=2), num_envs=3, seed=0),
    DDDQN(space, spaces.Discrete(3), DDDQNConfig(**small, num_steps=2, prioritized=True), num_envs=3, seed=0),
):
    rows = np.ones((3, 2), np.float32)
    for number in range(5):
        actions, ended = agent.act_batch(rows), np.array([number == 2, False, False])
        agent.remember(Transitions(rows, actions, np.ones(3), ended, ~ended & ended, rows, np.arange(3)))
    print(agent.is_compiled, len(agent.replay), all(map(np.isfinite, agent.update(3).values())))
"""


def test_without_numba_torch_learns() -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["False 12 True", "False 12 True"]


def test_actions_of_a_row_depend_on_no_other_row() -> None:
    """The same bits wherever a row stands and whatever the number of rows."""
    rng = np.random.default_rng(0)
    rows, order = rng.standard_normal((37, 5)).astype(np.float32), rng.permutation(37)
    for kind in ("sac", "td3", "tanh"):
        agent = make(kind)
        actions = agent.act_batch(rows, deterministic=True)
        assert np.array_equal(agent.act_batch(rows[order], deterministic=True), actions[order])
        assert np.array_equal(agent.act_batch(rows[5:6], deterministic=True), actions[5:6])
