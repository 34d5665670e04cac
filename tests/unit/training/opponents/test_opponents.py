"""Opponents with networks: snapshots, files, the learner itself."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from envfleet.agents import DDDQN, SAC, ActionTable, DDDQNConfig, SACConfig
from envfleet.envs.games import known_game
from envfleet.errors import InvalidArgument
from envfleet.training import train
from envfleet.training.games.matches import MatchConfig, play
from envfleet.training.games.players import UserPlayer
from envfleet.training.opponents.opponents import Entry, Opponents, current_learner
from envfleet.training.opponents.pool import FilePlayers, SnapshotPool, as_player

SPACE = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (2,), np.float32)
LOOK = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ALL = np.arange(4)
HOCKEY = known_game("hockey")


def agent_of(seed: int = 0, **more: Any) -> SAC:
    return SAC(SPACE, ACTIONS, SACConfig(hidden=(8,), **more), num_envs=4, seed=seed)


def opponents_of(*entries: Entry) -> Opponents:
    opponents = Opponents(4, ACTIONS, seed=np.random.SeedSequence(0))
    opponents.set_entries(entries)
    opponents.draw(ALL)
    return opponents


def add_snapshot(pool: SnapshotPool, learner: SAC, transitions: int) -> None:
    learner.num_transitions = transitions
    pool.add()


def test_an_unchanged_learner_adds_no_snapshot() -> None:
    learner = agent_of()
    pool = SnapshotPool(learner, 3)
    add_snapshot(pool, learner, 100)
    pool.report("snapshot_000000100", np.ones(10))
    pool.add()
    assert [rate > 0.6 for rate in pool.rates.values()] == [True]


def test_the_learner_as_its_own_opponent_changes_with_it() -> None:
    learner = agent_of(warmup=100)
    opponents = opponents_of(current_learner(learner, explores=False))
    before = opponents.act(LOOK)
    assert (before == learner.act_batch(LOOK, deterministic=True)).all()
    learner.set_weights(agent_of(seed=5).weights())
    after = opponents.act(LOOK)
    assert (after == learner.act_batch(LOOK, deterministic=True)).all()
    assert not (before == after).any()


def test_sampling_opponents_sample_from_their_policy() -> None:
    learner = agent_of(warmup=10_000)
    weights = learner.weights()
    weights["actor"]["2.weight"].zero_()
    weights["actor"]["2.bias"].copy_(torch.tensor([2.0, -2.0, -9.0, -9.0]))
    learner.set_weights(weights)
    pool = SnapshotPool(learner, 1)
    pool.add()
    opponents = opponents_of(Entry(source=pool, is_deterministic=False))
    first, second = opponents.act(LOOK), opponents.act(LOOK)
    assert np.abs(first - np.tanh([2.0, -2.0])).max() < 0.01
    assert not (first == second).all()


def test_a_player_of_dddqn_explores_as_little_as_a_trained_one() -> None:
    table = ActionTable([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    agent = DDDQN(SPACE, table, DDDQNConfig(hidden=(8,), epsilon_end=0.0), num_envs=4, seed=0)
    player = as_player(agent, num_envs=4, seed=1, weights=agent.weights())
    assert (player.act_batch(LOOK) == agent.act_batch(LOOK, deterministic=True)).all()


def test_snapshots_are_fixed_named_and_rated() -> None:
    learner = agent_of()
    pool = SnapshotPool(learner, 3)
    add_snapshot(pool, learner, 1000)
    opponents = opponents_of(Entry(source=pool, matchmaking="latest"))
    before = opponents.act(LOOK)
    learner.set_weights(agent_of(seed=5).weights())
    assert (opponents.act(LOOK) == before).all()
    assert opponents.names(ALL) == ("snapshot_000001000",) * 4
    opponents.report(np.array([0, 2]), np.array([1, 1]))
    assert pool.rates == pytest.approx({"snapshot_000001000": 1 - 0.5 * 0.95**2})


def test_networks_that_nobody_plays_against_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    load, loaded = SnapshotPool.player, weakref.WeakSet[Any]()

    def load_and_tell(pool: SnapshotPool, name: str, seed: int) -> Any:
        agent = load(pool, name, seed)
        loaded.add(agent)
        return agent

    monkeypatch.setattr(SnapshotPool, "player", load_and_tell)
    monkeypatch.setattr("envfleet.training.opponents.opponents.MAX_LOADED", 2)
    learner = agent_of()
    pool = SnapshotPool(learner, 9)
    for number in range(9):
        add_snapshot(pool, learner, number)
    opponents = opponents_of(Entry(source=pool))
    met: set[str] = set()
    for _ in range(30):
        opponents.draw(ALL)
        met.update(opponents.names(ALL))
        gc.collect()
        assert 1 <= len(loaded) <= 4
    assert len(met) == 9


def test_a_snapshot_finishes_its_game_despite_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.training.opponents.opponents.MAX_LOADED", 1)
    learner = agent_of()
    pool = SnapshotPool(learner, 1)
    add_snapshot(pool, learner, 1)
    opponents = opponents_of(Entry(source=pool))
    add_snapshot(pool, learner, 2)
    opponents.draw(np.array([0]))
    assert opponents.names(np.array([0, 1])) == ("snapshot_000000002", "snapshot_000000001")
    assert [*pool.rates] == ["snapshot_000000002"]
    saved = opponents.state_dict()
    again = Opponents(4, ACTIONS, seed=np.random.SeedSequence(9))
    again.set_entries((Entry(source=pool),))
    again.load_state_dict(saved)
    assert again.names(ALL) == opponents.names(ALL)
    assert (again.act(LOOK) == opponents.act(LOOK)).all()
    opponents.draw(ALL)
    assert "snapshot_000000001" not in pool.state_dict()["weights"]


def test_what_is_saved_can_be_loaded_when_the_pool_has_moved_on() -> None:
    """A cached network that was no longer played was saved without its snapshot."""
    learner = agent_of()
    pool = SnapshotPool(learner, 1)
    add_snapshot(pool, learner, 1)
    opponents = opponents_of(Entry(source=pool))
    add_snapshot(pool, learner, 2)
    opponents.draw(ALL)
    fresh = SnapshotPool(learner, 1)
    fresh.load_state_dict(pool.state_dict())
    again = Opponents(4, ACTIONS, seed=np.random.SeedSequence(9))
    again.set_entries((Entry(source=fresh),))
    again.load_state_dict(opponents.state_dict())
    assert again.names(ALL) == ("snapshot_000000002",) * 4


def test_files_of_a_folder_are_drawn_latest_by_name(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        agent_of(seed=number).save(tmp_path / f"{number}.pt")
    latest = opponents_of(Entry(source=FilePlayers(tmp_path, agent_of()), matchmaking="latest"))
    assert latest.names(ALL) == ("3",) * 4
    assert np.allclose(latest.act(LOOK), agent_of(seed=3).act_batch(LOOK, deterministic=True), atol=1e-6)
    with pytest.raises(InvalidArgument, match="no saved agent"):
        FilePlayers(tmp_path / "nowhere", agent_of())


def test_a_resumed_run_names_a_missing_opponent(tmp_path: Path) -> None:
    for number in (1, 2):
        agent_of(seed=number).save(tmp_path / f"{number}.pt")
    latest = Entry(source=FilePlayers(tmp_path, agent_of()), matchmaking="latest")
    state = opponents_of(latest).state_dict()
    (tmp_path / "2.pt").unlink()
    again = Opponents(4, ACTIONS, seed=np.random.SeedSequence(9))
    again.set_entries((Entry(source=FilePlayers(tmp_path, agent_of()), matchmaking="latest"),))
    with pytest.raises(InvalidArgument, match=r"the opponent '2' of this run is no longer in .*: restore its file"):
        again.load_state_dict(state)


def test_checkpoints_of_a_run_are_drawn_latest_is_not_best(tmp_path: Path) -> None:
    for name in ("000000000100", "best"):
        agent_of().save(tmp_path / "checkpoints" / f"{name}.pt")
    (tmp_path / "resume.pt").write_bytes(b"all that a run needs to resume")
    for folder in (tmp_path, tmp_path / "checkpoints"):
        latest = opponents_of(Entry(source=FilePlayers(folder, agent_of()), matchmaking="latest"))
        assert latest.names(ALL) == ("000000000100",) * 4


@pytest.mark.parametrize("opponent", [{"type": "self_play", "checkpoint": "F"}, {"type": "snapshots", "folder": "F"}])
def test_files_of_all_phases_are_looked_at_before_a_run_begins(opponent: dict[str, str], tmp_path: Path) -> None:
    opponent = {key: value.replace("F", str(tmp_path / "a.pt")) for key, value in opponent.items()}
    mixed = {"type": "weighted_mixture", "opponents": [{"type": "basic_weak"}, opponent]}
    phases = [{"name": name, "episodes": 9, "opponent": one} for name, one in (("a", {"type": "none"}), ("b", mixed))]
    config = {"curriculum": {"phases": phases}, "agent": {"type": "SAC"}}
    for problem in (r"no saved agent \(\*\.pt\) in .*a\.pt", r"a\.pt has observations .*, \(3,\),"):
        with pytest.raises(InvalidArgument, match=problem):
            train(config, base_output_dir=tmp_path / "runs", verbose=False)
        agent_of().save(tmp_path / "a.pt")
    assert not list((tmp_path / "runs").iterdir())


class Counting:
    """An opponent that counts the steps of each game that it plays."""

    def __init__(self, observation_space: Any, action_space: Any, rng: np.random.Generator) -> None:
        self.steps = np.full(300, -1_000)

    def begin_episodes(self, env_indices: Any) -> None:
        self.steps[env_indices] = 0

    def act_batch(self, observations: Any, deterministic: bool = False, *, env_indices: Any) -> Any:
        self.steps[env_indices] += 1
        actions = np.zeros((len(observations), 4))
        actions[:, 0] = self.steps[env_indices] % 2
        steps_taken.append(self.steps[env_indices].copy())
        return actions


steps_taken: list[Any] = []


def opposed() -> Opponents:
    opponents = Opponents(4, HOCKEY.action_space, seed=np.random.SeedSequence(0))
    opponents.set_entries([Entry(name="own", make=lambda seed: UserPlayer(f"{__name__}:Counting", HOCKEY, seed))])
    opponents.draw(ALL)
    return opponents


def test_an_opponent_is_told_when_its_episodes_begin() -> None:
    opponents, other = opposed(), opposed()
    for expected in ([1, 1, 1, 1], [2, 2, 2, 2]):
        opponents.act(LOOK)
        assert steps_taken[-1].tolist() == expected
    opponents.draw(np.array([1, 3]))
    opponents.act(LOOK)
    assert steps_taken[-1].tolist() == [3, 1, 3, 1]
    other.act(LOOK)
    other.load_state_dict(opponents.state_dict())
    other.act(LOOK)
    assert steps_taken[-1].tolist() == [1, 1, 1, 1]


def test_and_in_evaluations() -> None:
    steps_taken.clear()
    games = play("strong", f"{__name__}:Counting", 5, seed=1, match=MatchConfig(num_envs=2))
    seen = np.stack(steps_taken)
    for number, length in enumerate(games.lengths.tolist()):
        assert {1, length} <= {*seen[:, number].tolist()}
