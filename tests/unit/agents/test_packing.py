"""Agents see observations of every space: choices, images, Dicts and Tuples, and networks of the user's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array, iterate
from torch import Tensor, nn

from envfleet.agents import (
    DDDQN,
    PPO,
    SAC,
    TD3,
    DDDQNConfig,
    PPOConfig,
    Rollout,
    SACConfig,
    TD3Config,
    Transitions,
    load_agent,
)
from envfleet.agents.networks import ImageEncoder, make_encoder
from envfleet.agents.packing import Packing
from envfleet.errors import InvalidArgument
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.rollout import RolloutEpisodes

ROBOT = spaces.Dict(
    camera=spaces.Box(0, 255, (10, 10, 3), np.uint8),
    gear=spaces.Discrete(5, start=-1),
    body=spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.MultiDiscrete([2, 300], start=[4, 0]))),
    doors=spaces.MultiBinary(3),
    lamps=spaces.Box(0, 1, (2,), np.bool_),  # type: ignore[arg-type]  # which takes bools, too
)
SPACES: dict[str, spaces.Space[Any]] = {
    "choices": spaces.Discrete(16),
    "many choices": spaces.Discrete(500, start=3),
    "several choices": spaces.MultiDiscrete([3, 100]),
    "choices of one byte": spaces.MultiDiscrete([3, 2], np.uint8),
    "MinAtar": spaces.Box(0, 1, (10, 10, 4), np.bool_),  # type: ignore[arg-type]  # as above
    "Atari": spaces.Box(0, 255, (3, 44, 36), np.uint8),
    "Dict": ROBOT,
    "Tuple": spaces.Tuple((spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2))),
}
SHARED: dict[str, Any] = {"hidden": (16,)}
REPLAY: dict[str, Any] = {**SHARED, "batch_size": 8, "capacity": 64, "warmup": 8, "num_steps": 2}
TORQUE = spaces.Box(-2.0, 2.0, (2,), np.float32)
KINDS: dict[str, tuple[Any, Any, spaces.Space[Any]]] = {
    "DDDQN": (DDDQN, DDDQNConfig(**REPLAY), spaces.Discrete(3)),
    "SAC": (SAC, SACConfig(**REPLAY), TORQUE),
    "TD3": (TD3, TD3Config(**REPLAY), TORQUE),
    "PPO": (PPO, PPOConfig(**SHARED, num_epochs=1), spaces.Discrete(3)),
}


def drawn(space: spaces.Space[Any], count: int, seed: int = 0) -> Any:
    batch = batch_space(space, count)
    batch.seed(seed)
    return batch.sample()


def make(kind: str, space: spaces.Space[Any], **changes: Any) -> Any:
    agent, config, actions = KINDS[kind]
    return agent(space, actions, dataclasses.replace(config, **changes), num_envs=4, seed=0)


def learn(agent: Any, space: spaces.Space[Any]) -> dict[str, float]:
    """A few updates on random experience."""
    rng, everybody = np.random.default_rng(0), np.arange(4)
    steps = [agent.pack(drawn(space, 4, seed)) for seed in range(7)]
    actions = [agent.act_batch(step) for step in steps]
    nobody = np.zeros(4, np.bool_)
    if isinstance(agent, PPO):
        flags = np.zeros((6, 4), np.bool_)
        none = np.zeros(0, np.int64)
        episodes = RolloutEpisodes(none, none, np.zeros(0), none, none, steps[0][:0], {})
        return agent.update(
            Rollout(
                np.stack(steps), np.stack(actions[:-1]), rng.random((6, 4)), flags, flags, flags, {}, lambda: episodes
            )
        )
    for step, action, following in zip(steps, actions, steps[1:], strict=False):
        agent.remember(Transitions(step, action, rng.random(4), nobody, nobody, following, everybody))
    assert agent.is_ready
    metrics: dict[str, float] = agent.update(4)
    return metrics


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_rows_hold_what_was_observed(space: spaces.Space[Any]) -> None:
    packing, layout, observations = Packing(space), SpaceLayout(space), drawn(space, 5)
    rows = packing.rows(torch.from_numpy(packing.pack(observations))).numpy()
    assert rows.shape == (5, packing.num_inputs)
    for row, observation in zip(rows, iterate(batch_space(space, 5), observations), strict=True):
        expected = []
        for part, value in zip(packing.parts, layout.apart(observation), strict=True):
            number = np.ravel(value).astype(np.float64)
            if isinstance(part.space, (spaces.Discrete, spaces.MultiDiscrete)):
                number -= np.ravel(part.space.start)
            elif part.space.dtype == np.uint8:
                number /= 255
            expected.append(number)
        assert np.allclose(row, np.concatenate(expected), rtol=1e-6)


def test_packed_observations_are_small_and_stay_packed() -> None:
    packing = Packing(ROBOT)
    packed = packing.pack(drawn(ROBOT, 6))
    assert packed.shape == (6, 300 + 4 * (1 + 2 + 2) + 3 + 2)
    assert packing.pack(packed) is packed
    alone = packing.rows(torch.from_numpy(packed[4:5]))
    assert torch.equal(alone, packing.rows(torch.from_numpy(packed))[4:5])
    rollout = packing.pack(map_arrays(drawn(ROBOT, 6), lambda array: np.stack([array, array])))
    assert np.array_equal(rollout[1], packed)
    with pytest.raises(InvalidArgument, match=r"type dict lacks a part of Dict\(.*\) \(KeyError: 'gear'\): pass"):
        packing.pack({"camera": np.zeros((10, 10, 3))})
    with pytest.raises(InvalidArgument, match=r"shape \(2,\) at 'camera', expected \(10, 10, 3\) after"):
        packing.pack({**drawn(ROBOT, 6), "camera": [1, 2]})


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("kind", KINDS)
def test_agents_learn_save_and_load_in_every_space(kind: str, space: spaces.Space[Any], tmp_path: Path) -> None:
    agent, observations = make(kind, space), drawn(space, 4)
    before = agent.weights()
    assert all(np.isfinite(figure) for figure in learn(agent, space).values())
    for name, weights in agent.weights().items():
        moved = [key for key, value in weights.items() if not torch.equal(value, before[name][key])]
        learned = [key for key, _ in agent._networks[name].named_parameters() if key != "log_std"]
        assert name == "temperature" or set(learned) <= set(moved), (name, set(learned) - set(moved))
    agent.save(tmp_path / "agent.pt")
    loaded = load_agent(tmp_path / "agent.pt")
    assert loaded.observation_space == space
    assert [part.name for part in loaded.packing.parts] == [part.name for part in agent.packing.parts]
    chosen = agent.act_batch(observations, deterministic=True)
    assert np.array_equal(loaded.act_batch(observations, deterministic=True), chosen)
    one = next(iter(iterate(batch_space(space, 4), observations)))
    assert np.allclose(loaded.act(one, deterministic=True), chosen[0], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "layer_norm"), [("tanh", False), ("relu", True)])
def test_dense_layers_have_the_form_that_is_asked_for(kind: str, activation: Any, layer_norm: bool) -> None:
    space = spaces.Box(-1.0, 1.0, (3,))
    agent = make(kind, space, activation=activation, layer_norm=layer_norm)
    network = next(iter(agent._networks.values()))
    types = {type(module) for module in network.modules()}
    assert ({nn.Tanh: "tanh", nn.ReLU: "relu"}[nn.Tanh if nn.Tanh in types else nn.ReLU]) == activation
    assert (nn.LayerNorm in types) == layer_norm
    assert all(np.isfinite(figure) for figure in learn(agent, space).values())


def test_choices_are_one_hot_or_embedded_if_many() -> None:
    few, size = make_encoder(Packing(spaces.MultiDiscrete([3, 2], start=[1, 5])))
    rows = Packing(spaces.MultiDiscrete([3, 2], start=[1, 5])).rows(torch.tensor([[1, 6], [3, 5]]))
    assert few is not None
    assert few(rows).tolist() == [[1, 0, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert size == 5
    many, size = make_encoder(Packing(spaces.Discrete(500)))
    assert many is not None
    assert size == 64
    assert torch.equal(many(torch.tensor([[499.0]]))[0], next(many.parameters())[499])


def test_images_are_read_with_channels_first_or_last() -> None:
    torch.manual_seed(0)
    last, first = ImageEncoder((10, 12, 4)), ImageEncoder((4, 10, 12))
    first.load_state_dict(last.state_dict())
    images = torch.rand(2, 10, 12, 4)
    assert torch.allclose(last(images.flatten(1)), first(images.permute(0, 3, 1, 2).flatten(1)), atol=1e-6)
    assert last(images.flatten(1)).shape == (2, 16 * 8 * 10)


class Scales(nn.Module):
    """A network of a user's own for `ROBOT`."""

    def __init__(self) -> None:
        super().__init__()
        self.gears = nn.Embedding(5, 2)

    def forward(self, observations: dict[str, Any]) -> Tensor:
        place, settings = observations["body"]
        assert observations["camera"].shape[1:] == (10, 10, 3)
        assert settings.dtype == torch.int64
        return torch.cat([self.gears(observations["gear"]), place], dim=1)


def scales(space: spaces.Space[Any]) -> nn.Module:
    assert space == ROBOT
    return Scales()


def flawed(space: spaces.Space[Any]) -> nn.Module:
    return nn.Unflatten(1, (1, -1))


def too_wide(space: spaces.Space[Any]) -> nn.Module:
    return nn.Linear(99, 8)


NO_MODULE = 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_ones_own_is_learned_and_loaded(kind: str, tmp_path: Path) -> None:
    agent = make(kind, ROBOT, network=f"{__name__}:scales")
    before = agent.weights()
    learn(agent, ROBOT)
    for name, network in agent._networks.items():
        for key, value in network.named_parameters():
            if "gears" in key:
                assert not torch.equal(value, before[name][key])
    agent.save(tmp_path / "agent.pt")
    observations = drawn(ROBOT, 4)
    with pytest.raises(InvalidArgument, match=r"the network of .* is .*:scales., code that .* pass trust=True"):
        load_agent(tmp_path / "agent.pt")
    loaded = load_agent(tmp_path / "agent.pt", trust=True).act_batch(observations, deterministic=True)
    assert np.array_equal(loaded, agent.act_batch(observations, deterministic=True))


def test_a_network_that_is_none_is_refused() -> None:
    for network, match in (
        ("nowhere:scales", r"network is 'nowhere:scales', but the module cannot be imported"),
        (f"{__name__}:nothing", r"network is '.*:nothing', but .* has no attribute 'nothing': check the spelling"),
        ("scales", r"network is 'scales', expected 'module:name'"),
        (f"{__name__}:NO_MODULE", r"network is '.*:NO_MODULE', a int, which cannot be called"),
        ("builtins:repr", r"returned a str, expected a torch.nn.Module"),
        (f"{__name__}:too_wide", r"too_wide' failed on 2 observations of Box\(.*\): mat1 and mat2 shapes"),
        (f"{__name__}:flawed", r"returned shape \(2, 1, 3\) for a batch of 2 observations, expected .*: flatten"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            make("DDDQN", spaces.Box(-1.0, 1.0, (3,)), network=network)


def test_empty_batches_and_wrong_shapes_are_said() -> None:
    agent = make("DDDQN", SPACES["Dict"])
    empty = create_empty_array(SPACES["Dict"], 2)
    assert agent.act_batch(empty, deterministic=True).shape == (2,)
    with pytest.raises(InvalidArgument, match=r"an array of shape \(2, 3\), expected the form of Dict\("):
        agent.act_batch(np.zeros((2, 3), np.uint8))
    with pytest.raises(InvalidArgument, match=r"an array of shape \(1, 3\), expected the form of Dict\("):
        agent.act(np.zeros(3, np.uint8))
