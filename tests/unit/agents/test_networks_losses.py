"""Networks and losses against closed forms and torch's own distributions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from envfleet.agents import DDDQN, SAC, TD3, DDDQNConfig, SACConfig, TD3Config, Transitions
from envfleet.agents.networks import Critics, DuelingNetwork, make_target
from envfleet.agents.optimizer import Adam, ParameterBuffer
from envfleet.agents.packing import Packing
from envfleet.agents.sac import split_outputs
from envfleet.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("one_torch_thread")

SPACE = spaces.Box(-1, 1, (2,), np.float32)
UNIT = spaces.Box(-1, 1, (1,), np.float32)
SMALL: dict[str, Any] = {
    "hidden": (32,), "batch_size": 32, "warmup": 0, "capacity": 500, "learning_rate": 3e-3, "target_tau": 0.05,
    "gamma": 0.5,
}  # fmt: skip


def critics_of(*hidden: int) -> Critics:
    return Critics(Packing(SPACE), SACConfig(hidden=hidden), 1)


def test_twin_critics_are_two_networks() -> None:
    critics = critics_of(8, 4)
    observations, actions = torch.randn(5, 2), torch.randn(5, 1)
    together = critics(observations, actions)
    for number, alone in enumerate(critics.critics):
        assert torch.equal(together[number], alone(torch.cat([observations, actions], dim=1)).squeeze(1))
    assert not torch.allclose(together[0], together[1])


def test_dueling_values_are_the_mean_over_actions() -> None:
    network, inputs = (
        DuelingNetwork(Packing(spaces.Box(-1.0, 1.0, (2,))), DDDQNConfig(hidden=(8,)), 3),
        torch.randn(4, 2),
    )
    assert torch.allclose(network(inputs).mean(dim=1), network.heads(network.body(inputs))[:, 0], atol=1e-6)


def test_targets_follow() -> None:
    network = nn.Linear(2, 2)
    network.bias.requires_grad_(False)  # which does not move
    target, follower = make_target(network)
    start = target.weight.clone()
    network.weight.data += 1.0
    learned = ParameterBuffer([network.weight])
    follower.soft_update(learned, 0.25)
    assert torch.allclose(target.weight, start + 0.25)
    follower.soft_update(learned, 1.0)
    assert torch.equal(target.weight, network.weight)


@pytest.mark.parametrize("max_norm", [None, 0.1])
def test_descending_is_torchs_adam(max_norm: float | None) -> None:
    ours, theirs = (critics_of(4) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    optimizer, reference = (
        Adam(ours.parameters(), 1e-2, max_norm=max_norm),
        torch.optim.Adam(theirs.parameters(), lr=1e-2),
    )
    for number in range(6):
        observations, actions = torch.randn(8, 2), torch.randn(8, 1)
        optimizer.minimize(ours(observations, actions).square().mean())
        reference.zero_grad()
        theirs(observations, actions).square().mean().backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
        reference.step()
        if number == 2:
            state, optimizer = optimizer.state_dict(), Adam(ours.parameters(), 1.0, max_norm=max_norm)
            optimizer.load_state_dict(state)
    for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, yours, atol=1e-6)


def test_the_layout_of_parameters_makes_no_difference() -> None:
    slopes = torch.randn(3, 2)
    turned, plain = (
        nn.Parameter(torch.arange(6.0).view(2, 3).T),
        nn.Parameter(torch.arange(6.0).view(2, 3).T.contiguous()),
    )
    for parameter in (turned, plain):
        optimizer = Adam([parameter], 0.1, max_norm=None)
        for _ in range(3):
            optimizer.minimize((parameter.square() * slopes).sum())
    assert torch.equal(turned, plain)
    assert not torch.equal(turned, torch.arange(6.0).view(2, 3).T)


def test_parameters_that_lie_side_by_side_by_chance_are_joined() -> None:
    """Parameters as on a GPU: its allocator cuts memory into pieces without gaps."""
    both = np.arange(8, dtype=np.float32)
    first, second = torch.from_numpy(both[:4]), torch.from_numpy(both[4:])
    assert first.data_ptr() + 16 == second.data_ptr()
    assert ParameterBuffer([first, second]).tensor.tolist() == list(range(8))


def test_the_density_of_a_squashed_action_is_torchs() -> None:
    agent = SAC(SPACE, spaces.Box(-1, 1, (3,), np.float32), SACConfig(hidden=(8,), capacity=1), seed=0)
    inputs = torch.randn(100, 2)
    actions, actual = agent._sample_actions(inputs)
    means, log_stds = split_outputs(agent._actor(inputs))
    transforms: list[torch.distributions.Transform] = [torch.distributions.TanhTransform()]
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(means.double(), log_stds.double().exp()), transforms
    )
    is_inside = (actions.abs() < 0.999).all(dim=1)  # beyond, torch has lost the digits
    expected = squashed.log_prob(actions.double()).sum(dim=1)
    assert is_inside.sum() > 50
    assert torch.allclose(actual.double()[is_inside], expected[is_inside], atol=1e-3)


def fill(agent: Any, actions: Any, rewards: Any) -> None:
    """Episodes of one step: where the observation is (1, 0) they terminate, where it is (0, 1) they are truncated."""
    for number in range(400 // len(rewards)):
        kinds = (np.arange(len(rewards)) + number) % 2
        observations = np.eye(2, dtype=np.float32)[kinds]
        agent.remember(
            Transitions(observations, actions, rewards, kinds == 0, kinds == 1, observations, np.arange(len(rewards)))
        )


@pytest.mark.parametrize(
    "options", [{}, {"prioritized": True}, {"num_steps": 3}], ids=["plain", "by priority", "n steps"]
)
def test_action_values_of_terminated_and_of_truncated_episodes(options: dict[str, Any]) -> None:
    agent = DDDQN(SPACE, spaces.Discrete(2), DDDQNConfig(**SMALL, **options), num_envs=4, seed=0)
    fill(agent, np.array([0, 0, 1, 1]), np.array([1.0, 1.0, 2.0, 2.0]))
    agent.update(600)
    with torch.no_grad():
        terminated, truncated = agent._network(torch.eye(2)).tolist()
    assert terminated == pytest.approx([1.0, 2.0], abs=0.1)
    assert truncated == pytest.approx([3.0, 4.0], abs=0.15)  # 1 or 2, and half of the best: 2 / (1 - 0.5)


def test_all_learning_rates_fall_with_transitions() -> None:
    config = SACConfig(**SMALL, learning_rate_end=1e-3, learning_rate_transitions=800)
    agent = SAC(SPACE, UNIT, config, num_envs=20, seed=0)
    fill(agent, np.zeros((20, 1), np.float32), np.zeros(20))
    agent.update()
    learners = agent.state_dict("learner")["learners"]
    rates = [learners[f"{name}_optimizer"]["learning_rate"] for name in ("actor", "critic", "temperature")]
    assert rates == pytest.approx([2e-3] * 3)


def test_a_deterministic_policy_finds_the_best_action() -> None:
    agent = TD3(SPACE, UNIT, TD3Config(**SMALL, target_noise=0.0), num_envs=20, seed=0)
    actions = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    fill(agent, actions, 1.0 - (actions[:, 0] - 0.4) ** 2)
    agent.update(1500)
    best = agent.act_batch(np.eye(2, dtype=np.float32), deterministic=True)
    assert best[:, 0].tolist() == pytest.approx([0.4, 0.4], abs=0.12)
    with torch.no_grad():
        values = agent._critics(torch.eye(2), torch.from_numpy(best)).mean(dim=0)
    assert values.tolist() == pytest.approx([1.0, 2.0], abs=0.15)


def test_a_penalty_keeps_a_deterministic_policy_off_the_bounds() -> None:
    """With an unbounded gradient, actions saturate where the tanh is flat, as most of TD3's did on hockey."""
    found = []
    for penalty in (0.0, 0.1):
        agent = TD3(SPACE, UNIT, TD3Config(**SMALL, saturation_penalty=penalty), seed=0)
        actions = np.random.default_rng(0).uniform(-1, 1, (400, 1))
        fill(agent, actions, actions[:, 0])
        agent.update(300)
        found.append(float(agent.act(np.zeros(2, np.float32), deterministic=True)[0]))
    assert found[0] > 0.95
    assert 0.5 < found[1] < 0.9


@pytest.mark.slow
def test_the_temperature_brings_the_entropy_to_its_goal() -> None:
    agent = SAC(SPACE, UNIT, SACConfig(**SMALL, target_entropy=-0.5), num_envs=20, seed=0)
    actions = np.linspace(-1, 1, 20, dtype=np.float32)[:, None]
    fill(agent, actions, 1.0 - (actions[:, 0] - 0.4) ** 2)
    agent.update(1500)
    assert agent.update(50)["entropy"] == pytest.approx(-0.5, abs=0.15)
    assert agent.act_batch(np.eye(2, dtype=np.float32), deterministic=True)[0, 0] == pytest.approx(0.4, abs=0.15)


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
