"""Games of the learner against itself: it learns from both sides' own observations, and from no other players."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.unit.training.arena.rally import GAME, HOCKEY, SHAPING_TERMS, Rally, record_infos

import envfleet
from envfleet.agents import PPO, SAC, PPOConfig, Rollout, SACConfig, Transitions
from envfleet.agents.agent import Agent
from envfleet.envs.hockey import Mode
from envfleet.envs.hockey.game import HockeyGame
from envfleet.training.arena.arena import Arena, ArenaStep
from envfleet.training.loop.learners import Learner, ReplayLearner, RolloutLearner, UpdateSchedule
from envfleet.training.opponents.opponents import Entry, current_learner
from envfleet.training.opponents.pool import SnapshotPool
from envfleet.training.phases import Phase

NUM_ENVS = 4
TERMS, WHEN = ("CLOSENESS", "TOUCH", "DIRECTION"), ("START", "FINAL")


def phase_of(**more: Any) -> Phase:
    return Phase.model_validate({"name": "a", "episodes": 10, "opponent": {"type": "self_play"}, **more})


@contextmanager
def opened(env: Any = Rally, **more: Any) -> Iterator[Arena]:
    fleet = envfleet.make(env, NUM_ENVS, autoreset_mode="SAME_STEP", **more)
    arena = Arena(fleet, GAME if env is Rally else HOCKEY, seed=np.random.SeedSequence(1), has_both_sides=True)
    try:
        yield arena
    finally:
        arena.close()


def sac_of(arena: Arena, **more: Any) -> SAC:
    config = SACConfig(hidden=(8,), batch_size=4, warmup=0, capacity=2000, **more)
    return SAC(arena.single_observation_space, arena.single_action_space, config, num_envs=arena.num_players, seed=0)


def ppo_of(arena: Arena) -> PPO:
    config = PPOConfig(hidden=(8,), num_epochs=1, num_minibatches=1)
    return PPO(arena.single_observation_space, arena.single_action_space, config, num_envs=arena.num_players, seed=0)


def mixed(agent: Agent[Any]) -> tuple[Entry, ...]:
    pool = SnapshotPool(agent, 2)
    pool.add()
    return (
        Entry(name="basic_weak", script=1),
        Entry(source=pool, is_deterministic=False),
        current_learner(agent, explores=False),
        current_learner(agent, 2.0, explores=True),
    )


def rounds(
    arena: Arena, agent: Agent[Any], learner: Learner, count: int
) -> Iterator[tuple[tuple[str, ...], NDArray[Any], ArenaStep]]:
    """Play from a reset, as the loop does; return opponents by name, actions, and their results."""
    observations = arena.reset(seed=3)
    for _ in range(count):
        actions = np.full((arena.num_players, *arena.single_action_space.shape), 9.0, np.float32)
        actions[arena.players] = agent.act_batch(observations, env_indices=arena.players)
        names = arena._opponents.names(np.arange(NUM_ENVS))
        arena.send(actions[arena.players])
        step = arena.recv()
        learner.take(step.transitions)
        observations = step.observations
        yield names, actions, step


def test_rows_of_player_two_are_the_mirrored_game() -> None:
    rng = np.random.default_rng(0)
    weights = dict(zip(SHAPING_TERMS, (3.0, 20.0, 200.0), strict=True))
    shaping = {f"{name}_{when}": weight for name, weight in zip(TERMS, weights.values(), strict=True) for when in WHEN}
    with opened("envfleet/Hockey-v0", backend="kernel") as arena:
        entry = current_learner(sac_of(arena), explores=True)
        arena.begin_phase(phase_of(reward_shaping={"N": 9, "K": 0, **shaping}), (entry,))
        seen = arena.reset(seed=5)
        two = seen[NUM_ENVS].tolist()
        # The field turned by half a circle: the puck lies where player two saw it, and the players change places.
        turned = HockeyGame(Mode.NORMAL, (8.0, 4.0, 5.0 + two[12], 4.0 + two[13], 0.0))
        catches = 0
        for _ in range(60):
            actions = rng.uniform(-1, 1, (arena.num_players, 4)).astype(np.float32)
            actions[:, :2] = np.clip(seen[:, 12:14] - seen[:, :2], -1, 1)  # towards the puck
            arena.send(actions)
            step = arena.recv()
            seen = step.observations
            turned.play(np.concatenate((actions[NUM_ENVS], actions[0])))
            assert seen[[NUM_ENVS, 0]] == pytest.approx(turned.observe(), abs=2e-3)
            info = turned.inform(0)
            reward = info["reward_closeness_to_puck"] + sum(weight * info[name] for name, weight in weights.items())
            assert step.transitions.rewards[NUM_ENVS] == pytest.approx(reward, abs=2e-3)
            catches += int(info["reward_touch_puck"])
    assert catches


def test_player_two_has_its_own_rewards_and_last_observations() -> None:
    shaping = {f"{name}_{when}": 0.0 for name in TERMS for when in WHEN} | {"CLOSENESS_START": 1.0, "N": 10**6, "K": 0}
    bonus = {"N": 10**6, "WIN_BONUS_START": 1000.0}
    has_won = []
    with opened(backend="serial") as arena:
        agent = sac_of(arena)
        arena.begin_phase(
            phase_of(reward_shaping=shaping, reward_bonus=bonus),
            (current_learner(agent, explores=True),),
        )
        for *_, step in rounds(arena, agent, ReplayLearner(agent, UpdateSchedule(per_transition=0)), 60):
            happened = step.transitions
            episode, time, player = happened.next_observations.T
            assert (player == np.repeat([1, 2], NUM_ENVS)).all()
            now, is_two = 10 * episode + time, player == 2
            won = happened.terminated & (time % 3 == np.where(is_two, 2, 0))
            expected = np.where(is_two, now + 0.5 - 2 * now, 1 + now) + 1000 * won
            assert happened.rewards.tolist() == expected.tolist()
            has_won.append(won)
    assert np.any(has_won, axis=0).reshape(2, NUM_ENVS).any(axis=1).all()


def test_only_own_players_are_learned_from() -> None:
    remembered: list[Transitions] = []
    whose: set[tuple[str, bool]] = set()
    with opened(backend="serial") as arena:
        agent = sac_of(arena, num_steps=3)
        remember = agent.remember

        def spy(transitions: Transitions) -> None:
            remembered.append(transitions)
            remember(transitions)

        agent.remember = spy  # type: ignore[method-assign]
        learner = ReplayLearner(agent, UpdateSchedule(per_transition=0))
        infos = record_infos(arena)
        for _ in range(2):
            arena.begin_phase(phase_of(), mixed(agent))
            for names, actions, step in rounds(arena, agent, learner, 100):
                is_own = np.isin(np.arange(NUM_ENVS, arena.num_players), step.transitions.env_indices)
                assert (given_to_player_two(infos[-1]) == actions[NUM_ENVS:, 0]).tolist() == is_own.tolist()
                whose |= {(name.rstrip("0123456789"), own) for name, own in zip(names, is_own.tolist(), strict=True)}
            learner.end_phase()
        columns = agent.replay.state_dict()["columns"]
    assert whose == {("basic_weak", False), ("snapshot_", False), ("self", False), ("self", True)}
    before, after = columns["observations"].numpy(), columns["next_observations"].numpy()
    assert len(before) == agent.num_transitions == sum(map(len, remembered)) > 2 * 100 * NUM_ENVS
    assert (before[:, [0, 2]] == after[:, [0, 2]]).all()  # of one episode, as one player saw it
    assert set(np.unique(after[:, 1] - before[:, 1])) <= {1, 2, 3}


def test_rollouts_of_own_players_keep_episodes_apart() -> None:
    rollouts: list[Rollout] = []
    acted: list[NDArray[Any]] = []
    with opened(backend="serial") as arena:
        agent = ppo_of(arena)
        update = agent.update

        def spy(rollout: Rollout) -> dict[str, float]:
            rollouts.append(rollout)
            check_advantages(agent, rollout)
            return update(rollout)

        agent.update = spy  # type: ignore[method-assign]
        arena.begin_phase(phase_of(), mixed(agent))
        learner = RolloutLearner(agent, 25)
        for _, actions, step in rounds(arena, agent, learner, 110):
            acted.append(actions[step.transitions.env_indices])
        learner.end_phase()
    assert [len(rollout.rewards) for rollout in rollouts] == [25, 25, 25, 25, 10]
    assert (np.concatenate([rollout.actions[~rollout.is_reset] for rollout in rollouts]) == np.concatenate(acted)).all()
    assert agent.num_transitions == len(np.concatenate(acted)) > 110 * NUM_ENVS


@torch.no_grad()
def check_advantages(agent: PPO, rollout: Rollout) -> None:
    """Compare with the definition (Schulman et al. 2016), summed up for every step until its episode ends."""

    def values(observations: NDArray[Any]) -> NDArray[Any]:
        return agent._values(agent._inputs(observations))

    shape, ended, config = rollout.rewards.shape, rollout.terminated | rollout.truncated, agent.config
    flat = rollout.observations.reshape(-1, 3)
    actual = agent._estimate_advantages(rollout, agent._inputs(flat))[0].view(shape).numpy()
    now = values(flat).reshape(shape)
    after = np.concatenate((now[1:], values(rollout.last_observations)[None]))
    after[rollout.episodes.steps, rollout.episodes.env_indices] = values(rollout.episodes.observations)
    errors = rollout.rewards + config.gamma * after * ~rollout.terminated - now
    for step, row in np.argwhere(~rollout.is_reset).tolist():
        expected = 0.0
        for later in range(step, len(errors)):
            assert not rollout.is_reset[later, row]
            expected += (config.gamma * config.gae_lambda) ** (later - step) * errors[later, row]
            if ended[later, row]:
                break
        assert actual[step, row] == pytest.approx(expected, abs=1e-4, rel=1e-6)


def given_to_player_two(infos: dict[str, Any]) -> NDArray[Any]:
    """The first number of the action that reached player two of every sub-environment, `(N,)`."""
    ended = infos.get("_final_info", np.zeros(NUM_ENVS, np.bool_))
    last = infos.get("final_info", infos)["two"]
    return np.where(ended, last, infos["two"]).astype(np.float32)
