"""Ranked attempts, played honestly and not."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import TURBOFAN, Caller
from tests.service.luck import LUCK, PENALTY, register
from tests.service.serving import make_settings, serve_here
from tests.service.test_fleets import Process, process
from tests.waiting import PATIENCE_S

from envfleet.errors import InvalidArgument
from envfleet.service.database.journal import JournalEntry
from envfleet.service.database.models import Attempt
from envfleet.service.database.store import DAY_S
from envfleet.service.offers import make_offer
from envfleet.service.refusals import QuotaSpent
from envfleet.service.users.auth import Identity

N, ROWS = 40, 8
NOISE = 4.0 / np.sqrt(3.0 * N)
"""Four standard deviations of the mean of `N` numbers from -1 to 1."""

pytestmark = pytest.mark.usefixtures("seeded_engines")


@pytest.fixture
def luck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    register()


@pytest.fixture
def here(tmp_path: Path, luck: None) -> Iterator[Process]:
    offer = make_offer(LUCK, backend="serial", abandon_penalty=PENALTY, ranked_episodes=N)
    with process(make_settings(tmp_path, offers=(offer,), snapshot_every=3)) as opened:
        yield opened


def begin(here: Process, user: Identity, num_envs: int = ROWS, mode: str = "NEXT_STEP") -> tuple[str, dict[str, Any]]:
    fleet = here.create(user, LUCK, num_envs, "ranked", autoreset_mode=mode)
    return fleet, here.reset(user, fleet)


def play(here: Process, user: Identity, num_envs: int = ROWS, mode: str = "NEXT_STEP") -> str:
    """Play one attempt honestly."""
    fleet, reply = begin(here, user, num_envs, mode)
    while here.scores.attempts(user.user_id)[0]["ended_at"] is None:
        reply = here.step(user, fleet, reply["seq"], [0] * num_envs)
    return fleet


def scores(here: Process) -> dict[str, float]:
    return {row["user"]: row["score"] for row in here.scores.board(LUCK)}


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("num_envs", [1, 7, N])
def test_a_score_is_the_mean_of_all_episodes(here: Process, mode: str, num_envs: int) -> None:
    ann = here.user("ann")
    fleet = play(here, ann, num_envs, mode)
    reply = here.step(ann, fleet, here.store.count_events(fleet), [0] * num_envs)
    for _ in range(12):  # what is played after the attempt does not count
        reply = here.step(ann, fleet, reply["seq"], [0] * num_envs)
    rows = here.scores.episodes(ann.user_id, limit=1000)
    ranked = [row for row in rows if row["place"] is not None]
    assert sorted(row["place"] for row in ranked) == list(range(N))
    assert len(rows) > N
    assert all(row["place"] % num_envs == row["env_index"] for row in ranked)
    assert scores(here) == {"ann": pytest.approx(np.mean([row["total"] for row in ranked]))}
    assert abs(scores(here)["ann"]) < NOISE
    attempt = here.scores.attempts(ann.user_id)[0]
    halves = [np.mean([row["total"] for row in ranked if row["place"] % 2 == k]) for k in (0, 1)]
    assert [attempt["public_score"], attempt["final_score"]] == pytest.approx(halves)


def test_an_option_that_changes_the_task_is_refused(tmp_path: Path) -> None:
    """With one step per episode, any player would lead in Pendulum."""
    offers = (make_offer("Pendulum-v1", backend="serial", abandon_penalty=3300.0), make_offer(TURBOFAN))
    with serve_here(make_settings(tmp_path, offers=offers)) as (http, service):
        ann = Caller(http, service.tokens.create("ann"))
        for env, options in (("Pendulum-v1", {"max_episode_steps": 1}), (TURBOFAN, {"max_episode_steps": 999})):
            refused = ann.post("/fleets", env=env, num_envs=1, mode="ranked", options=options)
            assert (refused.status_code, "'max_episode_steps', which changes the task" in refused.text) == (422, True)
            assert ann.post("/fleets", env=env, num_envs=1, options=options).status_code == 201
        assert ann.post("/fleets", env=TURBOFAN, num_envs=1, mode="ranked", options={"step_size": 3}).status_code == 201
        config = {"env_type": "DegradationEnv", "max_steps_per_episode": 1, "ranked": True}
        refused = ann.json("/episode/create", **config)
        assert (refused.status_code, "=1 decisions change the task: pass 1000" in refused.text) == (422, True)
        assert ann.json("/episode/create", **config | {"max_steps_per_episode": 1000}).status_code == 200
        refused = ann.post("/fleets", env=TURBOFAN, num_envs=101, mode="ranked")
        assert (refused.status_code, "has 100 episodes" in refused.text) == (422, True)


def test_an_attempt_that_is_left_has_no_score(here: Process) -> None:
    """Lucky episodes end first; closing before the others end would score +0.5."""
    picker, honest = here.user("picker"), here.user("honest")
    play(here, honest)
    before = scores(here)
    for num_envs in (6, N):
        fleet, reply = begin(here, picker, num_envs, "SAME_STEP")
        for _ in range(2):
            reply = here.step(picker, fleet, reply["seq"], [0] * num_envs)
        here.fleets.close_fleet(picker.user_id, fleet)
    # Unfinished episodes count with the penalty if all have begun; otherwise the attempt is without a score.
    left = here.scores.attempts(picker.user_id)
    assert left[1]["score"] is None
    assert left[1]["ended_at"] is not None
    assert left[0]["score"] < 0.0
    assert scores(here) == before | {"picker": left[0]["score"]}


def test_starts_cannot_be_chosen(here: Process) -> None:
    picker = here.user("picker")
    fleet, reply = begin(here, picker)
    again = here.reset(picker, fleet, seq=reply["seq"])
    np.testing.assert_array_equal(again["observations"], reply["observations"])
    worst = np.argsort(reply["observations"][:, 0])[:3]
    some = here.call(picker, fleet, again["seq"], do="reset", rows=worst, seeds=None)
    np.testing.assert_array_equal(some["observations"], reply["observations"][worst])
    assert here.scores.episodes(picker.user_id) == []
    stepped = here.step(picker, fleet, some["seq"], [0] * ROWS)
    reply = here.reset(picker, fleet, seq=stepped["seq"])
    assert not np.isin(reply["observations"], again["observations"]).any()
    left = here.scores.episodes(picker.user_id)
    assert [(row["outcome"], row["counted"]) for row in left] == [("abandoned", -PENALTY)] * ROWS


def test_an_autoreset_start_cannot_be_thrown_away(here: Process) -> None:
    picker = here.user("picker")
    fleet, reply = begin(here, picker, 1, "SAME_STEP")
    while not reply.get("terminated", [False])[0]:
        reply = here.step(picker, fleet, reply["seq"], [0])
    here.reset(picker, fleet, seq=reply["seq"])
    last = here.scores.episodes(picker.user_id)[0]
    assert (last["place"], last["outcome"], last["length"], last["counted"]) == (1, "abandoned", 0, -PENALTY)


def test_a_picker_of_episodes_gains_nothing(here: Process) -> None:
    """A user that abandons each unlucky episode early scores far below one that plays all of them."""
    picker, honest = here.user("picker"), here.user("honest")
    play(here, honest)
    before = scores(here)["honest"]
    fleet, reply = begin(here, picker, mode="SAME_STEP")
    while here.scores.attempts(picker.user_id)[0]["ended_at"] is None:
        unlucky = np.flatnonzero(reply["observations"][:, 0] < 0)  # of starts; later observations are 0
        if len(unlucky) and here.store.count_events(fleet) > 1:
            reply = here.call(picker, fleet, reply["seq"], do="reset", rows=unlucky, seeds=None)
        reply = here.step(picker, fleet, reply["seq"], [0] * ROWS)
    assert scores(here)["picker"] < -0.2
    assert scores(here)["honest"] == before


def test_many_accounts_gain_no_more_than_noise(here: Process) -> None:
    honest = here.user("honest")
    play(here, honest)
    before = scores(here)["honest"]
    for k in range(12):
        play(here, here.user(f"account {k}"), 20)
    board = scores(here)
    assert board["honest"] == before
    assert len(board) == 13
    assert max(abs(score) for score in board.values()) < NOISE


def test_attempts_of_a_day_are_limited(tmp_path: Path, luck: None, database: str) -> None:
    offer = make_offer(LUCK, backend="serial", abandon_penalty=PENALTY, ranked_episodes=2)
    settings = make_settings(tmp_path, offers=(offer,), database=database, attempts_per_day=3)
    with process(settings) as left, process(settings) as right, ThreadPoolExecutor(6) as pool:
        ann, bob = left.user("ann"), left.user("bob")

        def start(k: int) -> bool:
            try:
                (left, right)[k % 2].create(ann, LUCK, 1, "ranked")
            except QuotaSpent:
                return False
            return True

        assert sum(pool.map(start, range(6))) == 3
        assert left.count(Attempt) == 3
        with pytest.raises(QuotaSpent, match="all 3 attempts of today"):
            left.create(ann, LUCK, 1, "ranked")
        right.create(bob, LUCK, 1, "ranked")
        left.create(ann, LUCK, 1)  # training is still allowed
        fleet = left.scores.attempts(ann.user_id)[0]["fleet_id"]
        reply = left.reset(ann, fleet)
        for _ in range(12):
            reply = left.step(ann, fleet, reply["seq"], [0])
        assert left.scores.board(LUCK)[0]["user"] == "ann"  # as PostgreSQL works it out


def test_attempts_begun_at_midnight_count_for_the_day_before(
    tmp_path: Path, luck: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many started in the last moment of a day, and committed on the next, would count for neither."""
    offer = make_offer(LUCK, backend="serial", abandon_penalty=PENALTY, ranked_episodes=2)
    midnight, both = 20_000.0 * DAY_S, threading.Barrier(2)
    now = [midnight - 0.1]
    clock = types.SimpleNamespace(time=lambda: now[0], monotonic=time.monotonic)
    for module in ("database.store", "hosting.fleets"):
        monkeypatch.setattr(f"envfleet.service.{module}.time", clock)
    with process(make_settings(tmp_path, offers=(offer,), attempts_per_day=1)) as here, ThreadPoolExecutor(2) as pool:
        ann, commit = here.user("ann"), here.journal.commit

        def commit_late(entry: JournalEntry) -> None:
            both.wait(PATIENCE_S)
            now[0] = midnight + 0.1
            commit(entry)

        monkeypatch.setattr(here.journal, "commit", commit_late)
        started = [pool.submit(here.create, ann, LUCK, 1, "ranked") for _ in range(2)]
        assert [type(each.exception(PATIENCE_S)) for each in started].count(QuotaSpent) == 1
        monkeypatch.setattr(here.journal, "commit", commit)
        here.create(ann, LUCK, 1, "ranked")  # that of the new day
        with pytest.raises(QuotaSpent):
            here.create(ann, LUCK, 1, "ranked")


def test_equal_scores_share_a_rank(here: Process) -> None:
    users = [here.user(name) for name in ("ann", "bob", "joe", "eve")]
    played = [(0, 1.0, None), (1, 3.0, None), (0, 3.0, None), (0, 3.0, None), (2, 2.0, None), (3, 9.0, "cheated")]
    rows = [
        {"fleet_id": str(k), "user_id": users[who].user_id, "env": LUCK, "episodes": N, "started_at": 1.0,
         "ended_at": 2.0 + k, "score": score, "void_reason": void}
        for k, (who, score, void) in enumerate(played)
    ]  # fmt: skip
    with here.store.engine.begin() as connection:
        connection.execute(sa.insert(Attempt), rows)
    board = here.scores.board(LUCK)
    assert [(row["rank"], row["user"], row["score"], row["attempts"], row["ended_at"]) for row in board] == [
        (1, "ann", 3.0, 3, 4.0),  # the first of two equal attempts
        (1, "bob", 3.0, 1, 3.0),
        (3, "joe", 2.0, 1, 6.0),
    ]


@pytest.mark.parametrize("env", [LUCK, TURBOFAN])
def test_an_attempt_survives_the_process(tmp_path: Path, luck: None, env: str) -> None:
    offers = tuple(
        make_offer(name, backend="serial", abandon_penalty=PENALTY, ranked_episodes=9) for name in (LUCK, TURBOFAN)
    )
    settings = make_settings(tmp_path, offers=offers, snapshot_every=2)
    with process(settings) as first:
        ann = first.user("ann")
        fleet = first.create(ann, env, 2, "ranked", autoreset_mode="SAME_STEP")
        reply = first.reset(ann, fleet)
    for k in range(100):
        with process(settings) as later:
            for _ in range(3):
                actions = [2 if k % 2 else 0, 2] if env == TURBOFAN else [0, 0]
                reply = later.step(ann, fleet, reply["seq"], actions)
            attempt = later.scores.attempts(ann.user_id)[0]
            rows = [row for row in later.scores.episodes(ann.user_id) if row["place"] is not None]
            assert attempt["ended"] == len(rows)
            if attempt["ended_at"] is not None:
                break
    assert sorted(row["place"] for row in rows) == list(range(9))
    assert attempt["score"] == pytest.approx(np.mean([row["total"] for row in rows]))


def test_ranked_fleets_take_no_seeds(here: Process) -> None:
    ann = here.user("ann")
    fleet = here.create(ann, LUCK, 2, "ranked")
    for seeds in (1, [1, None], [1, 2]):
        with pytest.raises(InvalidArgument, match="ranked"):
            here.reset(ann, fleet, seeds=seeds)
    other = here.create(ann, LUCK, 2, "ranked")
    assert not np.array_equal(here.reset(ann, fleet)["observations"], here.reset(ann, other)["observations"])
