"""Agents for discrete actions never take, nor count on, those that `action_mask` of an observation excludes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray

import envfleet
from envfleet.agents import DDDQN, PPO, Agent, Collector, DDDQNConfig, PPOConfig, Transitions, export_policy, load_agent
from envfleet.errors import InvalidArgument

ROWS, ACTIONS = 300, 5
SEEN = spaces.Dict(action_mask=spaces.MultiBinary(ACTIONS), observation=spaces.Box(-1.0, 1.0, (3,), np.float32))
MOVES: spaces.Space[Any] = spaces.Discrete(ACTIONS, start=2)
SMALL: Any = {"hidden": (16,)}


def draw_observations(seed: int = 0) -> dict[str, NDArray[Any]]:
    """Masks of all kinds, each with an action that it allows."""
    rng = np.random.default_rng(seed)
    masks = rng.integers(0, 2, (ROWS, ACTIONS), np.int8)
    masks[np.arange(ROWS), rng.integers(0, ACTIONS, ROWS)] = 1
    return {"action_mask": masks, "observation": rng.uniform(-1, 1, (ROWS, 3)).astype(np.float32)}


def assert_allowed(observations: dict[str, NDArray[Any]], actions: NDArray[Any]) -> None:
    assert (np.take_along_axis(observations["action_mask"], actions[:, None] - 2, axis=1) == 1).all()


AGENTS: dict[str, Callable[[], Agent[Any]]] = {
    "PPO": lambda: PPO(SEEN, MOVES, PPOConfig(**SMALL), num_envs=ROWS, seed=0),
    "DDDQN": lambda: DDDQN(SEEN, MOVES, DDDQNConfig(**SMALL, epsilon_start=0.5), num_envs=ROWS, seed=0),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", AGENTS)
def test_excluded_actions_are_never_taken(kind: str, tmp_path: Path) -> None:
    agent, taken = AGENTS[kind](), set()
    for seed in range(5):
        observations = draw_observations(seed)
        explored = agent.act_batch(observations)
        taken |= set(explored.tolist())
        assert_allowed(observations, explored)
        assert_allowed(observations, agent.act_batch(observations, deterministic=True))
    assert taken == {2, 3, 4, 5, 6}
    best = agent.act_batch(observations, deterministic=True)
    agent.save(tmp_path / "agent.pt")
    np.testing.assert_array_equal(load_agent(tmp_path / "agent.pt").act_batch(observations, deterministic=True), best)
    export_policy(agent, tmp_path / "policy.pt")
    policy = torch.jit.load(tmp_path / "policy.pt")
    np.testing.assert_array_equal(policy(*map(torch.from_numpy, observations.values())), best)


def test_random_actions_are_uniform_over_allowed_ones() -> None:
    agent = AGENTS["DDDQN"]()  # before its warm-up, when all actions are random
    observations = draw_observations()
    observations["action_mask"][:] = [1, 0, 1, 1, 0]
    counts = np.bincount(np.concatenate([agent.act_batch(observations) - 2 for _ in range(40)]), minlength=ACTIONS)
    assert counts[[1, 4]].tolist() == [0, 0]
    np.testing.assert_allclose(counts[[0, 2, 3]] / counts.sum(), 1 / 3, atol=0.02)


def test_a_value_is_that_of_the_best_action_that_is_allowed() -> None:
    config = DDDQNConfig(**SMALL, batch_size=8, capacity=8, warmup=0, gamma=0.5, learning_rate=1e-9)
    agent = DDDQN(SEEN, MOVES, config, seed=0)
    advantages = [50.0, 3.0, 2.0, 0.0, 0.0]
    for network in (agent._network, agent._target):
        for parameter in network.parameters():
            parameter.data.zero_()
        network.heads.bias.data = torch.tensor([0.0, *advantages])  # the value of the state comes first
    before = {"action_mask": np.ones((1, ACTIONS), np.int8), "observation": np.zeros((1, 3), np.float32)}
    after = {**before, "action_mask": np.array([[0, 1, 1, 1, 1]], np.int8)}
    goes_on = np.zeros(1, np.bool_)
    step = Transitions(
        agent.pack(before), np.array([5]), np.zeros(1), goes_on, goes_on, agent.pack(after), np.zeros(1, np.int64)
    )
    for _ in range(8):
        agent.remember(step)
    metrics = agent.update()
    mean = sum(advantages) / ACTIONS
    error = 0.5 * (3.0 - mean) - (0.0 - mean)
    assert metrics["loss"] == pytest.approx(abs(error) - 0.5)


def test_excluded_actions_have_no_chance_in_what_is_learned() -> None:
    options: Any = {"backend": "kernel", "autoreset_mode": "SAME_STEP"}
    with envfleet.make("envfleet/MaskedConnectFourOne-v0", 16, **options) as fleet:
        spaces_of = fleet.single_observation_space, fleet.single_action_space
        agent = PPO(*spaces_of, PPOConfig(**SMALL, num_epochs=1, num_minibatches=1), num_envs=16, seed=0)
        rollout = Collector(fleet, 40).collect(agent)
    numbers = rollout.observations["action_mask"].sum(axis=-1)
    assert numbers.min() < 7
    # The policy is new, so that all that is allowed is almost equally likely.
    assert agent.update(rollout)["entropy"] == pytest.approx(np.log(numbers).mean(), rel=1e-3)


def test_a_mask_of_another_size_is_refused() -> None:
    seen = spaces.Dict(action_mask=spaces.MultiBinary(4), observation=spaces.Discrete(3))
    for make in (PPO, DDDQN):
        with pytest.raises(
            InvalidArgument, match=r"'action_mask' .* has 4 elements, expected one for each of 5 actions"
        ):
            make(seen, MOVES)
    PPO(seen, spaces.Box(-1.0, 1.0, (2,)))  # which is not a choice
