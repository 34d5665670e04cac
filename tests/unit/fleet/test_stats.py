from __future__ import annotations

from typing import Any

import envfleet
from envfleet.fleet.stats import FleetStats, Plan, WorkerStats

PLAN = Plan("process", 2, (4, 3), "measured the fastest", (("process", 12_345.6), ("serial", 900.0)))
WORKERS = (
    WorkerStats(0, range(4), 77, 4000, 0.25, 0, "here"),
    WorkerStats(1, range(4, 5), 78, 1000, 1.5, 2, "<there>"),
)
STATS = FleetStats(5000, 2500.4, 0.0, 1.5, 0.25, 1.75, 2, WORKERS)


def test_a_plan_is_readable() -> None:
    assert str(PLAN).splitlines() == [
        "process, 2 workers × 3–4: measured the fastest",
        "  process          12,346 steps/s",
        "  serial              900 steps/s",
    ]
    assert "<td>measured: serial</td><td>900 steps/s</td>" in PLAN._repr_html_()


def test_stats_are_readable() -> None:
    assert str(STATS).splitlines() == [
        "5,000 steps, 2,500 steps/s, 2 restarts: stepping 0.00 s, waiting 1.50 s, copying 0.25 s",
        "worker  sub-envs  steps  busy s  restarts  pid    place",
        "     0       0–3  4,000    0.25         0   77     here",
        "     1         4  1,000    1.50         2   78  <there>",
    ]
    assert "<td>&lt;there&gt;</td>" in STATS._repr_html_()


def test_a_fleet_shows_itself_in_a_notebook() -> None:
    with envfleet.make("CartPole-v1", 2, backend="serial") as fleet:
        fleet.reset(seed=0)
        shown: Any = fleet._repr_html_()
        rollout: Any = fleet.rollout("random", 3, seed=0)
        stats = str(fleet.stats())
    assert "<caption>&lt;Fleet CartPole-v1: 2 sub-environments, serial, NEXT_STEP, ready&gt;</caption>" in shown
    assert "<td>single_action_space</td><td>Discrete(2)</td>" in shown
    assert stats.startswith("6 steps, ")
    assert repr(rollout) == (
        "<Rollout of 3 steps of 2 sub-environments: all_observations (4, 2, 4) float32, actions (3, 2) int64, "
        "rewards (3, 2) float64, terminated (3, 2) bool, truncated (3, 2) bool, is_reset (3, 2) bool>"
    )
    assert "<td>rewards</td><td>(3, 2) float64</td>" in rollout._repr_html_()
