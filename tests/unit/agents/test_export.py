"""Exported policies do what the agent does without exploration."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from tests.unit.agents.test_packing import KINDS, ROBOT, SPACES, drawn, make

from envfleet.agents import DDDQN, PPO, ActionTable, Agent, DDDQNConfig, PPOConfig, export_policy
from envfleet.errors import InvalidArgument, MissingDependency
from envfleet.fleet.layout import SpaceLayout

VECTOR = spaces.Box(-np.inf, np.inf, (2, 3), np.float32)
SPEED = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)


def parts(agent: Agent[Any], observations: Any) -> dict[str, Any]:
    """The arrays of a batch by the names that files have for them."""
    values = SpaceLayout(agent.observation_space).apart(observations)
    return {
        part.name: np.asarray(value, part.space.dtype) for part, value in zip(agent.packing.parts, values, strict=True)
    }


def check(agent: Agent[Any], folder: Path) -> None:
    observations = drawn(agent.observation_space, 33)
    expected, inputs = agent.act_batch(observations, deterministic=True), parts(agent, observations)
    export_policy(agent, folder / "policy.pt")
    script = torch.jit.load(str(folder / "policy.pt"))
    export_policy(agent, folder / "policy.onnx")
    session = onnxruntime.InferenceSession(str(folder / "policy.onnx"))
    actions = {
        "TorchScript": script(*map(torch.from_numpy, inputs.values())).numpy(),
        "ONNX": session.run(["action"], {one.name: inputs[one.name] for one in session.get_inputs()})[0],
    }
    for form, actual in actions.items():
        assert actual.shape == expected.shape, form
        assert actual.dtype == expected.dtype, form
        assert np.abs(actual - expected).max() <= 1e-5, form


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", [VECTOR, SPACES["Atari"], SPACES["MinAtar"], ROBOT, SPACES["many choices"]],
                         ids=["vector", "image", "bits", "Dict", "choices"])  # fmt: skip
def test_files_do_what_the_agent_does(kind: str, space: spaces.Space[Any], tmp_path: Path) -> None:
    check(make(kind, space), tmp_path)


@pytest.mark.filterwarnings("ignore:`torch.jit.load` is deprecated:DeprecationWarning")
def test_tables_bounds_and_normalization_are_in_the_file(tmp_path: Path) -> None:
    table = ActionTable(np.random.default_rng(0).random((7, 2)))
    check(DDDQN(VECTOR, table, DDDQNConfig(hidden=(8,), capacity=1), seed=0), tmp_path)
    check(DDDQN(VECTOR, spaces.Discrete(3, start=-1), DDDQNConfig(hidden=(8,), capacity=1), seed=0), tmp_path)
    agent = PPO(VECTOR, SPEED, PPOConfig(hidden=(8,), normalize_observations=True, layer_norm=True), seed=0)
    agent._network.observation_moments.update(torch.from_numpy(np.random.default_rng(0).normal(5, 3, (50, 6))))
    check(agent, tmp_path)


class Silent(PPO):
    """An agent that does not say what its policy is."""

    best_actions = Agent.best_actions


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make("PPO", VECTOR)
    with pytest.raises(InvalidArgument, match=r"policy.h5', expected a name that ends in .pt or .onnx"):
        export_policy(agent, tmp_path / "policy.h5")
    with pytest.raises(InvalidArgument, match=r"Silent cannot be exported, since it does not define best_actions\(\)"):
        export_policy(Silent(VECTOR, spaces.Discrete(2), PPOConfig()), tmp_path / "policy.pt")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependency, match=r"pip install 'envfleet\[export\]'"):
        export_policy(agent, tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())


def test_exported_policies_scale_images_as_the_agent_does() -> None:
    observations = spaces.Box(0, 255, (3,), np.uint8)
    agent = PPO(observations, spaces.Box(-1, 1, (2,)), PPOConfig(hidden=(8,), normalize_observations=True), seed=0)
    agent._network.observation_moments.update(torch.rand(50, 3))
    network = agent.export_policy(deterministic=True)
    assert network is not None
    x = np.random.default_rng(1).integers(0, 256, (20, 3), np.uint8)
    outputs = x.astype(np.float64)
    for place, (weight, bias) in enumerate(network.weights):
        outputs = (np.tanh(outputs) if place else outputs) @ weight.T + bias
    np.testing.assert_allclose(np.tanh(outputs), agent.act_batch(x, deterministic=True), atol=1e-5)


def test_exported_policies_act_alike() -> None:
    observations = spaces.Box(-10, 10, (3,), np.float32)
    box = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    agent = PPO(observations, box, PPOConfig(hidden=(8, 8), normalize_observations=True), seed=0)
    agent._network.observation_moments.update(torch.from_numpy(np.random.default_rng(0).normal(5, 3, (50, 3))))
    inputs = np.random.default_rng(1).normal(5, 3, (20, 3)).astype(np.float32)
    network, noisy = agent.export_policy(deterministic=True), agent.export_policy()
    assert network is not None
    assert noisy is not None
    assert (network.head, noisy.head) == ("tanh", "tanh_gaussian")
    layers = inputs
    for number, (weight, bias) in enumerate(network.weights):
        layers = (np.tanh(layers) if number else layers) @ weight.T + bias
    expected = box.low + (np.tanh(layers) + 1) / 2 * (box.high - box.low)
    assert np.allclose(agent.act_batch(inputs, deterministic=True), expected, atol=1e-4)
