"""Fleets that leave the memory and come back, from snapshots too; two processes with one database; reaping; scores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from gymnasium.vector import AutoresetMode
from tests.service.serving import make_settings

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.remote.codec import unpack
from envfleet.service.database.journal import Conflict, Journal, JournalEntry
from envfleet.service.database.models import Attempt, Base, Episode, FleetEvent, FleetRow, Snapshot
from envfleet.service.database.scores import Scores
from envfleet.service.database.store import Store
from envfleet.service.hosting import hosted
from envfleet.service.hosting.fleets import Fleets
from envfleet.service.hosting.hosted import FleetConfig
from envfleet.service.metrics import Metrics
from envfleet.service.offers import find_offer
from envfleet.service.refusals import Closed, EnvFailed, NotFound, OutOfStep
from envfleet.service.settings import Settings
from envfleet.service.users.auth import Identity, Tokens
from envfleet.service.web.replay import Replays

CARTPOLE, TURBOFAN = "CartPole-v1", "envfleet/Turbofan-v0"
PENALTY = 150.0  # of an engine that is abandoned


class Process:
    """The parts of a process of a service."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.store = settings, Store(settings.database)
        self.store.migrate()
        self.journal = Journal(self.store)
        self.fleets = Fleets(self.store, self.journal, settings, Metrics())
        self.tokens, self.scores = Tokens(self.store), Scores(self.store)

    def user(self, name: str) -> Identity:
        return self.tokens.check(self.tokens.create(name))

    def create(
        self, user: Identity, env: str = CARTPOLE, num_envs: int = 3, mode: str = "training", **more: Any
    ) -> str:
        offer = find_offer(self.settings.offers, env)
        values = {"autoreset_mode": "NEXT_STEP", "options": {}, **more}
        values |= offer.ranked_terms(mode)
        config = FleetConfig(env=env, version=offer.version(), num_envs=num_envs, mode=mode, **values)
        return self.fleets.create(user.user_id, config, repr(np.random.default_rng().random()))

    def call(self, user: Identity, fleet: str, seq: int, **event: Any) -> dict[str, Any]:
        key = event.pop("key", b"k" * 8)
        reply: dict[str, Any] = unpack(self.fleets.call(user.user_id, fleet, event, seq=seq, key=key)[0])
        return reply

    def reset(self, user: Identity, fleet: str, seq: int = 0, seeds: Any = None) -> dict[str, Any]:
        return self.call(user, fleet, seq, do="reset", rows=None, seeds=seeds)

    def step(self, user: Identity, fleet: str, seq: int, actions: Any) -> dict[str, Any]:
        return self.call(user, fleet, seq, do="step", actions=np.asarray(actions))

    def count(self, table: Any) -> int:
        with self.store.engine.connect() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())

    def close(self) -> None:
        self.fleets.close()
        self.store.close()


@contextlib.contextmanager
def process(settings: Settings) -> Iterator[Process]:
    here = Process(settings)
    try:
        yield here
    finally:
        here.close()


@pytest.mark.parametrize("env", [CARTPOLE, "envfleet/CartPole-v1", TURBOFAN])
@pytest.mark.parametrize("autoreset_mode", ["NEXT_STEP", "SAME_STEP"])
def test_fleets_come_back_bit_by_bit(tmp_path: Path, env: str, autoreset_mode: Any) -> None:
    settings = make_settings(tmp_path, snapshot_every=7)
    rng = np.random.default_rng(2)
    actions = rng.integers(0, 2, (60, 3))
    with envfleet.make(env, 3, backend="serial", autoreset_mode=AutoresetMode[autoreset_mode]) as local:
        with process(settings) as first:
            user = first.user("ann")
            fleet = first.create(user, env, autoreset_mode=autoreset_mode)
            np.testing.assert_array_equal(first.reset(user, fleet, seeds=4)["observations"], local.reset(seed=4)[0])
        for begin in range(0, 60, 20):
            with process(settings) as later:  # a new one each time
                for k in range(begin, begin + 20):
                    reply = later.step(user, fleet, k + 1, actions[k])
                    observations, rewards, terminated, truncated, _ = local.step(actions[k])
                    np.testing.assert_array_equal(reply["observations"], observations)
                    np.testing.assert_array_equal(reply["rewards"], rewards)
                    np.testing.assert_array_equal(reply["terminated"], terminated)
                    np.testing.assert_array_equal(reply["truncated"], truncated)
                with later.fleets.use(user.user_id, fleet) as hosted:
                    running = hosted.meter.columns["is_running"]
                    lengths = np.where(running, hosted.meter.columns["lengths"], 0)
                    np.testing.assert_array_equal(lengths, np.where(running, local.episode_lengths, 0))
                assert later.count(Snapshot) == int(env != CARTPOLE)


def test_two_processes_with_one_database(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as left, process(settings) as right:
        user = left.user("ann")
        fleet = left.create(user)
        left.reset(user, fleet, seeds=1)
        right.step(user, fleet, 1, [0, 0, 0])
        left.step(user, fleet, 2, [1, 1, 1])  # it did not see that step
        with pytest.raises(OutOfStep):
            right.call(user, fleet, 1, do="step", actions=np.zeros(3, np.int64), key=b"another key")
        stored = right.step(user, fleet, 2, [1, 1, 1])  # a retry that reaches another process
        assert stored["seq"] == 3
        right.step(user, fleet, 3, [0, 1, 0])
        # Both think that it is their turn: the database decides.
        with left.fleets.use(user.user_id, fleet) as hosted:
            assert hosted.seq == 3
        with pytest.raises(OutOfStep):
            left.call(user, fleet, 3, do="step", actions=np.zeros(3, np.int64), key=b"other key")
        with left.fleets.use(user.user_id, fleet) as hosted:
            assert hosted.seq == 4
        assert left.count(FleetEvent) == 4


def test_processes_catch_up_before_they_look(tmp_path: Path, postgres_url: str) -> None:
    settings = make_settings(tmp_path, database=postgres_url)
    with process(settings) as left, process(settings) as right:
        user = left.user("several")
        fleet = left.create(user)
        left.reset(user, fleet, seeds=1)
        with right.fleets.use(user.user_id, fleet) as hosted:
            assert hosted.seq == 1
        left.step(user, fleet, 1, [0, 0, 0])
        with right.fleets.use(user.user_id, fleet) as hosted:
            assert hosted.seq == 2
            right.fleets.make(hosted, {"do": "step", "actions": np.zeros(3, np.int64)})
        left.fleets.close_fleet(user.user_id, fleet)
        with pytest.raises(Closed), right.fleets.use(user.user_id, fleet):
            pass
        assert right.fleets.num_held == 0


def test_a_process_with_a_stale_fleet_can_close_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as left, process(settings) as right:
        user = left.user("several")
        fleet = left.create(user, num_envs=1)
        left.reset(user, fleet, seeds=1)
        reply = left.step(user, fleet, 1, [0])
        with right.fleets.use(user.user_id, fleet) as hosted:
            assert hosted.seq == 2
        while not reply["terminated"][0]:
            reply = left.step(user, fleet, reply["seq"], [0])
        right.fleets.close_fleet(user.user_id, fleet)
        assert right.store.open_fleets() == []
        with left.store.engine.connect() as connection:
            assert connection.execute(sa.select(Episode.outcome)).scalars().all() == ["terminated"]


def test_fleets_left_alone_are_reaped_and_their_episodes_count(tmp_path: Path) -> None:
    with process(make_settings(tmp_path, idle_timeout_s=0.01)) as here:
        ann, bob = here.user("ann"), here.user("bob")
        fleet = here.create(ann, TURBOFAN, 2, mode="ranked")
        here.reset(ann, fleet)
        here.step(ann, fleet, 1, [2, 0])  # one is sold, one flies on
        training = here.create(bob, TURBOFAN, 2)
        here.reset(bob, training)
        here.step(bob, training, 1, [2, 2])
        time.sleep(0.05)
        here.fleets.tend()
        assert here.fleets.num_held == 0
        with pytest.raises(Closed):
            here.step(ann, fleet, 2, [0, 0])
        with pytest.raises(NotFound):
            here.step(bob, fleet, 2, [0, 0])
        board = here.scores.board(TURBOFAN)
        assert [(row["user"], row["attempts"]) for row in board] == [("ann", 1)]
        with here.store.engine.connect() as connection:
            ranked = sa.select(Episode.outcome, Episode.total).where(Episode.place.is_not(None))
            totals = dict(connection.execute(ranked).all())
        assert set(totals) == {"terminated", "abandoned"}
        assert totals["abandoned"] > 400  # what it had earned, which is not what it counts
        assert board[0]["score"] == pytest.approx((totals["terminated"] + totals["abandoned"] - PENALTY) / 2)


def test_fleets_leave_the_memory_and_old_ones_the_database(tmp_path: Path) -> None:
    with process(make_settings(tmp_path, evict_after_s=0.01, retention_days=1e-9)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        here.reset(user, fleet, seeds=1)
        time.sleep(0.05)
        here.fleets.tend()
        assert here.fleets.num_held == 0
        assert here.step(user, fleet, 1, [0, 0, 0])["seq"] == 2
        here.fleets.close_fleet(user.user_id, fleet)
        here.fleets.tend()
        assert here.count(FleetRow) == here.count(FleetEvent) == here.count(Episode) == 0  # it was not ranked


def test_scored_episodes_can_be_replayed_at_any_age(tmp_path: Path) -> None:
    with process(make_settings(tmp_path, retention_days=1e-9)) as here:
        user = here.user("ann")

        def play(mode: str, num_envs: int) -> str:
            fleet = here.create(user, TURBOFAN, num_envs, mode)
            here.reset(user, fleet)
            here.step(user, fleet, 1, [2] * num_envs)
            here.fleets.close_fleet(user.user_id, fleet)
            return fleet

        play("training", 2)
        old, new = play("ranked", 2), play("ranked", 2)
        with here.store.engine.begin() as connection:  # the newer attempt is the best
            connection.execute(sa.update(Attempt).where(Attempt.fleet_id == new).values(score=1e6))
        here.fleets.tend()
        with here.store.engine.connect() as connection:
            assert connection.execute(sa.select(FleetRow.id)).scalars().all() == [new]
        episodes = [row for row in here.scores.episodes(user.user_id) if row["fleet_id"] == new]
        replays = Replays(here.store, here.fleets)
        assert [len(replays.make(row).rewards) for row in episodes] == [1] * 2
        assert old != new


def test_a_call_that_makes_a_fleet_may_come_many_times_at_once(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here, ThreadPoolExecutor(4) as pool:
        user = here.user("ann")
        version = find_offer(here.settings.offers, CARTPOLE).version()
        config = FleetConfig(
            env=CARTPOLE, version=version, num_envs=1, autoreset_mode="NEXT_STEP", mode="training", options={}
        )
        fleets = pool.map(lambda _: here.fleets.create(user.user_id, config, "the same key"), range(4))
        assert len(set(fleets)) == here.count(FleetRow) == here.fleets.num_held == 1


def test_another_process_does_not_make_a_used_fleet_idle(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as first, process(settings) as second:
        user = first.user("ann")
        fleet = first.create(user)
        for here, at in ((first, 2e9), (second, 1e9)):
            here.store.touch_fleets({fleet: at})
        assert [row["touched_at"] for row in first.store.open_fleets()] == [2e9]


@pytest.mark.parametrize("driver", ["postgresql+nosuch", "nosuch"])
def test_errors_of_the_database_do_not_tell_its_password(driver: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Store(f"{driver}://ann:s3cr:et@x@host/name")
    assert "s3cr" not in str(caught.value)
    assert f"{driver}://***@host/name" in str(caught.value)


def test_many_threads_commit_together(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here, ThreadPoolExecutor(8) as pool:
        user = here.user("ann")
        fleets = [here.create(user, num_envs=1) for _ in range(8)]
        list(pool.map(lambda fleet: here.reset(user, fleet), fleets))
        for seq in range(1, 10):
            list(pool.map(lambda fleet, seq=seq: here.step(user, fleet, seq, [0]), fleets))
        # Eight retries of one call at the same time: one makes it, the others get the stored reply.
        replies = list(pool.map(lambda _: here.step(user, fleets[0], 10, [0])["seq"], range(8)))
        assert replies == [11] * 8
        assert here.count(FleetEvent) == 8 * 10 + 1


def test_an_entry_that_is_refused_does_not_take_others_with_it(tmp_path: Path) -> None:
    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        entries: list[tuple[JournalEntry, Future[None]]] = [
            (JournalEntry(events=[{"fleet_id": fleet, "seq": seq, "key": b"k", "body": b""}]), Future())
            for seq in (0, 0, 2**70, 1)  # SQLite's driver rejects the third number with an error that is not SQL's
        ]
        here.journal._commit_all(entries)  # as one, when they wait at the same time
        results = [future.exception() for _, future in entries]
        assert [type(each) for each in results] == [type(None), Conflict, OverflowError, type(None)]
        assert getattr(results[1], "retry_after_s", None) == 1.0
        assert here.count(FleetEvent) == 2


def test_a_database_that_drops_its_connections_is_asked_again(tmp_path: Path, postgres_url: str) -> None:
    with process(make_settings(tmp_path, database=postgres_url)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        here.reset(user, fleet, seeds=1)
        with here.store.engine.connect() as connection:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(sa.text(f"{others} AND datname = current_database()"))
        assert here.step(user, fleet, 1, [0, 0, 0])["seq"] == 2
        assert here.count(FleetEvent) == 2


def test_a_missing_database_is_refused_like_a_broken_one() -> None:
    store = Store("postgresql+psycopg://envfleet@127.0.0.1:1/nobody")
    journal = Journal(store)
    entries: list[tuple[JournalEntry, Future[None]]] = [(JournalEntry(), Future()) for _ in range(2)]
    journal._commit_all(entries)
    assert [type(future.exception()) for _, future in entries] == [sa.exc.OperationalError] * 2
    journal.close()
    store.close()


def test_the_tables_are_those_of_the_models(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with process(make_settings(tmp_path)) as here, here.store.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_a_database_that_is_away_for_a_while_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def be_away(*_: Any, **__: Any) -> Any:
        raise sa.exc.OperationalError("", None, OSError("the cable is out"))

    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        here.reset(user, fleet, seeds=1)
        with monkeypatch.context() as patch:
            patch.setattr(here.journal, "_write", be_away)
            patch.setattr(here.store, "load_fleet", be_away)
            for _ in range(2):
                with pytest.raises(sa.exc.OperationalError):
                    here.step(user, fleet, 1, [0, 0, 0])
        assert here.step(user, fleet, 1, [0, 0, 0])["seq"] == 2
        assert here.count(FleetEvent) == 2


def test_rows_that_get_no_seed_come_back_as_they_were(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with process(settings) as first:
        user = first.user("ann")
        fleet = first.create(user)
        before = first.reset(user, fleet, seeds=[1, None, None])["observations"]
    with process(settings) as later:
        x = later.step(user, fleet, 1, [0, 0, 0])["observations"][:, 0]
    np.testing.assert_allclose(x, before[:, 0] + 0.02 * before[:, 1], rtol=1e-6)


def test_what_cannot_be_sent_was_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(make_settings(tmp_path)) as here:
        user = here.user("ann")
        fleet = here.create(user)
        here.reset(user, fleet, seeds=1)
        with monkeypatch.context() as patch:
            patch.setattr(hosted, "infos_to_plain", lambda infos: {"large": 2**70})
            with pytest.raises(EnvFailed, match="cannot be sent"):
                here.step(user, fleet, 1, [0, 0, 0])
        assert here.step(user, fleet, 1, [0, 0, 0])["seq"] == 2


def test_a_fleet_restored_for_closing_stays_until_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path, queue_timeout_s=1e-6, evict_after_s=1e-6, idle_timeout_s=1e-6)
    with process(settings) as here:
        user = here.user("ann")
        fleet = here.create(user)
        here.reset(user, fleet)
        for k in range(4):
            here.step(user, fleet, k + 1, [0, 0, 0])
    with process(settings) as later:
        for _ in range(8):
            later.fleets.tend()
        assert later.store.is_closed(fleet)
