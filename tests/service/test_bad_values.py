"""Values that no database, score or environment can hold are refused with their cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import httpx
import numpy as np
import pytest
from gymnasium import spaces
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.service.test_fleets import process
from tests.service.test_limits import leave_fleet

from envfleet.envs.turbofan import turbofan
from envfleet.errors import InvalidArgument
from envfleet.remote.codec import unpack
from envfleet.service.offers import Offer, make_offer
from envfleet.service.refusals import Closed, EnvFailed, NotFound
from envfleet.service.service import Service

ODD = "OddRewards-v0"


class OddRewards(gym.Env[Any, Any]):
    """Rewards are what the action picks; an episode ends after three steps."""

    REWARDS: ClassVar = (1.0, float("nan"), float("inf"), -float("inf"), 1e100)
    observation_space, action_space = spaces.Box(-1.0, 1.0, (1,)), spaces.Discrete(5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = 3
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return np.zeros(1, np.float32), self.REWARDS[int(action)], self._left == 0, False, {}


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    gym.register(ODD, lambda **_: OddRewards(), disable_env_checker=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Service]]:
    settings = make_settings(tmp_path_factory.mktemp("options"), offers=(make_offer(TURBOFAN, has_pictures=True),))
    with serve_here(settings) as both:
        yield both


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_rewards_that_no_score_can_hold_end_no_episode(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    changes = {} if kind == "sqlite" else {"database": request.getfixturevalue("postgres_url")}
    with process(
        make_settings(
            tmp_path, offers=(make_offer(ODD, backend="serial", abandon_penalty=0.0, ranked_episodes=2),), **changes
        )
    ) as here:
        user = here.user("ann")
        fleet = here.create(user, ODD, 2, mode="ranked")
        here.reset(user, fleet)
        here.step(user, fleet, 1, [0, 4])
        for action, reward in ((1, "nan"), (2, "inf"), (3, "-inf")):
            with pytest.raises(EnvFailed, match=f"sub-environment 0 the reward {reward},"):
                here.step(user, fleet, 2, [action, 0])
        with pytest.raises(EnvFailed, match=r"sub-environment 1 .* its return is 2e\+100, which no score can hold"):
            here.step(user, fleet, 2, [0, 4])
        for seq in (2, 3):  # the fleet stands where it stood
            here.step(user, fleet, seq, [0, 0])
        assert here.scores.board(ODD)[0]["score"] == pytest.approx(5e99)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("logbook", "no", "True or False"),
        ("logbook", 0, "True or False"),
        ("return_all_states", "False", "True or False"),
        ("step_size", "10", "a whole number from 1 to 50"),
        ("step_size", True, "a whole number from 1 to 50"),
        ("step_size", 2.5, "a whole number from 1 to 50"),
        ("step_size", 51, "a whole number from 1 to 50"),
        ("max_episode_steps", 0, "a whole number from 1 to 1000"),
        ("render_mode", "human", "one of 'rgb_array'"),
    ],
)
def test_options_of_another_type_are_refused_by_name(ann: Caller, name: str, value: Any, expected: str) -> None:
    refused = ann.post("/fleets", env=TURBOFAN, num_envs=1, options={name: value})
    assert refused.status_code == 422
    assert refused.json()["detail"] == f"options[{name!r}]={value!r}: pass {expected}"


def test_an_environment_that_states_no_penalty_is_not_ranked(tmp_path: Path) -> None:
    """With negative rewards, participants that leave after one step would lead."""
    with serve_here(make_settings(tmp_path)) as (http, service):
        ann = Caller(http, service.tokens.create("ann"))
        refused = ann.post("/fleets", env="CartPole-v1", num_envs=1, mode="ranked")
        assert (refused.status_code, "service started with --abandon-penalty" in refused.text) == (422, True)
        penalties = {name: env["abandon_penalty"] for name, env in unpack(ann.get("/envs").content)["envs"].items()}
        assert penalties == {TURBOFAN: 150.0, "CartPole-v1": None, "envfleet/CartPole-v1": None}


def test_a_service_states_penalties_where_environments_do_not() -> None:
    assert [make_offer(name, abandon_penalty=7.0).abandon_penalty for name in (TURBOFAN, "CartPole-v1")] == [150.0, 7.0]


def test_text_is_no_flag_of_an_engine_either() -> None:
    with pytest.raises(InvalidArgument, match="logbook='no': pass True or False"):
        turbofan(10, logbook="no")  # type: ignore[arg-type]  # that is the test


def test_an_option_is_sent_to_worker_processes_and_back() -> None:
    offer = make_offer(TURBOFAN, has_pictures=True)
    assert Offer.model_validate_json(offer.model_dump_json()) == offer


@pytest.mark.parametrize("what", ["log", "version"])
def test_a_fleet_that_cannot_be_brought_back_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    settings = make_settings(tmp_path)
    user, fleet = leave_fleet(settings)

    def fail(*_: Any) -> Any:
        raise ValueError("the seed is not liked any more")

    with process(settings) as later:
        if what == "log":
            monkeypatch.setattr("envfleet.service.hosting.hosted.HostedFleet._reset", fail)
        else:
            monkeypatch.setattr("envfleet.service.offers.Offer.version", lambda _: "another")
        with pytest.raises((EnvFailed, Closed)):
            later.step(user, fleet, 1, [0, 0])
        assert later.store.count_live_envs(user.user_id) == 2
        with pytest.raises(NotFound):
            later.fleets.close_fleet(user.user_id + 1, fleet)
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.store.count_live_envs(user.user_id) == later.fleets.num_held == 0
        with pytest.raises(Closed, match="was closed"):
            later.step(user, fleet, 1, [0, 0])
