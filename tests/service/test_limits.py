"""Limits hold for all processes together and outlive a restart; what takes long is never waited for without end."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import TURBOFAN, Caller
from tests.service.serving import make_settings, serve_here
from tests.service.test_fleets import CARTPOLE, Process, process

from envfleet.errors import InvalidArgument
from envfleet.service.database.models import Episode, FleetEvent
from envfleet.service.offers import find_offer
from envfleet.service.refusals import Busy, Closed, EnvFailed, QuotaSpent
from envfleet.service.service import Service
from envfleet.service.settings import Settings
from envfleet.service.turns import Turns
from envfleet.service.users.auth import Identity, Tokens


def step(here: Process, user: Identity, fleet: str, seq: int, most: int | None, actions: Any = (0, 0)) -> bool:
    event = {"do": "step", "actions": np.array(actions)}
    return here.fleets.call(user.user_id, fleet, event, seq=seq, key=bytes([seq] * 8), most_steps=most)[1]


def test_daily_steps_count_over_processes_and_restarts(tmp_path: Path, database: str) -> None:
    settings = make_settings(tmp_path, database=database)
    with process(settings) as left, process(settings) as right:
        user = left.user("ann")
        own, other = (left.create(user, num_envs=2) for _ in range(2))
        for fleet in (own, other):
            left.reset(user, fleet, seeds=1)
        step(left, user, own, 1, 6)
        step(right, user, other, 1, 6)
        step(left, user, own, 2, 6)
        # The right one has not heard of the last two: the database refuses, and the fleet stays where it was.
        with pytest.raises(QuotaSpent, match="6 of 6 steps"):
            step(right, user, other, 2, 6)
        assert step(right, user, other, 1, 6)  # a retry costs nothing
        assert right.store.steps_today(user.user_id) == 6
    with process(settings) as later, pytest.raises(QuotaSpent):
        step(later, user, own, 3, 6)
    with process(settings) as later:
        assert not step(later, user, own, 3, None)
        assert later.store.steps_today(user.user_id) == 8


def test_what_begins_anew_is_no_step(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2, options={"max_episode_steps": 1})
        here.reset(user, fleet, seeds=1)
        step(here, user, fleet, 1, 2)
        step(here, user, fleet, 2, 2)  # both had ended
        with pytest.raises(QuotaSpent, match="2 of 2 steps"):
            step(here, user, fleet, 3, 2)


def test_live_environments_are_counted_over_all_processes(tmp_path: Path, database: str) -> None:
    settings = make_settings(tmp_path, database=database)
    with process(settings) as left, process(settings) as right, ThreadPoolExecutor(6) as pool:
        user = left.user("ann")
        version = find_offer(settings.offers, CARTPOLE).version()
        from envfleet.service.hosting.hosted import FleetConfig

        values: dict[str, Any] = {"autoreset_mode": "NEXT_STEP", "mode": "training", "options": {}}
        config = FleetConfig(env=CARTPOLE, version=version, num_envs=2, **values)

        def create(k: int) -> bool:
            try:
                (left, right)[k % 2].fleets.create(user.user_id, config, str(k), most_live_envs=6)
            except QuotaSpent:
                return False
            return True

        assert sum(pool.map(create, range(6))) == 3
        assert left.store.count_live_envs(user.user_id) == 6
        assert left.fleets.num_held + right.fleets.num_held == 3


def test_a_closed_fleet_cannot_be_used_by_another_process(tmp_path: Path, database: str) -> None:
    settings = make_settings(tmp_path, database=database)
    with process(settings) as left, process(settings) as right:
        user = left.user("ann")
        fleet = left.create(user, TURBOFAN, 2, mode="ranked")
        left.reset(user, fleet)
        step(left, user, fleet, 1, None)
        right.fleets.close_fleet(user.user_id, fleet)
        with pytest.raises(Closed):
            step(left, user, fleet, 2, None)
        assert left.fleets.num_held == right.fleets.num_held == 0
        left.fleets.close_fleet(user.user_id, fleet)
        with left.store.engine.connect() as connection:
            assert connection.execute(sa.select(sa.func.max(FleetEvent.seq))).scalar() == 2  # its closing
            assert connection.execute(sa.select(Episode.outcome)).scalars().all() == ["abandoned"] * 2


def test_a_long_log_is_made_again_over_several_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as here:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2)
        here.reset(user, fleet, seeds=3)
        replies = [here.step(user, fleet, seq, [seq % 2, 0]) for seq in range(1, 30)]
    hasty = settings.model_copy(update={"queue_timeout_s": 0.001})
    monkeypatch.setattr("envfleet.service.hosting.memory._CHUNK", 7)
    with process(hasty) as later:
        with pytest.raises(Busy, match="try again, and it continues"):
            later.step(user, fleet, 29, [1, 0])
        for _ in range(30):
            with contextlib.suppress(Busy):
                reply = later.step(user, fleet, 29, [1, 0])
                break
        np.testing.assert_array_equal(reply["observations"], replies[-1]["observations"])


def leave_fleet(settings: Settings) -> tuple[Identity, str]:
    """A fleet of two that was reset before its service ended."""
    with process(settings) as here:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2)
        here.reset(user, fleet, seeds=3)
    return user, fleet


def test_a_fleet_whose_log_cannot_be_made_again_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    user, fleet = leave_fleet(settings)

    def fail(*_: Any) -> Any:
        raise InvalidArgument("the seed is not liked any more")

    with process(settings) as later:
        monkeypatch.setattr("envfleet.service.hosting.hosted.HostedFleet._reset", fail)
        with pytest.raises(EnvFailed, match=r"call 0 .* could not be made again"):
            later.step(user, fleet, 1, [0, 0])
        assert later.fleets.num_held == 0


@pytest.mark.parametrize("error", [InvalidArgument("it has gone"), OSError("there is no licence")])
def test_a_fleet_that_cannot_be_rebuilt_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    settings = make_settings(tmp_path)
    user, fleet = leave_fleet(settings)

    def fail(*_: Any) -> Any:
        raise error

    with process(settings) as later:
        monkeypatch.setattr("envfleet.service.offers.Offer.make", fail)
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.store.count_live_envs(user.user_id) == 0


def test_a_fleet_of_a_withdrawn_environment_is_closed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as here:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2)
    others = tuple(offer for offer in settings.offers if offer.env != CARTPOLE)
    with process(settings.model_copy(update={"offers": others})) as later:
        later.fleets.close_fleet(user.user_id, fleet)
        assert later.store.count_live_envs(user.user_id) == 0


def test_a_fleet_that_cannot_be_closed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as here, process(settings.model_copy(update={"offers": ()})) as other:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2)
        here.reset(user, fleet, seeds=3)
        monkeypatch.setattr(other.store, "count_events", lambda _: 0)  # as if there were always another call since
        with pytest.raises(Busy, match="another call or process uses the fleet"):
            other.fleets.close_fleet(user.user_id, fleet)
        assert not here.store.is_closed(fleet)


def test_a_call_that_hangs_keeps_no_other_waiting_for_ever(tmp_path: Path) -> None:
    with process(make_settings(tmp_path, queue_timeout_s=0.05, evict_after_s=0.01)) as here:
        user = here.user("ann")
        fleet = here.create(user, num_envs=2)
        hosted = here.fleets.held(fleet)
        assert hosted is not None
        with hosted.lock:
            with pytest.raises(Busy, match="another call"):
                here.reset(user, fleet)
            time.sleep(0.02)
            here.fleets.tend()
            assert here.fleets.num_held == 1
        here.fleets.tend()
        assert here.fleets.num_held == 0


def test_odd_characters_in_paths_are_just_unknown(tmp_path: Path, postgres_url: str) -> None:
    with serve_here(make_settings(tmp_path, database=postgres_url)) as (http, service):
        caller = Caller(http, service.tokens.create("ann"))
        responses = [caller.get(f"/{path}") for path in ("fleets/%00", "fleets/..%2fetc", "fleets/%ff", "scores/%00")]
        responses += [caller.post(f"/fleets/%00/{call}", seq=0, actions=0) for call in ("step", "reset", "close")]
        responses += [
            caller.episode("%00-0-0"),
            caller.post("/fleets", env=TURBOFAN, num_envs=1, options={"return_all_states": float("nan")}),
            caller.post("/fleets", env="a\x00b", num_envs=1),
        ]
        assert [response.status_code for response in responses if response.status_code not in (404, 422)] == []
    with pytest.raises(InvalidArgument, match="name"):
        Tokens(service.store).create("\udcff")


def test_one_user_has_half_of_the_turns_at_most(tmp_path: Path) -> None:
    import asyncio

    def who(user_id: int) -> Identity:
        return Identity(user_id, "", "participant", user_id, None, None)

    async def take() -> list[str]:
        turns, outcomes = Turns(make_settings(tmp_path, max_running=4, queue_timeout_s=0.05)), []
        async with contextlib.AsyncExitStack() as stack:
            for user_id in (1, 1, 1, 2, 2, 3):
                try:
                    await stack.enter_async_context(turns.take(who(user_id)))
                    outcomes.append("runs")
                except Busy:
                    outcomes.append("waited")
        async with turns.take(who(1)):
            assert turns.num_waiting == 0
        return outcomes

    assert asyncio.run(take()) == ["runs", "runs", "waited", "runs", "runs", "waited"]


def test_a_call_with_every_number_of_flights_makes_few_steps(narrow: tuple[httpx.Client, Service]) -> None:
    http, service = narrow
    caller = Caller(http, service.tokens.create("joe"))
    ids = caller.json("/vectorized/episodes/create", env_config={}, num_envs=6).json()["episode_ids"]
    actions = [
        {"episode_id": each, "action": 0, "step_size": size}
        for each, size in zip(ids, (7, 7, 50, 51, 99, 10_000), strict=True)
    ]
    reply = caller.json("/episode/vectorized_step", episode_actions=actions).json()
    assert [len(rows) for rows in reply["observations"][:2]] == [7, 7]
    assert service.store.count_events(ids[0][:24]) == 1 + 2  # a reset, and a step for each number there can be


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serve_here(make_settings(tmp_path_factory.mktemp("narrow"), max_body_bytes=4096)) as both:
        yield both


def test_json_bodies_are_limited_however_they_are_sent(narrow: tuple[httpx.Client, Service]) -> None:
    http, service = narrow
    headers = {"User-Token": service.tokens.create("ann"), "Content-Type": "application/json"}
    for content in (b"[" * 5000, (b"[" * 1000 for _ in range(5))):
        response = http.post("/api/v1/episode/vectorized_step", content=content, headers=headers)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")
    assert http.post("/api/v1/episode/vectorized_step", content=b"[", headers=headers).status_code == 422
