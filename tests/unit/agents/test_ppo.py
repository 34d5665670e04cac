"""PPO's own: the schedule of its learning rate, and compiled updates."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envfleet.agents import PPO, PPOConfig, Rollout
from envfleet.agents.actions import SquashedPolicy
from envfleet.agents.compiled import F32, TANH, _activate
from envfleet.agents.networks import RunningMoments
from envfleet.fleet.rollout import RolloutEpisodes
from envfleet.native.compiling import compile_function

STEPS, ENVS = 16, 8
SEEN, PUSH = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32)


def a_rollout() -> Rollout:
    """Steps of which some end episodes, with rewards that depend on what was seen."""
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 1, (STEPS + 1, ENVS, 3)).astype(np.float32)
    terminated = rng.random((STEPS, ENVS)) < 0.1
    steps, rows = np.nonzero(terminated)
    shape = (STEPS, ENVS)
    nothing = np.zeros(len(steps), np.int64)
    episodes = RolloutEpisodes(steps, rows, nothing.astype(float), nothing, nothing, seen[steps + 1, rows], {})
    return Rollout(
        all_observations=seen,
        actions=rng.uniform(-0.9, 0.9, (*shape, 2)).astype(np.float32),
        rewards=seen[:-1, :, 0].astype(np.float64),
        terminated=terminated,
        truncated=np.zeros(shape, np.bool_),
        is_reset=np.zeros(shape, np.bool_),
        infos={},
        gather=lambda: episodes,
    )


def an_agent(**config: Any) -> PPO:
    return PPO(SEEN, PUSH, PPOConfig(**{"hidden": (16,), **config}), num_envs=ENVS, seed=0)


def rate_of(agent: PPO) -> float:
    return float(agent.state_dict("learner")["learners"]["optimizer"]["learning_rate"])


def test_the_learning_rate_falls_linearly_and_then_stays() -> None:
    rollout, size = a_rollout(), STEPS * ENVS
    agent = an_agent(learning_rate=1e-2, learning_rate_end=1e-3, learning_rate_transitions=2 * size)
    rates = []
    for _ in range(4):
        agent.update(rollout)
        rates.append(rate_of(agent))
    assert rates == pytest.approx([1e-2, 5.5e-3, 1e-3, 1e-3])


def test_the_schedule_goes_on_where_a_saved_agent_was() -> None:
    rollout, size = a_rollout(), STEPS * ENVS
    config = {"learning_rate": 1e-2, "learning_rate_end": 1e-3, "learning_rate_transitions": 4 * size}
    agent, other = an_agent(**config), an_agent(**config)
    agent.update(rollout)
    other.load_state_dict(agent.state_dict())
    agent.update(rollout)
    other.update(rollout)
    assert rate_of(agent) == rate_of(other) == pytest.approx(1e-2 - 9e-3 / 4)


def shift_old_log_probs(agent: PPO, shifts: torch.Tensor | float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the first `log_probs`, those of the old policy, differ from those of the new."""
    log_probs, calls = agent._policy.log_probs, []

    def shifted(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logs, entropies = log_probs(*inputs)
        calls.append(len(logs))
        return (logs + shifts if len(calls) == 1 else logs), entropies

    monkeypatch.setattr(agent._policy, "log_probs", shifted)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_far_likelier_action_does_not_ruin_the_policy(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ratio would be infinite, and infinity times an advantage of 0 is NaN."""
    agent, rollout = an_agent(compiled=compiled), a_rollout()
    shift_old_log_probs(agent, -1000.0, monkeypatch)
    metrics = agent.update(rollout)
    assert all(math.isfinite(figure) for figure in metrics.values())
    assert np.isfinite(agent.act_batch(rollout.last_observations, deterministic=True)).all()


def test_means_beyond_the_bounds_keep_densities_of_actions() -> None:
    """A tanh of 12 and one of 13 are both 1 in float32: the drawn one cannot be recovered."""
    policy, generator = SquashedPolicy(PUSH), torch.Generator().manual_seed(0)
    log_std = torch.full((2,), -2.0)
    inside, outside = torch.full((1000, 2), 2.0), torch.full((1000, 2), 12.0)
    logs = [
        policy.log_probs(means, log_std, policy.targets(policy.draw(means, log_std, generator)))[0]
        for means in (inside, outside)
    ]
    assert logs[1].min() > logs[0].mean()


# ---------------------------------------------------------------------- compiled, and by torch

KINDS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu", "max_grad_norm": None},
    "tanh, two layers": {"hidden": (24, 16), "max_grad_norm": 0.01},
    "entropy": {"entropy_weight": 0.1, "value_weight": 2.0, "initial_log_std": -1.0},
    "normalized": {"normalize_observations": True, "normalize_values": True},
    "early end": {"learning_rate": 1e-2, "target_kl": 0.002},
}


def a_pair(kind: str, is_discrete: bool, **config: Any) -> tuple[PPO, PPO, Rollout]:
    """Two equal agents, of which one is compiled, and what they learn from; its parts are not of one size."""
    rollout, space = a_rollout(), cast("spaces.Space[Any]", PUSH)
    if is_discrete:
        choices = np.random.default_rng(1).integers(2, 5, (STEPS, ENVS))
        rollout, space = dataclasses.replace(rollout, actions=choices), spaces.Discrete(3, start=2)
    options = {"hidden": (16,), "num_epochs": 2, "num_minibatches": 3, **KINDS[kind], **config}
    first, second = (
        PPO(SEEN, space, PPOConfig(**options, compiled=compiled), num_envs=ENVS, seed=0) for compiled in (True, False)
    )
    assert first.is_compiled
    assert not second.is_compiled
    return first, second, rollout


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("is_discrete", [False, True], ids=["normal", "choices"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_minibatch_are_autograds(kind: str, is_discrete: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ratios are clipped on either side, and beyond the limit of dual clipping."""
    first, second, rollout = a_pair(kind, is_discrete, num_epochs=1, num_minibatches=1)
    for agent in (first, second):
        shifts = torch.randn(STEPS * ENVS, generator=torch.Generator().manual_seed(0))
        shift_old_log_probs(agent, shifts, monkeypatch)
    metrics, expected = first.update(rollout), second.update(rollout)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert 0.1 < metrics["clipped"] < 0.9
    # The first means of Adam are a tenth of the gradients.
    sizes = [parameter.numel() for parameter in first._optimizer.parameters]
    means = (torch.split(agent._optimizer.means, sizes) for agent in (first, second))
    for actual, wanted in zip(*means, strict=True):
        scale = max(float(wanted.abs().max()), 1e-6)
        assert float((actual - wanted).abs().max()) < 1e-5 * scale


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("is_discrete", [False, True], ids=["normal", "choices"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_updates_are_those_of_torch_but_for_rounding(kind: str, is_discrete: bool) -> None:
    first, second, rollout = a_pair(kind, is_discrete)
    for _ in range(3):
        assert first.update(rollout) == pytest.approx(second.update(rollout), rel=1e-4, abs=1e-5)
        assert first.num_updates == second.num_updates
        assert first._optimizer.count == second._optimizer.count
    assert (first.num_updates < 18) == (kind == "early end")
    theirs = second.weights()["network"]
    for name, weights in first.weights()["network"].items():
        torch.testing.assert_close(weights, theirs[name], rtol=1e-3, atol=1e-4)
    ours, torchs = (agent.act_batch(rollout.last_observations) for agent in (first, second))
    np.testing.assert_allclose(ours, torchs, atol=1e-3)


def test_loaded_weights_decide_whether_to_normalize() -> None:
    normalized, _, rollout = a_pair("normalized", is_discrete=False)
    plain, by_torch, _ = a_pair("entropy", is_discrete=False)
    normalized.update(rollout)
    rows = np.random.default_rng(2).normal(3.0, 2.0, (9, *rollout.observations.shape[2:])).astype(np.float32)
    expected = normalized.act_batch(rows, deterministic=True)
    for agent in (plain, by_torch):
        agent.set_weights(normalized.weights())
        np.testing.assert_allclose(agent.act_batch(rows, deterministic=True), expected, rtol=1e-5, atol=1e-6)


def test_a_restored_agent_makes_the_same_updates_to_the_last_bit() -> None:
    first, _, rollout = a_pair("normalized", is_discrete=False)
    other, _, _ = a_pair("normalized", is_discrete=False)
    first.update(rollout)
    other.load_state_dict(first.state_dict())
    assert first.update(rollout) == other.update(rollout)
    for name, weights in first.weights()["network"].items():
        assert torch.equal(weights, other.weights()["network"][name]), name


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_not_finite_shows_in_the_figures(compiled: bool) -> None:
    rollout, agent = a_rollout(), an_agent(compiled=compiled)
    agent.update(dataclasses.replace(rollout, rewards=np.full_like(rollout.rewards, np.inf)))
    assert not all(math.isfinite(figure) for figure in agent.update(rollout).values())


def test_what_cannot_be_compiled_is_learned_by_torch() -> None:
    assert not an_agent(layer_norm=True).is_compiled


@compile_function
def finish(products: F32, biases: F32) -> None:
    _activate(products, biases, TANH)


def test_tanh_is_that_of_numpy() -> None:
    numbers = np.concatenate([np.linspace(-12, 12, 10_001), [np.nan, np.inf, -np.inf]]).astype(np.float32)
    actual = numbers.copy()
    finish(actual[None], np.zeros_like(actual))
    np.testing.assert_allclose(actual, np.tanh(numbers), atol=6e-7)


def test_resets_are_not_looked_at() -> None:
    """A `TransitionRecorder` leaves zeros there, which may be no action: choices that begin with 2 were an error."""
    agent, _, rollout = a_pair("relu", is_discrete=True)
    rollout.is_reset[3, 2:5] = True
    metrics = agent.update(dataclasses.replace(rollout, actions=np.where(rollout.is_reset, 0, rollout.actions)))
    other, _, _ = a_pair("relu", is_discrete=True)
    assert metrics == other.update(rollout)


def test_only_built_in_convolutions_start_orthogonal() -> None:
    """With PyTorch's own first weights returns on MinAtar's Breakout ended at 5.8, with these at 7.5 and 9.0."""
    images: Any = spaces.Box(0, 255, (10, 10, 4), np.uint8)
    actions: Any = spaces.Discrete(3)
    network = PPO(images, actions, PPOConfig(hidden=(8,)), num_envs=2, seed=0)._network
    for encoder in (network.actor_encoder, network.critic_encoder):
        (convolution,) = (layer for layer in encoder.modules() if isinstance(layer, torch.nn.Conv2d))
        rows = convolution.weight.flatten(1)
        torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(len(rows)), atol=1e-5, rtol=0)
        assert convolution.bias is not None
        assert not convolution.bias.any()
    config = PPOConfig(hidden=(8,), network=f"{__name__}:constant_network")
    own = PPO(images, actions, config, num_envs=2, seed=0)
    for parameter in own._network.actor_encoder.parameters():
        assert (parameter == 0.5).all()


def constant_network(space: Any) -> torch.nn.Module:
    layer = torch.nn.Linear(400, 8)
    torch.nn.init.constant_(layer.weight, 0.5)
    torch.nn.init.constant_(layer.bias, 0.5)
    return torch.nn.Sequential(torch.nn.Flatten(), layer)


def test_the_squashed_policy_has_the_density_of_torchs() -> None:
    box = spaces.Box(-2.0, 2.0, (2,), np.float32)
    agent = PPO(spaces.Box(-1, 1, (1,), np.float32), box, PPOConfig(hidden=(4,), initial_log_std=-0.5), seed=0)
    actions = agent.act_batch(np.zeros((50, 1), np.float32))
    targets = agent._policy.targets(actions)
    means, log_std = torch.full((50, 2), 0.3), agent._network.log_std
    normal = torch.distributions.Normal(means, log_std.exp())
    logs, entropies = agent._policy.log_probs(means, log_std, targets)
    assert torch.allclose(logs, normal.log_prob(targets).sum(dim=1))
    assert torch.allclose(entropies, normal.entropy().sum(dim=1))
    assert np.allclose(2 * np.tanh(targets.numpy()), actions, atol=1e-4)


def test_moments_of_a_stream_are_those_of_all_of_it() -> None:
    rows = np.random.default_rng(0).normal([1e6, -3.0], [1.0, 0.0], (1000, 2))
    moments = RunningMoments(2)
    assert moments.deviation.tolist() == [1.0, 1.0]
    for part in np.split(rows, [1, 10, 300]):
        moments.update(torch.from_numpy(part))
    assert moments.mean.numpy() == pytest.approx(rows.mean(axis=0))
    assert moments.deviation.tolist() == pytest.approx([rows[:, 0].std(), 1.0])
    values = torch.from_numpy(rows)
    assert torch.allclose(moments.restore(moments(values)), values)


def test_returns_change_the_scale_of_values_and_not_the_values() -> None:
    agent = PPO(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2), seed=0)
    inputs = torch.randn(20, 3)
    before = agent._values(inputs)
    for returns in (torch.linspace(50, 70, 10), torch.linspace(-100, 300, 10)):
        agent._network.update_value_moments(returns)
        assert np.allclose(agent._values(inputs), before, atol=1e-3)
    assert agent._network.value_moments.deviation.item() > 50
