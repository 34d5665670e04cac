"""How fast a run is said to go."""

from __future__ import annotations

from envfleet.training.loop.announcer import Announcer


def test_evaluations_and_checkpoints_do_not_count_as_slow_training() -> None:
    announcer = Announcer([])
    announcer.begin(1000)
    assert announcer.take_speed(1100, worked_s=2.0) == 50
    assert announcer.take_speed(1100, worked_s=2.0) == 50  # nothing but an evaluation since
    assert announcer.take_speed(1150, worked_s=2.5) == 100
