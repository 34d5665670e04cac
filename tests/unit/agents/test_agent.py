"""Promises of every agent: actions, determinism, saving, and resuming exactly."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import envfleet
from envfleet.agents import (
    DDDQN,
    PPO,
    SAC,
    TD3,
    ActionTable,
    Collector,
    DDDQNConfig,
    PPOConfig,
    SACConfig,
    TD3Config,
    Transitions,
    TransitionWriter,
    load_agent,
    saving,
)
from envfleet.envs.hockey.discrete import action_table
from envfleet.errors import InvalidArgument

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
TORQUE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
TABLE = ActionTable(action_table(2))
OFF_POLICY: dict[str, Any] = {"hidden": (16, 16), "batch_size": 8, "warmup": 12, "capacity": 100}
OPEN: list[Any] = []
KINDS: dict[str, Any] = {
    "dddqn": (DDDQN, spaces.Discrete(4, start=-1), DDDQNConfig(**OFF_POLICY)),
    "dddqn with a table, priorities, n steps": (
        DDDQN,
        TABLE,
        DDDQNConfig(**OFF_POLICY, prioritized=True, num_steps=3, target_period=3, target_tau=1.0),
    ),
    "sac": (SAC, TORQUE, SACConfig(**OFF_POLICY)),
    "sac with pink noise": (SAC, TORQUE, SACConfig(**OFF_POLICY, noise_exponent=1.0, noise_length=7)),
    "td3": (TD3, TORQUE, TD3Config(**OFF_POLICY)),
    "td3 with red noise": (TD3, TORQUE, TD3Config(**OFF_POLICY, noise_exponent=2.0, num_steps=2)),
    "ppo for discrete actions": (PPO, spaces.Discrete(4, start=-1), PPOConfig(hidden=(16,))),
    "ppo": (PPO, TORQUE, PPOConfig(hidden=(16,), normalize_observations=True, normalize_values=True, target_kl=0.5)),
}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def make(kind: Any, seed: int | None = 0, num_envs: int = 3) -> Any:
    agent_class, space, config = kind
    return agent_class(OBSERVATIONS, space, config, num_envs=num_envs, seed=seed)


class Drift(gym.Env[Any, Any]):
    """Takes any action; episodes of 5 steps that are cut off, or of 4 that terminate."""

    observation_space = OBSERVATIONS

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.episode = 0, self.episode + 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert np.asarray(action) in self.action_space
        self.steps += 1
        is_even = self.episode % 2 == 0
        return self._observe(), float(np.sum(action)), is_even and self.steps == 4, self.steps == 5, {}

    def _observe(self) -> Any:
        return self.np_random.standard_normal(3).astype(np.float32)


class Run:
    """A training run that another agent can continue."""

    def __init__(self, agent: Any) -> None:
        space = agent.action_space
        if isinstance(space, ActionTable):
            space = spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.agent = agent
        self.fleet: Any = envfleet.make(
            [lambda: Drift(space)] * 3, backend="serial", autoreset_mode="SAME_STEP"
        )  # fmt: skip
        OPEN.append(self.fleet)
        if isinstance(agent, PPO):
            self.collector = Collector(self.fleet, 6, seed=0)
        else:
            self.observations, _ = self.fleet.reset(seed=0)
            self.writer = TransitionWriter(self.fleet)
            self.writer.reset(self.observations)

    def go_on(self, rounds: int) -> list[dict[str, float]]:
        metrics = []
        for _ in range(rounds):
            if isinstance(self.agent, PPO):
                metrics.append(self.agent.update(self.collector.collect(self.agent)))
                continue
            actions = self.agent.act_batch(self.observations)
            step = self.fleet.step(actions)
            self.observations = step[0]
            self.agent.remember(self.writer.step(actions, *step))
            if self.agent.is_ready:
                metrics.append(self.agent.update(2))
        return metrics


class OfGpu:
    """A generator with the 16 bytes of state that those of CUDA have."""

    def get_state(self) -> torch.Tensor:
        return torch.arange(16, dtype=torch.uint8)


def weights_of(agent: Any) -> list[torch.Tensor]:
    return [tensor for part in agent.weights().values() for tensor in part.values()]


def is_equal(first: Any, second: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights_of(first), weights_of(second), strict=True))


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


def test_a_file_is_enough_to_make_the_agent(kind: Any, tmp_path: Path) -> None:
    agent = make(kind)
    Run(agent).go_on(8)
    observations = np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    expected = agent.act_batch(observations, deterministic=True)
    for contents, num_envs in itertools.product(("weights", "learner", "all"), (None, 5)):
        path = tmp_path / f"{contents}.pt"
        agent.save(path, contents=contents)
        loaded = load_agent(path, num_envs=num_envs)
        assert type(loaded) is type(agent)
        assert loaded.config == agent.config
        assert np.array_equal(loaded.act_batch(observations, deterministic=True), expected)
        if contents != "weights" and num_envs is None:
            assert loaded.num_updates == agent.num_updates


def test_replay_memory_is_allocated_at_the_first_transition(tmp_path: Path) -> None:
    path, config = tmp_path / "agent.pt", SACConfig(capacity=10**15, replay_device="cuda:99", hidden=(8,))
    SAC(OBSERVATIONS, TORQUE, config).save(path)
    agent = load_agent(path)
    assert agent.act_batch(np.zeros((2, 3))).shape == (2, *TORQUE.shape)
    with pytest.raises((RuntimeError, AssertionError)):  # torch's, on any machine
        agent.state_dict("all")


def test_a_disk_that_is_full_is_said_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            saving.write(path, {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_the_generator_of_a_gpu_stays_behind(kind: Any, tmp_path: Path) -> None:
    agent = make(kind)
    agent.random.torch = OfGpu()
    agent.save(tmp_path / "agent.pt")
    loaded = load_agent(tmp_path / "agent.pt", seed=4)
    assert is_equal(loaded, agent)
    assert torch.equal(loaded.random.torch.get_state(), make(kind, seed=4).random.torch.get_state())


def test_what_is_no_saved_agent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.pt"
    for junk in (b"not a file of ours", b"hello", b"", b"PK\x03\x04"):
        path.write_bytes(junk)
        with pytest.raises(InvalidArgument, match="cannot be read as a saved agent") as caught:
            load_agent(path)
        assert "weights_only" not in str(caught.value)
    torch.save({"format": saving.FORMAT}, path)
    with pytest.raises(InvalidArgument, match=r"the agent in .*agent.pt is '', expected 'module:name'"):
        load_agent(path)
    torch.save({"format": 99}, path)
    with pytest.raises(InvalidArgument, match="has format 99, expected 5"):
        load_agent(path)
    torch.save({"format": saving.FORMAT, "run": print}, path)  # code, or the name of some, is not read
    with pytest.raises(InvalidArgument, match="cannot be read"):
        load_agent(path)
    make(KINDS["sac"]).save(path)
    with pytest.raises(InvalidArgument, match="holds a SAC, this is a TD3"):
        make(KINDS["td3"]).load(path)
    wider = SAC(OBSERVATIONS, TORQUE, SACConfig(hidden=(17,)), num_envs=3)
    with pytest.raises(InvalidArgument, match="do not fit the network 'actor'"):
        wider.load(path)
    with pytest.raises(InvalidArgument, match=r"none.pt cannot be read \(No such file or directory\): pass the folder"):
        load_agent(tmp_path / "none.pt")


def test_files_whose_bytes_changed_are_refused(tmp_path: Path) -> None:
    path, agent, rng = tmp_path / "agent.pt", make(KINDS["sac"]), np.random.default_rng(0)
    agent.save(path)
    whole, refusals = path.read_bytes(), list[str]()
    places = [
        *rng.integers(len(whole) - 4, size=60),
        *rng.integers(whole.index(b"PK\x01\x02"), len(whole) - 4, size=60),
    ]
    for place in map(int, places):  # the second half in the directory of the archive
        path.write_bytes(whole[:place] + bytes(255 - byte for byte in whole[place : place + 4]) + whole[place + 4 :])
        try:
            loaded = load_agent(path)
        except InvalidArgument as error:
            refusals.append(str(error))
        else:  # bytes between the parts of the archive, which mean nothing
            assert is_equal(loaded, agent)
    assert len(refusals) > 60
    assert all(message.startswith(f"{path} ") for message in refusals)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, path = make(KINDS["td3"]), tmp_path / "agent.pt"
    agent.save(path)
    before = path.read_bytes()

    def half(payload: Any, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="disk full"):
        agent.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


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
