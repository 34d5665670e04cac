"""Attributes and frames that a service shows; all others are refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.remote.conftest import TURBOFAN, Place
from tests.service.serving import make_settings, serve_here

import envfleet
from envfleet.errors import InvalidArgument, ResetNeeded
from envfleet.service.offers import make_offer

FLY = np.zeros(4, np.int64)


def connect(place: Place, env: str = TURBOFAN, num_services: int = 1, **more: Any) -> Any:
    return envfleet.connect([place.url] * num_services, env, 4, token=place.token, **more)


def test_prices_can_be_read_and_hidden_things_cannot(place: Place) -> None:
    with connect(place) as fleet:
        assert fleet.get_attr("repair_cost") == (900.0,) * 4
        assert fleet.call("sale_value") == (150.0,) * 4
        fleet.reset(seed=5)
        assert fleet.np_random_seed == (5, 6, 7, 8)
        for name in ("degradation", "wear_rate", "normals", "np_random", "__class__", "a/b", "..", "unknown"):
            with pytest.raises(InvalidArgument, match=r"is not readable|is not an attribute name"):
                fleet.get_attr(name)
    with (
        connect(place, "CartPole-v1") as fleet,
        pytest.raises(InvalidArgument, match=r"hidden state\); readable: none"),
    ):
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
        assert fleet.render() == (None,) * fleet.num_envs


def test_what_a_service_cannot_do_is_refused_with_the_reason(place: Place) -> None:
    refused = {
        "set_attr": (("gravity", 1.0), "arguments of connect"),
        "apply": ((len,), r"not Python objects: read attributes with get_attr\(\)"),
        "stacks": ((), "runs no Python here"),
        "call": (("step", 0), "only resets and steps change"),
        "get_state": ((), "cannot save sub-environments"),
    }
    with connect(place) as fleet:
        fleet.reset(seed=0)
        for name, (arguments, clue) in refused.items():
            with pytest.raises(InvalidArgument, match=clue):
                getattr(fleet, name)(*arguments)
        with pytest.raises(InvalidArgument, match=r"is not readable|is not an attribute name"):
            _ = fleet.np_random
        with pytest.raises(InvalidArgument, match="arguments of connect"):
            fleet.reset_envs([0], options={"params": {"profit": 100.0}})
        assert fleet.step(FLY)[1].shape == (4,)
