"""Parts of a fleet: rows that are stepped while the others wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.service.conftest import TURBOFAN

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.service.hosting.hosted import FleetConfig, HostedFleet
from envfleet.service.offers import Offer, make_offer


def hosted(offer: Offer | None = None) -> HostedFleet:
    offer = offer or make_offer(TURBOFAN)
    config = FleetConfig(
        env=offer.env, version=offer.version(), num_envs=4, autoreset_mode="DISABLED", mode="training", options={}
    )
    return HostedFleet("id", 1, offer, config)


def make(fleet: HostedFleet, **event: Any) -> dict[str, Any]:
    return fleet.make(fleet.complete(event, at=0.0)).reply


@pytest.mark.parametrize(
    ("env", "backend"), [("CartPole-v1", "serial"), ("CartPole-v1", "process"), ("envfleet/CartPole-v1", "process")]
)
def test_rows_are_told_in_the_order_that_was_asked_for(env: str, backend: str) -> None:
    fleet, rows, actions = hosted(make_offer(env, backend=backend)), np.array([3, 0, 2]), np.array([0, 1, 1, 0])
    make(fleet, do="reset", rows=None, seeds=1)
    with envfleet.make(env, 4, backend="serial") as other:
        other.reset(seed=1)
        for _ in range(3):
            actual, expected = make(fleet, do="step", actions=actions[rows], rows=rows), other.step(actions)
            for name, values in zip(("observations", "rewards", "terminated", "truncated"), expected[:4], strict=True):
                np.testing.assert_array_equal(actual[name], values[rows])
    fleet.close()


def test_actions_outside_the_space_are_refused_before_a_step() -> None:
    offer = make_offer("CartPole-v1", backend="serial")
    config = FleetConfig(env=offer.env, version="", num_envs=3, autoreset_mode="DISABLED", mode="training", options={})
    fleet = HostedFleet("id", 1, offer, config)
    make(fleet, do="reset", rows=None, seeds=5)
    with pytest.raises(InvalidArgument, match=r"7 in row 1, expected 0 to 1 .*nothing was stepped"):
        make(fleet, do="step", actions=[0, 7, 0])
    with pytest.raises(InvalidArgument, match="-1 in row 1, expected 0 to 1"):
        make(fleet, do="step", actions=np.array([0, -1]), rows=np.array([0, 2]))
    assert fleet.describe()["lengths"].tolist() == [0, 0, 0]
    assert make(fleet, do="step", actions=[0, 1, 0])["seq"] == 2
    fleet.close()


def test_a_fleet_has_at_most_one_worker_per_sub_env() -> None:
    offer = make_offer("CartPole-v1", workers=4)
    assert [offer.count_processes(num_envs) for num_envs in (1, 3, 9)] == [1, 3, 4]
    assert make_offer("envfleet/CartPole-v1", workers=4).count_processes(9) == 0
