"""What can be reached behind a service: states that stay there, prices, pictures; and what cannot, with the reason."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.conftest import TURBOFAN, Place, lose_reply, lose_request, network_of
from tests.service.serving import make_settings, serve_here

import envfleet
from envfleet.errors import CallPending, InvalidArgument, ResetNeeded, ServiceUnreachable
from envfleet.service.offers import make_offer

FLY = np.zeros(4, np.int64)


def connect(place: Place, env: str = TURBOFAN, num_services: int = 1, **more: Any) -> Any:
    return envfleet.connect([place.url] * num_services, env, 4, token=place.token, **more)


@pytest.mark.parametrize(("env", "num_services"), [(TURBOFAN, 2), ("CartPole-v1", 1)])
def test_saved_sub_environments_go_on_as_they_would_have(place: Place, env: str, num_services: int) -> None:
    with connect(place, env, num_services, autoreset_mode="SAME_STEP") as fleet:
        with pytest.raises(ResetNeeded):
            fleet.get_state()
        fleet.reset(seed=0)
        fleet.step(FLY)
        saved = pickle.loads(pickle.dumps(fleet.get_state()))
        later = fleet.get_state([3, 0])
        lengths = fleet.episode_lengths
        first = [fleet.step(FLY)[:2] for _ in range(5)]
        fleet.step(FLY + 1)
        observations = fleet.set_state(saved)
        np.testing.assert_array_equal(fleet.episode_lengths, lengths)
        for expected in first:
            found = fleet.step(FLY)[:2]
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_array_equal(found[1], expected[1])
        part = fleet.set_state([later[1], saved[1], later[0]], [0, 1, 3])
        np.testing.assert_array_equal(part, observations[[0, 1, 3]])
        if num_services == 1:  # within one service a state fits anywhere
            np.testing.assert_array_equal(fleet.set_state([saved[0]], [2])[0], observations[0])
        else:
            with pytest.raises(InvalidArgument, match="saved by another fleet"):
                fleet.set_state([saved[0]], [3])


def test_a_saved_state_tells_nothing_and_is_kept_for_a_while(place: Place) -> None:
    with connect(place) as fleet, connect(place) as other:
        fleet.reset(seed=0)
        other.reset(seed=0)
        saved = fleet.get_state()
        assert {type(value) for value in saved[0][:3]} == {str, int}
        with pytest.raises(InvalidArgument, match="another fleet"):
            other.set_state(saved)
        with pytest.raises(InvalidArgument, match="expected 4 states"):
            fleet.set_state(saved[:2])
        for _ in range(16):
            fleet.get_state()
        with pytest.raises(InvalidArgument, match="is not kept"):
            fleet.set_state(saved)
        assert fleet.step(FLY)[1].shape == (4,)


def test_a_restored_episode_is_another_one(place: Place) -> None:
    with connect(place, autoreset_mode="DISABLED") as fleet:
        fleet.reset(seed=0)
        fleet.step(FLY)
        saved = fleet.get_state()
        returns = []
        for _ in range(3):
            fleet.step(FLY + 2)
            returns.append(fleet.episode_returns)
            assert fleet.active_count == 0
            fleet.set_state(saved)
            assert fleet.active_count == 4
        np.testing.assert_array_equal(returns[0], returns[2])


def test_a_state_that_was_lost_on_the_way_is_saved_once(place: Place) -> None:
    with connect(place, patience_s=0.05) as fleet:
        fleet.reset(seed=0)
        network = network_of(fleet)
        network.tricks = [lose_reply] * 9
        with pytest.raises(ServiceUnreachable):
            fleet.get_state([2])
        network.tricks = []
        state = fleet.get_state([2])
        assert (state[0].number, state[0].place) == (1, 0)
        fleet.set_state(state, [2])


def test_a_call_to_all_services_is_not_that_to_one_of_them(place: Place) -> None:
    with connect(place, num_services=2, patience_s=0.05) as fleet:
        fleet.reset(seed=0)
        network = network_of(fleet, 1)
        network.tricks = [lose_request] * 9
        with pytest.raises(ServiceUnreachable):
            fleet.get_state()
        with pytest.raises(CallPending, match="save"):
            fleet.get_state([0, 1])  # the first service's part of it
        network.tricks = []
        fleet.set_state(fleet.get_state())


@pytest.mark.parametrize("num_services", [1, 2])
def test_ranked_decisions_are_final(place: Place, num_services: int) -> None:
    with connect(place, num_services=num_services, mode="ranked") as fleet:
        fleet.reset()
        for call in (fleet.get_state, lambda: fleet.get_state([1])):
            with pytest.raises(InvalidArgument, match="every decision is final"):
                call()
        fleet.step(FLY)  # what every service refused was made nowhere
        assert fleet.np_random_seed == (None,) * 4


def test_prices_can_be_read_and_hidden_things_cannot(place: Place) -> None:
    with connect(place) as fleet:
        assert fleet.get_attr("repair_cost") == (900.0,) * 4
        assert fleet.call("sale_value") == (150.0,) * 4
        fleet.reset(seed=5)
        assert fleet.np_random_seed == (5, 6, 7, 8)
        for name in ("degradation", "wear_rate", "normals", "np_random", "__class__", "a/b", "..", "unknown"):
            with pytest.raises(InvalidArgument, match="is not shown here"):
                fleet.get_attr(name)
    with connect(place, "CartPole-v1") as fleet, pytest.raises(InvalidArgument, match="as it may tell"):
        fleet.get_attr("gravity")


@pytest.fixture
def gallery(tmp_path: Path) -> Iterator[Place]:
    offers = (make_offer("CartPole-v1", backend="serial", has_pictures=True),)
    with serve_here(make_settings(tmp_path, offers=offers)) as (client, service):
        yield Place(str(client.base_url).rstrip("/"), service.tokens.create("ann"), service)


def test_pictures_are_shown_where_the_service_allows_it(gallery: Place, place: Place) -> None:
    with (
        connect(gallery, "CartPole-v1", render_mode="rgb_array") as fleet,
        envfleet.make("CartPole-v1", 4, backend="serial", render_mode="rgb_array") as local,
    ):
        with pytest.raises(ResetNeeded):
            fleet.render()
        for each in (fleet, local):
            each.reset(seed=0)
            each.step(FLY)
        frames, expected = fleet.render(), local.render()
        assert expected is not None
        np.testing.assert_array_equal(np.stack(frames), np.stack(expected))
        np.testing.assert_array_equal(np.stack(fleet.call("render")), np.stack(frames))
        assert fleet.render_mode == "rgb_array"
    options: dict[str, Any] = {"token": gallery.token, "render_mode": "rgb_array"}
    with envfleet.connect(gallery.url, "CartPole-v1", 257, **options) as crowd:
        crowd.reset(seed=0)
        with pytest.raises(InvalidArgument, match="those of 256"):
            crowd.render()
    with pytest.raises(InvalidArgument, match="rgb_array"):
        connect(gallery, "CartPole-v1", render_mode="human")
    with pytest.raises(InvalidArgument, match="render_mode"):
        connect(place, "CartPole-v1", render_mode="rgb_array")
    with connect(place) as fleet:
        fleet.reset(seed=0)
        assert fleet.render() == ()


def test_what_a_service_cannot_do_is_refused_with_the_reason(place: Place) -> None:
    refused = {
        "set_attr": (("gravity", 1.0), "arguments of connect"),
        "apply": ((len,), "no Python objects here"),
        "stacks": ((), "runs no Python here"),
        "call": (("step", 0), "only resets and steps change"),
    }
    with connect(place) as fleet:
        fleet.reset(seed=0)
        for name, (arguments, clue) in refused.items():
            with pytest.raises(InvalidArgument, match=clue):
                getattr(fleet, name)(*arguments)
        with pytest.raises(InvalidArgument, match="is not shown here"):
            _ = fleet.np_random
        for options in ({"params": {"profit": 100.0}}, [{"profit": 1.0}]):
            with pytest.raises(InvalidArgument, match="arguments of connect"):
                fleet.reset_envs([0], options=options)
        assert fleet.step(FLY)[1].shape == (4,)
