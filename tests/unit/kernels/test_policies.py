"""Compiled networks against float64 NumPy and NumPy's generators."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.kernels.samples import policy_generator

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels import MLP, Kernel, array
from envfleet.kernels.kernel import read_kernel
from envfleet.kernels.policy_source import policy_source

NUM_STEPS = 12


class Turn(Kernel):
    """A discrete choice among four from three numbers."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space: ClassVar[spaces.Space[Any]] = spaces.Discrete(4, start=-1)
    max_episode_steps = 10

    class State(Kernel.State):
        x: float
        y: float

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = rng.uniform(-1.0, 1.0)
        state.y = rng.uniform(-1.0, 1.0)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x, state.y = 0.9 * state.y + 0.1 * action, state.x
        return state.x, False

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.x
        out[1] = state.y
        out[2] = state.x * state.y


class Barred(Turn):
    """The same with a mask: one action is excluded where one number is below 0, all where both are."""

    info_fields: ClassVar[tuple[str, ...]] = ("action_mask",)

    class State(Turn.State):
        action_mask: NDArray[np.int8] = array(4, np.int8)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = rng.uniform(-1.0, 1.0)
        state.y = rng.uniform(-1.0, 1.0)
        bar(state)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x, state.y = 0.9 * state.y + 0.1 * action, state.x
        bar(state)
        return state.x, False


def bar(state: Any) -> None:
    for k in range(4):
        state.action_mask[k] = (k != 1 or state.x > 0) and (state.x > 0 or state.y > 0)


class Pull(Turn):
    """The same with two real numbers as action."""

    action_space = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 4.0], np.float32))

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x, state.y = 0.9 * state.y + 0.1 * action[0], state.x + 0.1 * action[1]
        return state.x, False


class Line(Turn):
    """One number to see."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[0] = state.x


def layers(*sizes: int) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    rng = np.random.default_rng(8)
    return [
        (rng.normal(size=(outputs, inputs)), rng.normal(size=outputs)) for inputs, outputs in itertools.pairwise(sizes)
    ]


def network_of(head: Any) -> MLP:
    """Return the network of a head, a single one per head so that each is compiled once; some have a critic."""
    if head == "argmax":
        return MLP(layers(3, 19, 5, 4), "relu", head)  # widths that no vector divides
    if head in ("linear", "tanh"):
        return MLP(layers(3, 9, 2), "tanh", head)
    log_std = None if head == "categorical" else [-1.0, 0.5]
    return MLP(layers(3, 19, 13, 4 if log_std is None else 2), "tanh", head, log_std, critic=layers(3, 21, 1))


def forward(policy: MLP, observations: NDArray[Any]) -> NDArray[np.float64]:
    activate = np.tanh if policy.activation == "tanh" else lambda z: np.maximum(z, 0.0)
    x = observations.astype(np.float32).astype(np.float64)
    for k, (w, b) in enumerate(policy.weights):
        x = x @ w.astype(np.float64).T + b
        x = activate(x) if k < len(policy.weights) - 1 else x
    return x


def make(kernel: type[Kernel], num_envs: int, workers: int = 1) -> Any:
    fleet = envfleet.make(kernel, num_envs, backend="kernel", max_episode_steps=10, workers=workers)
    fleet.reset(seed=2)
    return fleet


def test_argmax() -> None:
    policy = network_of("argmax")
    with make(Turn, 70, workers=2) as fleet:
        rollout = fleet.rollout(policy, NUM_STEPS)
    values = np.sort(forward(policy, rollout.observations), axis=-1)
    is_clear = values[..., -1] - values[..., -2] > 1e-4
    expected = forward(policy, rollout.observations).argmax(-1) - 1
    assert is_clear.mean() > 0.9
    assert len(np.unique(expected)) > 1
    np.testing.assert_array_equal(rollout.actions[is_clear], expected[is_clear])


def test_categorical() -> None:
    policy = network_of("categorical")
    with make(Turn, 70) as fleet:
        rollout = fleet.rollout(policy, NUM_STEPS, seed=6)
    values = forward(policy, rollout.observations)
    chances = np.exp(values - values.max(-1, keepdims=True))
    sums = np.cumsum(chances / chances.sum(-1, keepdims=True), -1)
    draws = np.stack([policy_generator(6, i).random(NUM_STEPS) for i in range(70)], axis=1)
    is_clear = np.abs(sums - draws[..., None]).min(-1) > 1e-5
    expected = (sums[..., :-1] <= draws[..., None]).sum(-1) - 1
    assert is_clear.mean() > 0.99
    assert set(np.unique(expected)) == {-1, 0, 1, 2}
    np.testing.assert_array_equal(rollout.actions[is_clear], expected[is_clear])


@pytest.mark.parametrize(
    "head", ["tanh", "tanh_gaussian", *(pytest.param(head, marks=pytest.mark.slow) for head in ("linear", "gaussian"))]
)
def test_heads_of_boxes(head: Any) -> None:
    policy = network_of(head)
    with make(Pull, 5) as fleet:
        rollout = fleet.rollout(policy, NUM_STEPS, seed=6)
    expected = forward(policy, rollout.observations)
    if policy.log_std is not None:
        noise = [policy_generator(6, i).standard_normal((NUM_STEPS, 2)) for i in range(5)]
        expected += np.exp(policy.log_std) * np.stack(noise, axis=1)
    if head.startswith("tanh"):
        expected = np.array([-1.0, 0.0]) + (np.tanh(expected) + 1) / 2 * np.array([2.0, 4.0])
    np.testing.assert_allclose(rollout.actions, expected, rtol=2e-6, atol=4e-6)
    assert rollout.actions.std() > 0.1


def test_actions_depend_on_the_sub_environment_alone() -> None:
    """Vector code must give a row the same bits in a full block and in a short one, in any place."""
    policy = network_of("tanh_gaussian")
    with make(Pull, 200, workers=3) as many, make(Pull, 5) as few:
        rollout, part = many.rollout(policy, 30, seed=1), few.rollout(policy, 30, seed=1)
    np.testing.assert_array_equal(rollout.actions[:, :5], part.actions)
    np.testing.assert_array_equal(rollout.all_observations[:, :5], part.all_observations)


def test_new_weights_are_used() -> None:
    first = layers(3, 19, 5, 4)
    with make(Turn, 2) as fleet:
        for scale in (1.0, -0.5):
            policy = MLP([(w * scale, b) for w, b in first], "relu", "argmax")
            rollout = fleet.rollout(policy, 3)
            np.testing.assert_array_equal(rollout.actions, forward(policy, rollout.observations).argmax(-1) - 1)


def test_tanh() -> None:
    """A network of one number that hands its activation on, over all of the range and beyond."""
    x = np.concatenate([np.linspace(-12, 12, 20_001), [0.0, 1e-30, 3e38, -3e38]]).astype(np.float32)
    one: Any = [(np.ones((1, 1)), np.zeros(1))] * 2
    policy = MLP([(np.ones((4, 1)), np.zeros(4))], "tanh", critic=one)
    with make(Line, len(x)) as fleet:
        fleet.set_attr("x", x)
        values = fleet.rollout(policy, 1).values[0]
    np.testing.assert_allclose(values, np.tanh(x.astype(np.float64)), rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize(
    ("kernel", "head"),
    [
        (Turn, "categorical"),
        (Pull, "tanh_gaussian"),
        pytest.param(Pull, "gaussian", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_what_a_learner_needs_is_what_torch_finds_step_by_step(kernel: Any, head: Any, mode: Any) -> None:
    num_envs, policy = 70, network_of(head)
    with envfleet.make(
        kernel, num_envs, backend="kernel", max_episode_steps=10, workers=2, autoreset_mode=mode
    ) as fleet:
        fleet.reset(seed=2)
        rollout = fleet.rollout(policy, 25, seed=6)
    assert rollout.log_probs is not None
    assert rollout.values is not None
    observations = torch.from_numpy(rollout.all_observations).float()
    logits = network(policy.weights, observations[:-1])
    if head == "categorical":
        log_probs = torch.distributions.Categorical(logits=logits).log_prob(torch.from_numpy(rollout.actions) + 1)
    else:
        deviation = torch.tensor(policy.log_std).exp()
        normal = torch.distributions.Normal(logits, deviation)
        noise = np.stack([policy_generator(6, i).standard_normal((25, 2)) for i in range(num_envs)], axis=1)
        raw = logits + deviation * torch.from_numpy(noise).float()
        log_probs = normal.log_prob(raw).sum(-1)
        if head == "tanh_gaussian":
            width = torch.from_numpy(Pull.action_space.high - Pull.action_space.low)
            slope = torch.distributions.TanhTransform().log_abs_det_jacobian(raw, torch.tanh(raw))
            log_probs = log_probs - (slope + torch.log(width / 2)).sum(-1)
    np.testing.assert_allclose(rollout.log_probs, log_probs, rtol=3e-6, atol=2e-5)
    np.testing.assert_allclose(rollout.values, network(policy.critic, observations)[:-1, :, 0], rtol=2e-6, atol=4e-6)
    check_advantages(rollout, policy, mode)


def check_advantages(rollout: Any, policy: MLP, mode: str) -> None:
    """Estimate the advantages episode by episode, from the definition."""
    gamma, gae_lambda = 0.9, 0.8
    advantages, returns = rollout.advantages(gamma, gae_lambda)
    values = network(policy.critic, torch.from_numpy(rollout.all_observations).float())[..., 0].double().numpy()
    ended = {
        (t, i): k for k, (t, i) in enumerate(zip(rollout.episodes.steps, rollout.episodes.env_indices, strict=True))
    }
    assert len(ended) > 70
    num_steps, num_envs = rollout.rewards.shape
    expected = np.zeros((num_steps, num_envs))
    for i in range(num_envs):
        later = 0.0
        for t in reversed(range(num_steps)):
            following = values[t + 1, i]
            if (t, i) in ended:
                later = 0.0
                last = torch.from_numpy(rollout.episodes.observations[ended[t, i]]).float()
                following = float(network(policy.critic, last)[0])
            if rollout.is_reset[t, i]:
                later = 0.0
                continue
            delta = rollout.rewards[t, i] + gamma * following * (not rollout.terminated[t, i]) - values[t, i]
            later = expected[t, i] = delta + gamma * gae_lambda * later
    assert rollout.is_reset.any() == (mode == "NEXT_STEP")
    np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=3e-5)
    np.testing.assert_allclose(
        returns[~rollout.is_reset], (expected + values[:-1])[~rollout.is_reset], rtol=1e-4, atol=3e-5
    )


def network(weights: Any, x: torch.Tensor) -> torch.Tensor:
    for k, (w, b) in enumerate(weights):
        x = torch.nn.functional.linear(x, torch.from_numpy(w), torch.from_numpy(b))
        x = torch.tanh(x) if k < len(weights) - 1 else x
    return x


def test_advantages_need_a_critic() -> None:
    with make(Turn, 2) as fleet:
        rollout = fleet.rollout(network_of("argmax"), 3)
    assert rollout.log_probs is None
    with pytest.raises(InvalidArgument, match=r"has no values: roll out a network with a critic"):
        rollout.advantages(0.9, 0.9)
    with pytest.raises(InvalidArgument, match=r"gamma=2, gae_lambda=0\.9: pass numbers from 0 to 1"):
        rollout.advantages(2, 0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": []}, r"takes one \(W, b\) per layer, not this list: pass \[\(W, b\), …\]"),
        (
            {"weights": torch.nn.Sequential(torch.nn.Linear(4, 3))},
            r"not this Sequential: .*layer\.weight\.detach\(\)",
        ),
        ({"weights": torch.nn.Linear(4, 3)}, "not this Linear"),
        ({"weights": [np.ones((3, 4)), np.ones((2, 3))]}, r"takes one \(W, b\) per layer"),
        ({"weights": layers(3, 4), "activation": "gelu"}, "activation='gelu': pass one of 'tanh', 'relu'"),
        ({"weights": layers(3, 4), "head": "softmax"}, "head='softmax': pass one of 'argmax'"),
        ({"weights": layers(3, 4), "head": "gaussian"}, "head='gaussian' requires log_std"),
        ({"weights": layers(3, 4), "log_std": 0.0}, "head='argmax' does not use log_std"),
        ({"weights": [*layers(3, 5), *layers(4, 2)]}, r"layer 1 has W of shape \(2, 4\) .* expected \(outputs, 5\)"),
        ({"weights": [(np.ones((3, 4)), np.ones(4))]}, "W.T if yours is"),
        ({"weights": [(np.full((3, 4), np.nan), np.ones(3))]}, "W of layer 0 has values that are not finite"),
        ({"weights": [("a", "b")]}, "W of layer 0 is not an array of numbers"),
        ({"weights": [(np.ones((3, 4)), None)]}, "b of layer 0 has values that are not finite: .* zeros for no bias"),
        ({"weights": layers(3, 4), "heeds_mask": "no"}, "heeds_mask='no' .*: pass True or False"),
        ({"weights": layers(3, 4), "critic": []}, "per layer of the critic, not this list"),
    ],
)
def test_networks_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        MLP(**arguments)


@pytest.mark.parametrize(
    ("kernel", "policy", "message"),
    [
        (Turn, MLP(layers(3, 3)), "has 3 inputs and 3 outputs, expected 3 and 4"),
        (Turn, MLP(layers(2, 4)), "has 2 inputs and 4 outputs, expected 3 and 4"),
        (Turn, MLP(layers(3, 4), head="tanh"), "does not fit Discrete.*: use one of argmax, categorical"),
        (Pull, MLP(layers(3, 2)), "does not fit Box.*: use one of linear, tanh"),
        (Pull, MLP(layers(3, 2), "relu", "gaussian", [0.0] * 3), "log_std has 3 elements, expected 1 or 2"),
    ],
)
def test_networks_that_do_not_fit(kernel: type[Kernel], policy: MLP, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        policy.check(read_kernel(kernel))


def test_unbounded_spaces() -> None:
    class Free(Pull):
        action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    with pytest.raises(InvalidArgument, match="not bounded"):
        policy_source(read_kernel(Free), "random")
    with pytest.raises(InvalidArgument, match="requires a bounded space"):
        MLP(layers(3, 2), head="tanh").check(read_kernel(Free))
    MLP(layers(3, 2), head="linear").check(read_kernel(Free))
