"""Some sub-environments are stepped while others are under way: with the same outcome as in a local fleet."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.remote.conftest import TURBOFAN, Place, lose_reply, lose_request, network_of
from tests.remote.test_fleet import compare
from tests.waiting import PATIENCE_S

import envfleet
from envfleet.errors import (
    CallPending,
    CallTimeout,
    FleetClosed,
    InvalidArgument,
    NothingPending,
    ResetNeeded,
    ServiceRefused,
    ServiceUnreachable,
)
from envfleet.fleet.infos import take_infos

NUM_ENVS = 5


def make_both(place: Place, env: str, num_services: int = 1, **more: Any) -> tuple[Any, Any]:
    """A remote fleet and a local one with Python sub-environments that are stepped one by one."""
    remote = envfleet.connect([place.url] * num_services, env, NUM_ENVS, token=place.token, **more)
    return remote, envfleet.make(env, NUM_ENVS, backend="serial", **more)


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(("env", "num_services"), [(TURBOFAN, 1), ("CartPole-v1", 2), ("Blackjack-v1", 1)])
def test_any_order_of_rows_matches_a_local_fleet(
    place: Place, env: str, num_services: int, mode: AutoresetMode
) -> None:
    remote, local = make_both(place, env, num_services, autoreset_mode=mode)
    rng = np.random.default_rng(1)
    with remote, local:
        compare(local.reset(seed=3), remote.reset(seed=3))
        for _ in range(14):
            rows = rng.permutation(NUM_ENVS)[: rng.integers(1, NUM_ENVS + 1)]
            if mode is AutoresetMode.DISABLED:
                ended = [row for row in local.terminated_indices if row in rows]
                if ended:
                    with pytest.raises(ResetNeeded, match="have ended"):
                        remote.send(np.zeros(len(rows), np.int64), rows)
                    compare(local.reset_envs(ended), remote.reset_envs(ended))
            actions = rng.integers(0, local.single_action_space.n, len(rows))
            for fleet in (local, remote):
                fleet.send(actions, rows)
            *expected, expected_rows = local.recv()
            *actual, found_rows = remote.recv(timeout_s=PATIENCE_S)
            order = np.argsort(expected_rows)[np.argsort(np.argsort(found_rows))]
            assert sorted(found_rows) == sorted(rows)
            compare([*(in_order(part, order) for part in expected[:4]), take_infos(expected[4], order)], actual)
            for name in ("episode_ids", "episode_returns", "episode_lengths", "active_count", "terminated_indices"):
                np.testing.assert_array_equal(getattr(remote, name), getattr(local, name))
        actions = np.zeros(NUM_ENVS, np.int64)
        if mode is not AutoresetMode.DISABLED:
            compare(local.step(actions), remote.step(actions))


def in_order(batched: Any, order: Any) -> Any:
    return tuple(leaf[order] for leaf in batched) if isinstance(batched, tuple) else batched[order]


FLY = np.zeros(2, np.int64)


def test_rows_that_are_ready_come_first(place: Place) -> None:
    with envfleet.connect([place.url] * 2, TURBOFAN, 4, token=place.token, batch_size=2) as fleet:
        with pytest.raises(ResetNeeded):
            fleet.send(FLY, [0, 1])
        first = fleet.reset(seed=0)[0]
        with pytest.raises(NothingPending):
            fleet.recv()
        fleet.send(np.zeros(4, np.int64))
        seen = [fleet.recv(timeout_s=PATIENCE_S) for _ in range(2)]
        assert sorted(np.concatenate([batch.env_indices for batch in seen])) == [0, 1, 2, 3]
        fleet.send(FLY, [3, 0])
        with pytest.raises(CallPending, match=r"\[0, 3\] are under way"):
            fleet.send([0], [3])
        for call in (lambda: fleet.step(np.zeros(4, np.int64)), fleet.reset, lambda: fleet.reset_envs([0])):
            with pytest.raises(CallPending):
                call()
        observations, _ = fleet.reset_envs([1], seeds=[1])  # it is idle
        np.testing.assert_array_equal(observations[0], first[1])
        assert sorted(fleet.recv().env_indices) == [0, 3]
        with pytest.raises(InvalidArgument, match="7"):
            fleet.send([7], [1])
        with pytest.raises(InvalidArgument):
            fleet.send([0, 0], [1, 1])
        assert fleet.step(np.zeros(4, np.int64))[1].shape == (4,)


@pytest.mark.parametrize("rows", [None, [0]])
def test_what_is_sent_before_a_reset_is_refused_by_its_name(place: Place, rows: Any) -> None:
    with (
        envfleet.connect(place.url, TURBOFAN, 1, token=place.token) as fleet,
        pytest.raises(ResetNeeded, match=r"send\(\) before the first reset"),
    ):
        fleet.send([0], rows)


def connect(place: Place, **more: Any) -> Any:
    fleet = envfleet.connect(place.url, TURBOFAN, 4, token=place.token, **more)
    fleet.reset(seed=0)
    return fleet


@pytest.mark.parametrize("trick", [lose_request, lose_reply])
def test_what_was_not_answered_is_received_later_and_made_once(place: Place, trick: Any) -> None:
    with connect(place) as fleet, envfleet.make(TURBOFAN, 4, backend="kernel") as local:
        local.reset(seed=0)
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [trick] * 99
        fleet.send(FLY, [0, 1])
        fleet.send(FLY, [2, 3])
        for _ in range(2):
            with pytest.raises(ServiceUnreachable, match="made again is never carried out twice"):
                fleet.recv()
        with pytest.raises(CallPending):
            fleet.step(np.zeros(4, np.int64))
        network.tricks = []
        expected = local.step(np.zeros(4, np.int64))
        batch = fleet.recv()
        assert batch.env_indices.tolist() == [0, 1, 2, 3]
        np.testing.assert_array_equal(batch.observations, expected[0])
        np.testing.assert_array_equal(batch.rewards, expected[1])
        np.testing.assert_array_equal(fleet.step(np.zeros(4, np.int64))[0], local.step(np.zeros(4, np.int64))[0])


def test_after_a_failure_all_can_be_reset(place: Place) -> None:
    with connect(place) as fleet:
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [lose_reply] * 99
        fleet.send(FLY, [0, 1])
        fleet.send(FLY, [2, 3])
        with pytest.raises(ServiceUnreachable):
            fleet.recv()
        network.tricks = []
        first = fleet.reset(seed=0)[0]
        fleet.send(FLY, [1, 0])
        assert fleet.recv().env_indices.tolist() == [1, 0]
        np.testing.assert_array_equal(fleet.reset(seed=0)[0], first)


def test_a_reset_that_was_not_answered_can_be_made_again(place: Place) -> None:
    with connect(place) as fleet:
        network = network_of(fleet, patience_s=0.5)
        fleet.send(FLY, [0, 1])
        assert len(fleet.recv(timeout_s=PATIENCE_S).rewards) == 2
        fleet.send(FLY, [0, 1])
        network.tricks = [lose_reply] * 99
        for _ in range(2):
            with pytest.raises(ServiceUnreachable):
                fleet.reset_envs([3], seeds=[8])
        with pytest.raises(CallPending, match="make the same call again"):
            fleet.reset_envs([2])
        with pytest.raises(CallPending):
            fleet.send([0], [3])
        network.tricks = []
        once = fleet.reset_envs([3], seeds=[8])[0]
        assert fleet.recv().env_indices.tolist() == [0, 1]
        np.testing.assert_array_equal(fleet.reset_envs([3], seeds=[8])[0], once)


def test_what_was_refused_is_asked_again_and_the_others_go_on(place: Place) -> None:
    quota = httpx.Response(403, json={"code": "quota", "detail": "steps per day"})
    with connect(place) as fleet, envfleet.make(TURBOFAN, 4, backend="kernel") as local:
        local.reset(seed=0)
        network = network_of(fleet, patience_s=0.5)
        network.tricks = [lambda request, ask: quota]
        fleet.send(FLY, [0, 1])
        with pytest.raises(ServiceRefused, match="steps per day"):
            fleet.recv()
        fleet.send(FLY, [2, 3])
        assert fleet.recv(env_indices=[3]).env_indices.tolist() == [3]
        batch, expected = fleet.recv(), local.step(np.zeros(4, np.int64))
        assert sorted(batch.env_indices) == [0, 1, 2]
        np.testing.assert_array_equal(batch.observations, expected[0][batch.env_indices])
        network.tricks = [lambda request, ask: quota] * 2
        fleet.send(FLY, [0, 1])
        for _ in range(2):
            with pytest.raises(ServiceRefused):
                fleet.recv()
        fleet.reset()  # or all rows would be reset
        assert fleet.step(np.zeros(4, np.int64))[1].shape == (4,)


def test_a_fleet_closes_while_something_is_under_way(place: Place) -> None:
    fleet = connect(place)
    fleet.send(FLY, [0, 1])
    fleet.send(FLY, [2, 3])
    fleet.close()
    with pytest.raises(FleetClosed):
        fleet.recv()


def test_a_short_timeout_loses_nothing(place: Place) -> None:
    with connect(place) as fleet:
        may_answer = threading.Event()

        def answer_late(request: httpx.Request, ask: Any) -> Any:
            may_answer.wait()
            return ask()

        network_of(fleet).tricks = [answer_late]
        fleet.send(FLY, [3, 1])
        with pytest.raises(CallTimeout):
            fleet.recv(timeout_s=0.05)
        may_answer.set()
        assert fleet.recv().env_indices.tolist() == [3, 1]
