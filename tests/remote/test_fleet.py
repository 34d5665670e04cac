"""A remote fleet is as a local one: the same seeds and actions give the same, to the bit, on one service or several."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.remote.conftest import TURBOFAN, Place
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import (
    CallPending,
    FleetClosed,
    InvalidArgument,
    NothingPending,
    ResetNeeded,
    ServiceRefused,
)
from envfleet.testing.compare import mismatches

NUM_ENVS = 5


def make_both(place: Place, env: str, mode: Any, num_services: int = 1, **options: Any) -> tuple[Any, Any]:
    backend: Any = "kernel" if env == TURBOFAN else "serial"
    local = envfleet.make(env, NUM_ENVS, backend=backend, autoreset_mode=mode, **options)
    urls = [place.url] * num_services
    return envfleet.connect(urls, env, NUM_ENVS, token=place.token, autoreset_mode=mode, **options), local


def without_times(infos: Any) -> dict[str, Any]:
    infos = dict(infos)
    if "episode" in infos:
        infos["episode"] = {name: column for name, column in infos["episode"].items() if name != "t"}
    return infos


def compare(expected: Any, actual: Any) -> None:
    *arrays, infos = expected
    *other_arrays, other_infos = actual
    assert mismatches(arrays, other_arrays) == []
    assert mismatches(without_times(infos), without_times(other_infos), "infos") == []


def rows_of(batched: Any, rows: Any) -> list[Any]:
    return [leaf[rows] for leaf in (batched if isinstance(batched, tuple) else (batched,))]


def reset_ended(local: Any, remote: Any, step: int) -> None:
    ended = local.terminated_indices
    assert remote.terminated_indices == ended
    if not ended:
        return
    mask = np.isin(np.arange(NUM_ENVS), ended)
    with pytest.raises(ResetNeeded, match="have ended"):
        remote.step(remote.action_space.sample())
    if step % 2:
        compare(local.reset(options={"reset_mask": mask}), remote.reset(options={"reset_mask": mask}))
    else:
        seeds = [step + 100 + row if row % 2 else None for row in ended]
        compare(local.reset_envs(ended[::-1], seeds), remote.reset_envs(ended[::-1], seeds))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(
    ("env", "num_services"), [(TURBOFAN, 1), (TURBOFAN, 3), ("CartPole-v1", 1), ("Blackjack-v1", 2)]
)
def test_trajectories_infos_and_counts_match_a_local_fleet(
    place: Place, env: str, mode: AutoresetMode, num_services: int
) -> None:
    remote, local = make_both(place, env, mode, num_services, record_episodes=True)
    with remote, local:
        for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
            assert getattr(remote, name) == getattr(local, name)
        assert remote.metadata["autoreset_mode"] is mode
        assert (remote.num_envs, remote.spec) == (local.num_envs, gym.spec(env))
        local.action_space.seed(0)
        compare(local.reset(seed=3), remote.reset(seed=3))
        for k in range(16):
            if mode is AutoresetMode.DISABLED:
                reset_ended(local, remote, k)
            actions = local.action_space.sample()
            expected, actual = local.step(actions), remote.step(actions)
            compare(expected, actual)
            for name in ("episode_ids", "episode_returns", "episode_lengths", "active_count"):
                np.testing.assert_array_equal(getattr(remote, name), getattr(local, name))
            ended = expected[2] | expected[3]
            if mode is AutoresetMode.SAME_STEP and ended.any():
                one, other = (rows_of(fleet.final_observations, ended) for fleet in (local, remote))
                assert mismatches(one, other) == []
        compare(local.reset(seed=[9, 8, 7, 6, 5]), remote.reset(seed=[9, 8, 7, 6, 5]))


def test_sending_and_receiving(place: Place) -> None:
    remote, local = make_both(place, TURBOFAN, "SAME_STEP", 2, step_size=10)
    with remote, local:
        local.reset(seed=0)
        with pytest.raises(ResetNeeded):
            remote.send(np.zeros(NUM_ENVS, np.int64))
        remote.reset(seed=0)
        with pytest.raises(NothingPending):
            remote.recv()
        for _ in range(4):
            remote.send(np.zeros(NUM_ENVS, np.int64))
            with pytest.raises(CallPending):
                remote.step(np.zeros(NUM_ENVS, np.int64))
            *step, indices = remote.recv(timeout_s=PATIENCE_S)
            compare(local.step(np.zeros(NUM_ENVS, np.int64)), step)
            assert indices.tolist() == list(range(NUM_ENVS))
        assert step[0].shape == (NUM_ENVS, 10, 9)
        assert remote.engine.options == {"step_size": 10}


def test_infos_describe_episodes_only_where_that_was_asked_for(place: Place) -> None:
    for record in (False, True):
        remote, local = make_both(place, "CartPole-v1", "NEXT_STEP", record_episodes=record, max_episode_steps=3)
        with remote, local:
            for fleet in (remote, local):
                fleet.reset(seed=0)
            for _ in range(3):
                actual, expected = remote.step(np.zeros(NUM_ENVS, np.int64)), local.step(np.zeros(NUM_ENVS, np.int64))
            compare(expected, actual)
            assert ("episode" in actual[-1]) is record


def test_rollouts_are_those_of_a_local_fleet(place: Place) -> None:
    remote, local = make_both(place, "CartPole-v1", "SAME_STEP", 2, max_episode_steps=4)
    actions = np.random.default_rng(0).integers(0, 2, (10, NUM_ENVS))
    with remote, local:
        for fleet in (remote, local):
            fleet.reset(seed=0)
        actual, expected = remote.rollout(actions, 10), local.rollout(actions, 10)
        assert mismatches(expected.all_observations, actual.all_observations) == []
        assert mismatches(expected.episodes.observations, actual.episodes.observations) == []
        assert actual.episodes.lengths.tolist() == expected.episodes.lengths.tolist() != []
        for fleet in (remote, local):  # a refusal loses nothing, though it comes after steps
            with pytest.raises(InvalidArgument):
                fleet.rollout("randm", 5)
        assert mismatches(local.step(actions[0])[:4], remote.step(actions[0])[:4]) == []


def test_what_is_returned_is_the_callers_own(place: Place) -> None:
    remote, _ = both = make_both(place, TURBOFAN, "DISABLED")
    with contextlib.ExitStack() as stack:
        for fleet in both:
            stack.enter_context(fleet)
        first = remote.reset(seed=0)[0]
        kept = first.copy()
        observations = remote.step(np.zeros(NUM_ENVS, np.int64))[0]
        assert (first == kept).all()
        observations[:] = -1.0
        mask = np.array([True, False, False, False, False])
        assert (remote.reset(options={"reset_mask": mask})[0][1:] != -1.0).all()


def test_what_cannot_be_asked_is_said(place: Place) -> None:
    with envfleet.connect(place.url, "Turbofan-v0", 2, token=place.token) as fleet:
        with pytest.raises(ResetNeeded):
            fleet.step([0, 0])
        with pytest.raises(ResetNeeded):
            fleet.reset_envs([1])
        for seed in (-1, 2**62, [1], [1, -2], "seed"):
            with pytest.raises(InvalidArgument):
                fleet.reset(seed=seed)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="reset_mask"):
            fleet.reset(options={"difficulty": 3})
        fleet.reset(seed=0)
        for actions in ([0], [[0, 0]], [0.5, 0.5], [0, 3], "fly"):
            with pytest.raises(InvalidArgument):
                fleet.step(actions)
        assert fleet.step([0, 0])[1].shape == (2,)  # and stays usable
        with pytest.raises(InvalidArgument, match="SAME_STEP"):
            _ = fleet.final_observations
        assert "2 sub-environments" in repr(fleet)
        assert place.url in repr(fleet)
        stats: Any = fleet.stats()
        assert stats.requests >= 3  # made, reset and stepped; what cannot be was not even sent
        assert fleet.plan.describe() == "remote, 1 worker × 2"
    fleet.close()
    with pytest.raises(FleetClosed):
        fleet.step([0, 0])


def test_a_page_is_no_address(place: Place) -> None:
    with pytest.raises(ServiceRefused, match=r"/leaderboard answered 404: .* check that the address is that of"):
        envfleet.connect(f"{place.url}/leaderboard", "CartPole-v1", 1, token=place.token)


def test_ranked_fleets_have_the_services_seeds(place: Place) -> None:
    with envfleet.connect(place.url, "Turbofan-v0", 2, token=place.token, mode="ranked") as fleet:
        with pytest.raises(InvalidArgument, match="ranked"):
            fleet.reset(seed=1)
        fleet.reset()
        fleet.step([2, 2])
    board = place.service.scores.board(TURBOFAN)
    assert (board[0]["user"], board[0]["attempts"]) == ("ann", 1)


def test_a_fleet_that_somebody_else_closes_says_so(place: Place) -> None:
    with envfleet.connect(place.url, "CartPole-v1", 1, token=place.token) as fleet:
        fleet.reset()
        engine: Any = fleet.engine
        place.service.fleets.close_fleet(None, engine.fleet_ids[0])
        with pytest.raises(FleetClosed, match="closed"):
            fleet.step([0])


def test_a_fleet_that_somebody_else_steps_says_so(place: Place) -> None:
    with envfleet.connect(place.url, "CartPole-v1", 2, token=place.token) as fleet:
        fleet.reset(seed=0)
        engine: Any = fleet.engine
        engine._queues[0].seq = 7
        for call in (lambda: fleet.step([0, 1]), lambda: fleet.reset_envs([1])):
            with pytest.raises(ServiceRefused, match="another program") as caught:
                call()
            assert (caught.value.status, caught.value.reason) == (409, "out_of_step")
        with envfleet.make("CartPole-v1", 2, backend="serial") as local:  # as the advice has it
            compare(local.reset(seed=3), fleet.reset(seed=3))
            compare(local.step([1, 0]), fleet.step([1, 0]))


def test_importing_envfleet_imports_nothing_of_the_network() -> None:
    code = "import sys, envfleet; print({'httpx', 'msgpack', 'dotenv', 'fastapi'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
