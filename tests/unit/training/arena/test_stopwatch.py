"""Speed of a run without evaluations and checkpoints."""

from __future__ import annotations

import pytest

from envfleet.training.arena.stopwatch import Lap, Stopwatch


def test_evaluations_and_checkpoints_do_not_count_as_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    watch = Stopwatch()
    watch.speed(1000)
    laps: list[tuple[Lap, float, int, int]] = [
        ("update", 2.0, 1100, 50),
        ("evaluation", 9.0, 1100, 50),
        ("act", 9.5, 1150, 100),
    ]
    for lap, then_s, transitions, speed in laps:
        now_s[0] = then_s
        watch.lap(lap)
        assert watch.speed(transitions) == speed
