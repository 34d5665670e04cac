"""Promises of every agent: actions, determinism, and resuming exactly."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.unit.agents.samples import KINDS, OBSERVATIONS, TABLE, TORQUE, Run, is_equal, make

from envfleet.agents import (
    DDDQN,
    PPO,
    SAC,
    TD3,
    ActionTable,
    DDDQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    Transitions,
    load_agent,
)
from envfleet.errors import InvalidArgument


def test_actions_are_of_the_space_and_one_per_row(kind: Any) -> None:
    agent, observations = make(kind), np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    for deterministic in (False, True):
        actions = agent.act_batch(observations, deterministic=deterministic)
        assert isinstance(actions, np.ndarray)
        assert len(actions) == 3
        for action in actions:
            if isinstance(kind[1], ActionTable):
                assert action.tolist() in kind[1].actions.tolist()
            else:
                assert action in kind[1]
    best = agent.act_batch(observations, deterministic=True)
    assert np.array_equal(best, agent.act_batch(observations, deterministic=True))
    for row, observation in enumerate(observations):
        assert np.allclose(agent.act(observation, deterministic=True), best[row], atol=1e-5)
    observations.setflags(write=False)
    agent.act_batch(observations)
    with pytest.raises(InvalidArgument, match=r"shape \(3,\), expected \(N, …\) = \(N, 3\)"):
        agent.act_batch(observations[0])


def test_learning_moves_weights_and_reports_figures(kind: Any) -> None:
    agent = make(kind)
    before = agent.weights()
    run = Run(agent)
    metrics = run.go_on(15)
    assert all(np.isfinite(value) for figure in metrics for value in figure.values())
    assert agent.num_updates > 0
    for name in before:
        assert any(
            not torch.equal(tensor, after)
            for tensor, after in zip(before[name].values(), agent.weights()[name].values(), strict=True)
        ), name


def test_the_seed_decides_all_and_torchs_own_generator_nothing(kind: Any) -> None:
    torch.manual_seed(1)
    first = make(kind)
    run = Run(first)
    run.go_on(12)
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = make(kind)
    Run(second).go_on(12)
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())  # nor was it touched
    assert is_equal(first, second)
    other = make(kind, seed=1)
    Run(other).go_on(12)
    assert not is_equal(first, other)


def test_an_interrupted_run_goes_on_to_the_last_bit(kind: Any, tmp_path: Path) -> None:
    agent = make(kind)
    run = Run(agent)
    run.go_on(10)
    agent.save(tmp_path / "run" / "agent.pt", contents="all")
    whole = run.go_on(10)

    again = Run(make(kind))  # the fleet is brought to where it was; agents have nothing to do with that
    again.go_on(10)
    again.agent = make(kind, seed=77)
    again.agent.load(tmp_path / "run" / "agent.pt")
    assert again.go_on(10) == whole
    assert is_equal(agent, again.agent)
    assert (agent.num_updates, agent.num_transitions) == (again.agent.num_updates, again.agent.num_transitions)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["agent.pt"]


def test_a_saved_state_is_not_changed_by_what_follows(kind: Any) -> None:
    agent = make(kind)
    run = Run(agent)
    run.go_on(8)
    state = agent.state_dict()
    copy = make(kind, seed=5)
    copy.load_state_dict(state)
    expected = copy.weights()
    run.go_on(4)
    Run(copy).go_on(6)
    third = make(kind, seed=6)
    third.load_state_dict(state)
    assert all(torch.equal(expected[part][name], value) for part, of in third.weights().items()
               for name, value in of.items())  # fmt: skip


def test_epsilon_is_drawn_for_every_row() -> None:
    config = DDDQNConfig(warmup=100, epsilon_start=0.5, epsilon_end=0.1, epsilon_transitions=200, hidden=(8,))
    agent = DDDQN(OBSERVATIONS, spaces.Discrete(10), config, num_envs=4000, seed=0)
    observations = np.zeros((4000, 3), np.float32)
    best = agent.act_batch(observations, deterministic=True)
    for transitions, epsilon in ((0, 1.0), (100, 0.5), (200, 0.3), (300, 0.1), (10_000, 0.1)):
        agent.num_transitions = transitions
        differs = np.mean(agent.act_batch(observations) != best)
        assert differs == pytest.approx(0.9 * epsilon, abs=0.03)


def test_warm_up_acts_uniformly() -> None:
    agent = make(KINDS["sac"], num_envs=2)
    actions = agent.act_batch(np.zeros((20_000, 3), np.float32))
    assert np.allclose(actions.mean(axis=0), [0.0, 5.0], atol=0.1)
    assert np.allclose(actions.std(axis=0), [4 / 12**0.5, 10 / 12**0.5], atol=0.1)


def test_exploration_noise_belongs_to_a_sub_environment() -> None:
    agent = make(KINDS["td3 with red noise"])
    agent.num_transitions = 1000
    observations = np.zeros((3, 3), np.float32)
    best = agent.act_batch(observations, deterministic=True)
    noise = np.array([agent.act_batch(observations) - best for _ in range(50)])  # (step, sub-environment, element)
    steps = np.diff(noise, axis=0)
    assert steps.std() < 0.5 * noise.std()  # red noise moves slowly
    assert not np.allclose(noise[:, 0], noise[:, 1])
    part = agent.act_batch(observations[:1], env_indices=np.array([2])) - best[2]
    assert np.abs(part - noise[-1, 2]).max() < 6 * steps.std()  # the noise of 2 continues, not that of 0


def test_hyperparameters_and_spaces_are_checked() -> None:
    for config, match in (
        (lambda: SACConfig(gamma=1.5), r"SACConfig.gamma=1.5: pass a number from 0 to 1"),
        (lambda: TD3Config(learning_rate=0.0), r"TD3Config.learning_rate=0.0: pass a number above 0"),
        (lambda: DDDQNConfig(hidden=()), r"DDDQNConfig.hidden=\(\): pass a tuple"),
        (lambda: PPOConfig(activation="gelu"), r"activation='gelu': pass 'tanh' or 'relu'"),  # type: ignore[arg-type]
        (lambda: PPOConfig(clip=float("nan")), r"PPOConfig.clip=nan"),
        (lambda: SACConfig(batch_size=None), r"SACConfig.batch_size=None: pass a whole number above 0"),  # type: ignore[arg-type]
        (lambda: SACConfig(batch_size=2.5), r"SACConfig.batch_size=2.5: pass a whole number above 0"),  # type: ignore[arg-type]
        (lambda: SACConfig(gamma=None), r"SACConfig.gamma=None: pass a number from 0 to 1"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument, match=match):
            config()
    assert PPOConfig(max_grad_norm=None).max_grad_norm is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        SACConfig().gamma = 0.9  # type: ignore[misc]
    with pytest.raises(
        InvalidArgument, match=r"is Dict\('mission': Text\(.*\)\), expected Box, Discrete, .*: remove other parts"
    ):
        SAC(spaces.Dict(mission=spaces.Text(3)), TORQUE)
    with pytest.raises(InvalidArgument, match="normalize_observations=True for observations of Discrete"):
        PPO(spaces.Discrete(3), TORQUE, PPOConfig(normalize_observations=True))
    with pytest.raises(InvalidArgument, match="is not in the table of 14 actions"):
        TABLE.indices(np.full((1, 4), 0.3))
    with pytest.raises(InvalidArgument, match="with distinct actions"):
        ActionTable([[1.0], [1.0]])


UNBOUNDED = spaces.Box(-np.inf, np.inf, (2,))
BUTTONS = spaces.MultiDiscrete([3, 3])


@pytest.mark.parametrize(
    ("kind", "space", "takes"),
    [
        (PPO, BUTTONS, "PPO takes Discrete or a bounded Box of floats"),
        (PPO, spaces.MultiBinary(2), "PPO takes Discrete or a bounded Box of floats"),
        (PPO, spaces.Dict(push=TORQUE), "PPO takes Discrete or a bounded Box of floats"),
        (PPO, UNBOUNDED, "PPO takes Discrete or a bounded Box of floats"),
        (SAC, spaces.Discrete(2), "SAC and TD3 take a bounded Box of floats"),
        (TD3, BUTTONS, "SAC and TD3 take a bounded Box of floats"),
        (DDDQN, TORQUE, "DDDQN takes Discrete, or hockey's table of actions, or in a program an ActionTable"),
        (DDDQN, BUTTONS, "DDDQN takes Discrete, or hockey's table of actions, or in a program an ActionTable"),
    ],
)
def test_action_spaces_that_an_agent_does_not_have(kind: Any, space: Any, takes: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        kind(OBSERVATIONS, space)
    assert str(caught.value) == (
        f"the action space is {space}, but {takes}: choose another agent, or change the space with a wrapper "
        "(gymnasium.wrappers.TransformAction) that bounds a Box or enumerates the combinations of MultiDiscrete or "
        "MultiBinary as one Discrete"
    )


def test_images_reach_networks_scaled() -> None:
    images = spaces.Box(0, 255, (4, 4, 3), np.uint8)
    agent = DDDQN(images, spaces.Discrete(2), DDDQNConfig(hidden=(8,), capacity=10), seed=0)
    assert agent.act_batch(np.full((2, 4, 4, 3), 255, np.uint8), deterministic=True).shape == (2,)
    assert agent.replay.size_bytes == 10 * (2 * 48 + 8 + 4 + 4)


def test_running_episodes_that_are_cut_keep_their_steps() -> None:
    agent = make(KINDS["dddqn with a table, priorities, n steps"])
    run = Run(agent)
    run.go_on(2)  # three sub-environments, two steps each, none of them complete with three rewards
    assert len(agent.replay) == 0
    agent.start_episodes(np.arange(3))
    assert len(agent.replay) == 6
    assert agent.replay.sample(6).discounts.min() > 0


def test_torch_is_imported_with_agents_only() -> None:
    code = "import sys, envfleet; print('torch' in sys.modules); import envfleet.agents; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]


@pytest.mark.parametrize("kind", ["sac", "td3", "dddqn"])
@pytest.mark.parametrize("compiled", [True, False])
def test_observations_of_replay_agents_are_normalized(kind: str, compiled: bool, tmp_path: Path) -> None:
    """An agent that sees shifted and scaled observations learns as one that sees them with mean 0 and variance 1."""
    rng = np.random.default_rng(0)
    box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    kinds: dict[str, Any] = {"sac": (SAC, TORQUE), "td3": (TD3, TORQUE), "dddqn": (DDDQN, spaces.Discrete(3))}
    make_kind, action = kinds[kind]
    config: Any = make_kind.config_class(
        hidden=(8,), batch_size=16, warmup=0, capacity=500, normalize_observations=True, compiled=compiled
    )
    agents: list[Any] = [make_kind(box, action, config, num_envs=40, seed=0) for _ in range(2)]
    plain = rng.normal(size=(2, 40, 3)).astype(np.float32)
    actions = agents[0].act_batch(plain[0])
    rewards, ends = rng.normal(size=40), (np.zeros(40, np.bool_), np.zeros(40, np.bool_))
    scaled = plain * np.float32(8.0) + np.float32(16.0)
    for agent, (before, after) in zip(agents, (plain, scaled), strict=True):
        agent.remember(Transitions(before, actions, rewards, *ends, after, np.arange(40)))
        assert agent.is_compiled == compiled
        agent.update(4)
    first, second = (
        agent.act_batch(rows[1], deterministic=True) for agent, rows in zip(agents, (plain, scaled), strict=True)
    )
    np.testing.assert_allclose(first, second, atol=1e-3)
    agents[1].save(tmp_path / "agent.pt")
    loaded = load_agent(tmp_path / "agent.pt")
    np.testing.assert_array_equal(loaded.act_batch(scaled[1], deterministic=True), second)
    exported = agents[1].best_actions()(torch.from_numpy(scaled[1]))
    np.testing.assert_allclose(np.asarray(exported.detach()), second, atol=1e-5)
    with pytest.raises(InvalidArgument, match="normalize_observations=True for observations of Discrete"):
        make_kind(spaces.Discrete(4), action, config)
