"""Replays show what the participant saw, bit by bit, whichever way the episode was played."""

from __future__ import annotations

import re
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from tests.service.conftest import TURBOFAN, Caller
from tests.waiting import PATIENCE_S

from envfleet.envs.hosting import Mark, PlainLog
from envfleet.envs.turbofan.plots import EngineLog
from envfleet.remote.codec import infos_from_plain
from envfleet.service.database.models import FleetEvent, FleetRow
from envfleet.service.refusals import Closed, EnvFailed
from envfleet.service.service import Service
from envfleet.service.web.charts import draw
from envfleet.service.web.replay import Replays

MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")


def episodes_of(service: Service, fleet: str) -> list[dict[str, Any]]:
    user_id = service.store.load_fleet(fleet)["user_id"]  # type: ignore[index]  # it is there
    return [episode for episode in service.scores.episodes(user_id, limit=1000) if episode["fleet_id"] == fleet]


def play(service: Service, caller: Caller) -> dict[str, Any]:
    """An episode of CartPole, one step long."""
    fleet = caller.create("CartPole-v1", num_envs=1)
    caller.call(f"/fleets/{fleet}/reset", seq=0)
    caller.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([1]))
    caller.call(f"/fleets/{fleet}/close")
    (episode,) = episodes_of(service, fleet)
    return episode


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", [TURBOFAN, "CartPole-v1", "envfleet/CartPole-v1"])
def test_a_replay_is_what_the_participant_saw(service: Service, ann: Caller, env: str, mode: str) -> None:
    num_envs, rng = 3, np.random.default_rng(5)
    fleet = ann.create(env, num_envs=num_envs, autoreset_mode=mode)
    reply = ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=[4, 5, 6])
    seen: dict[tuple[int, int], tuple[Any, float]] = {}
    for number in range(40):
        seq = reply["seq"]
        if number == 12:  # one is reset with a seed, in the middle of its episode
            reply = ann.call(f"/fleets/{fleet}/reset", seq=seq, rows=[1], seeds=[77])
            continue
        actions = rng.choice(3, num_envs, p=(0.85, 0.1, 0.05)) if env == TURBOFAN else rng.integers(0, 2, num_envs)
        reply = ann.call(f"/fleets/{fleet}/step", seq=seq, actions=actions)
        over = reply["terminated"] | reply["truncated"]
        final = infos_from_plain(reply["infos"], num_envs).get("final_obs")
        for row in range(num_envs):
            observation = reply["observations"][row]
            if final is not None and over[row]:
                observation = final[row]
            seen[row, seq] = observation, reply["rewards"][row]
        if mode == "DISABLED" and over.any():
            reply = ann.call(f"/fleets/{fleet}/reset", seq=reply["seq"], rows=np.flatnonzero(over).tolist())
    replays, episodes = Replays(service.store, service.fleets), episodes_of(service, fleet)
    assert len(episodes) > 3
    for episode in episodes:
        replay = replays.make(episode)
        row = episode["env_index"]
        steps = [seq for seq in range(episode["first_seq"] + 1, episode["last_seq"] + 1) if (row, seq) in seen]
        assert len(replay.rewards) == episode["length"] == len(steps)
        assert replay.rewards.sum() == pytest.approx(episode["total"], rel=1e-12)
        for k, seq in enumerate(steps):
            observation, reward = seen[row, seq]
            assert replay.rewards[k] == reward
            if isinstance(replay.log, EngineLog):
                block = replay.log.blocks[k]
                np.testing.assert_array_equal(block, observation[: len(block)])
            else:
                assert isinstance(replay.log, PlainLog)
                np.testing.assert_array_equal(replay.log.observations[k], observation)
        if isinstance(replay.log, EngineLog):
            assert len(replay.log.sensors) == episode["details"]["flights"]
            assert len(replay.log.repairs) == episode["details"]["repairs"]


def test_a_replay_of_the_json_protocol(service: Service, ann: Caller) -> None:
    config = {"env_type": "DegradationEnv"}
    created = ann.json("/vectorized/episodes/create", env_config=config, num_envs=2).json()
    reset = ann.json("/episode/vectorized_reset", episode_ids=created["episode_ids"], seeds=[1, 2]).json()
    ids = reset["new_episode_ids"]
    seen = []
    for number in range(6):
        flights = (10, 3)[number % 2]
        first = [{"episode_id": ids[0], "action": 0, "step_size": 10}]
        second = {"episode_id": ids[1], "action": (0, 1)[number == 3], "step_size": flights}
        both = [*first, second] if number != 2 else [second]
        reply = ann.json("/episode/vectorized_step", episode_actions=both).json()
        seen.append((reply["observations"][-1], reply["rewards"][-1]))
    ann.json("/episode/step", episode_id=ids[1], action=2)
    (episode,) = [one for one in episodes_of(service, created["vectorized_group_id"]) if one["env_index"] == 1]
    replay = Replays(service.store, service.fleets).make(episode)
    assert isinstance(replay.log, EngineLog)
    assert replay.log.reason == 1
    assert replay.log.repairs.tolist() == [24]  # after blocks of 10, 3 and 10 flights
    for block, (rows, _) in zip(replay.log.blocks, seen, strict=False):
        np.testing.assert_array_equal(block, np.asarray(rows, np.float32))
    assert replay.rewards[:-1].tolist() == [reward for _, reward in seen]


def test_what_is_no_longer_kept_cannot_be_replayed(service: Service, ann: Caller) -> None:
    fleet = ann.create(num_envs=1)
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([2]))
    (episode,) = episodes_of(service, fleet)
    with pytest.raises(Closed, match="too long"):
        Replays(service.store, service.fleets).make(episode, timeout_s=-1.0)
    assert Replays(service.store, service.fleets).make(episode).rewards.shape == (1,)
    for table, column in ((FleetEvent, FleetEvent.fleet_id), (FleetRow, FleetRow.id)):
        with service.store.engine.begin() as connection:
            connection.execute(sa.delete(table).where(column == fleet))
        with pytest.raises(Closed, match="no longer kept"):
            Replays(service.store, service.fleets).make(episode)


def test_an_environment_that_cannot_be_rebuilt_is_reported(
    service: Service, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = play(service, ann)

    def fail(*_: Any) -> Any:
        raise OSError("there is no licence")

    monkeypatch.setattr("envfleet.service.offers.Offer.make", fail)
    with pytest.raises(EnvFailed, match="cannot be made"):
        Replays(service.store, service.fleets).make(episode)
    with httpx.Client(base_url=ann.http.base_url, timeout=PATIENCE_S) as visit:
        visit.post("/sign-in", data={"token": ann.token})
        page = visit.get(f"/episodes/{episode['id']}")
    assert page.status_code == 200
    assert "It cannot be shown: CartPole-v1 cannot be made" in page.text


def test_an_episode_of_another_version_is_told_as_such(
    service: Service, ann: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    episode = play(service, ann)
    monkeypatch.setattr("envfleet.service.offers.Offer.version", lambda _: "another")
    with pytest.raises(Closed, match="this service has another: its episodes cannot be replayed"):
        Replays(service.store, service.fleets).make(episode)


def test_an_episode_is_made_again_once(service: Service, ann: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envfleet.service.web.replay._MOST_KNOWN", 2)
    replays, episodes = Replays(service.store, service.fleets), [play(service, ann) for _ in range(3)]
    build, builds = service.fleets.build_single, []

    def count(fleet_id: str) -> Any:
        builds.append(fleet_id)
        return build(fleet_id)

    monkeypatch.setattr(service.fleets, "build_single", count)
    first, second, third = episodes
    for episode in (first, first, second, first, third, third, second, first):
        assert replays.make(episode).rewards.tolist() == [1.0]
    assert builds == [episode["fleet_id"] for episode in (*episodes, first)]  # the third took the place of the first


def test_an_id_that_is_used_again_shows_its_own_episode(service: Service, ann: Caller) -> None:
    """SQLite gives the ids of deleted episodes to later ones."""
    replays, deleted = Replays(service.store, service.fleets), play(service, ann)
    replays.make(deleted)
    fleet = ann.create(num_envs=1)
    ann.call(f"/fleets/{fleet}/reset", seq=0)
    ann.call(f"/fleets/{fleet}/step", seq=1, actions=np.array([2]))
    (later,) = episodes_of(service, fleet)
    assert replays.make({**later, "id": deleted["id"]}).unit == "flights"


# ---------------------------------------------------------------------- charts


def points_of(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path)]


def test_a_long_line_is_thinned_to_its_extremes() -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    values[7_777], values[12_345] = 50.0, -60.0
    chart = draw("noise", values)
    points = points_of(chart.line)
    assert len(points) < 400
    left, top, right, bottom = chart.frame
    assert all(left <= x <= right and top <= y <= bottom for x, y in points)
    highest, lowest = min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])
    assert (highest[0] - left) / (right - left) == pytest.approx(7_778 / 20_000, abs=1e-3)
    assert (lowest[0] - left) / (right - left) == pytest.approx(12_346 / 20_000, abs=1e-3)
    assert "from -60 to 50" in chart.summary


@pytest.mark.parametrize("values", [[], [3.0], [2.0, 2.0], [np.nan, 1.0, np.inf, 2.0], [1e300, -1e300], [1e-12, 2e-12]])
def test_lines_of_all_sorts(values: list[float]) -> None:
    chart = draw("any", values, marks=[Mark(1.0, "repair", "warn")])
    assert len(points_of(chart.line)) == np.isfinite(values).sum()
    assert "nan" not in str(chart)
    assert chart.y_ticks


@pytest.mark.parametrize("value", [0.372, 1_366_107.0, -4.0, 0.0])
def test_single_values_share_a_chart_with_similar_ones(value: float) -> None:
    chart = draw("one", [value])
    assert chart.dots
    assert max(len(text) for _, text in chart.y_ticks) <= len("1,366k")


def test_ticks_are_where_the_values_are() -> None:
    chart = draw("line", np.linspace(1_340_000.0, 1_380_000.0, 50))
    heights = {text: y for y, text in chart.y_ticks}
    assert list(heights) == ["1,340k", "1,360k", "1,380k"]
    points = points_of(chart.line)
    assert points[0][1] == pytest.approx(heights["1,340k"], abs=0.06)
    assert points[-1][1] == pytest.approx(heights["1,380k"], abs=0.06)


def test_a_replay_of_rows_that_were_stepped_by_themselves(service: Service, ann: Caller) -> None:
    fleet = ann.create(TURBOFAN, num_envs=3, autoreset_mode="DISABLED")
    seq = ann.call(f"/fleets/{fleet}/reset", seq=0, seeds=7)["seq"]
    seen = []
    for action in (0, 0, 1, 0, 2):
        reply = ann.call(f"/fleets/{fleet}/step", seq=seq, rows=[2, 0], actions=np.array([action, 0]))
        seen.append((reply["observations"][0], reply["rewards"][0]))
        seq = reply["seq"]
    (episode,) = episodes_of(service, fleet)
    assert (episode["env_index"], episode["length"]) == (2, 5)
    replay = Replays(service.store, service.fleets).make(episode)
    assert isinstance(replay.log, EngineLog)
    for block, reward, (observation, expected) in zip(replay.log.blocks, replay.rewards, seen, strict=True):
        assert reward == expected
        np.testing.assert_array_equal(block, observation[: len(block)])
