"""PPO's own: the schedule of its learning rate, and products in bfloat16."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envfleet.agents import PPO, PPOConfig, Slab
from envfleet.agents.actor_critic import SquashedPolicy
from envfleet.agents.ppo import Precision
from envfleet.agents.randomness import Random
from envfleet.errors import InvalidArgument

STEPS, ENVS = 16, 8
SEEN, PUSH = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)


def a_slab() -> Slab:
    """Steps of which some end episodes, with rewards that depend on what was seen."""
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (STEPS + 1, ENVS, 3)).astype(np.float32)
    terminated = rng.random((STEPS, ENVS)) < 0.1
    steps, rows = np.nonzero(terminated)
    shape = (STEPS, ENVS)
    return Slab(
        observations=seen[:-1],
        last_observations=seen[-1],
        actions=rng.uniform(-0.9, 0.9, (*shape, 2)).astype(np.float32),
        rewards=seen[:-1, :, 0].astype(np.float64),
        terminated=terminated,
        truncated=np.zeros(shape, np.bool_),
        is_reset=np.zeros(shape, np.bool_),
        ended_steps=steps,
        ended_rows=rows,
        final_observations=seen[steps + 1, rows],
        returns=np.zeros(len(steps)),
        lengths=np.ones(len(steps), np.int64),
    )


def an_agent(**config: Any) -> PPO:
    return PPO(SEEN, PUSH, PPOConfig(hidden=(16,), **config), num_envs=ENVS, seed=0)


def rate_of(agent: PPO) -> float:
    groups = agent.state_dict("learner")["learners"]["optimiser"]["param_groups"]
    return float(groups[0]["lr"])


def test_the_learning_rate_falls_in_a_straight_line_and_then_stays() -> None:
    slab, size = a_slab(), STEPS * ENVS
    agent = an_agent(learning_rate=1e-2, learning_rate_end=1e-3, learning_rate_transitions=2 * size)
    rates = []
    for _ in range(4):
        agent.update(slab)
        rates.append(rate_of(agent))
    assert rates == pytest.approx([1e-2, 5.5e-3, 1e-3, 1e-3])


def test_the_schedule_goes_on_where_a_saved_agent_was() -> None:
    slab, size = a_slab(), STEPS * ENVS
    config = {"learning_rate": 1e-2, "learning_rate_end": 1e-3, "learning_rate_transitions": 4 * size}
    agent, other = an_agent(**config), an_agent(**config)
    agent.update(slab)
    other.load_state_dict(agent.state_dict())
    agent.update(slab)
    other.update(slab)
    assert rate_of(agent) == rate_of(other) == pytest.approx(1e-2 - 9e-3 / 4)


def figures_of(precision: Precision) -> tuple[dict[str, float], np.ndarray[Any, Any]]:
    agent, slab = an_agent(precision=precision), a_slab()
    figures = agent.update(slab)
    return figures, agent.act_batch(slab.last_observations, deterministic=True)


def test_products_in_bfloat16_learn_the_same_but_for_rounding() -> None:
    exact, exact_actions = figures_of("float32")
    short, short_actions = figures_of("bfloat16")
    assert short != exact
    assert short == pytest.approx(exact, rel=0.05, abs=0.01)
    assert np.abs(short_actions - exact_actions).max() < 0.01


def test_an_action_that_has_become_far_likelier_does_not_undo_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratio would be infinite, and infinity times an advantage of 0 is no number."""
    agent, slab = an_agent(normalise_observations=False), a_slab()
    log_probs, calls = agent._log_probs, []

    def as_if_unlikely_at_first(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logs, entropies = log_probs(*inputs)
        calls.append(len(logs))
        return (logs - 1000.0 if len(calls) == 1 else logs), entropies

    monkeypatch.setattr(agent, "_log_probs", as_if_unlikely_at_first)
    figures = agent.update(slab)
    assert len(calls) > 1
    assert all(math.isfinite(figure) for figure in figures.values())
    assert np.isfinite(agent.act_batch(slab.last_observations, deterministic=True)).all()


def test_means_beyond_the_outermost_action_make_what_is_drawn_no_less_likely() -> None:
    """A tanh of 12 and one of 13 are both 1 in float32: which was drawn cannot be told any more."""
    policy, random = SquashedPolicy(PUSH), Random(np.random.SeedSequence(0))
    log_std = torch.full((2,), -2.0)
    inside, outside = torch.full((1000, 2), 2.0), torch.full((1000, 2), 12.0)
    logs = [
        policy.log_probs(means, log_std, policy.targets(policy.draw(means, log_std, random)))[0]
        for means in (inside, outside)
    ]
    assert logs[1].min() > logs[0].mean()


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"precision='half': pass 'float32' or 'bfloat16'"):
        PPOConfig(precision="half")  # type: ignore[arg-type]
