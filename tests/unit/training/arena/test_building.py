"""Which fleet a run gets where nobody says."""

from __future__ import annotations

import contextlib

import pytest

from envfleet.envs.games import known_game
from envfleet.errors import InvalidArgument
from envfleet.training import RunOptions
from envfleet.training.arena.building import make_fleet
from envfleet.training.phases import Environment

HOCKEY = known_game("hockey")


@pytest.mark.parametrize(("num_envs", "engine", "backend"), [(2, "compiled", "kernel"), (1, "box2d", "serial")])
def test_what_is_compiled_is_a_kernel_and_one_game_is_serial(num_envs: int, engine: str, backend: str) -> None:
    with contextlib.closing(make_fleet(Environment(), RunOptions(num_envs=num_envs, engine=engine), HOCKEY)) as fleet:
        assert fleet.plan.backend == backend


def test_an_engine_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="engine='ice': pass one of 'compiled', 'box2d'"):
        make_fleet(Environment(), RunOptions(engine="ice"), HOCKEY)


def test_several_games_on_box2d_are_where_a_trial_says() -> None:
    with contextlib.closing(make_fleet(Environment(), RunOptions(num_envs=2, engine="box2d"), HOCKEY)) as fleet:
        assert fleet.plan.reason.startswith("auto:")
