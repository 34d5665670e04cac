"""Updates that are due: counted by transitions, whatever the number of sub-environments."""

from __future__ import annotations

import pytest

from envfleet.training.loop.learners import UpdateSchedule


@pytest.mark.parametrize("num_envs", [1, 3, 8, 24])
@pytest.mark.parametrize("rate", [0.1, 0.25, 1.0, 2.5])
def test_updates_per_transition_do_not_depend_on_num_envs(num_envs: int, rate: float) -> None:
    schedule, num_updates = UpdateSchedule(per_transition=rate, warmup=100), 0
    for _ in range(1200 // num_envs):
        schedule.count(num_envs)
        num_updates += schedule.take()
    assert num_updates == 1100 * rate


def test_updates_per_round_do() -> None:
    schedule, num_updates = UpdateSchedule(per_round=0.5, warmup=16), 0
    for _ in range(12):
        schedule.count(8)
        num_updates += schedule.take()
    assert num_updates == 5


def test_a_restart_warms_up_again_and_keeps_what_was_due() -> None:
    schedule = UpdateSchedule(per_transition=1.0, warmup=10)
    schedule.count(15)
    schedule.restart()
    assert schedule.take() == 5
    schedule.count(10)
    assert schedule.take() == 0
    schedule.count(3)
    assert schedule.take() == 3
