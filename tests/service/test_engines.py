"""A service has turbofan engines for any number of flights per decision, without compiling for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.service.conftest import TURBOFAN

from envfleet.envs.turbofan import engines
from envfleet.errors import InvalidArgument
from envfleet.service.offers import make_offer


@pytest.mark.parametrize(
    ("options", "shape", "num_rows"),
    [
        ({"step_size": 3}, (3, 9), 3),
        ({"step_size": 23}, (23, 9), 23),
        ({"step_size": 7, "return_all_states": False}, (9,), 7),
    ],
)
def test_any_number_of_flights_needs_no_compiler(
    options: dict[str, int], shape: tuple[int, ...], num_rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    offer = make_offer(TURBOFAN)
    for long in ({}, {"step_size": engines.LONG_BLOCK}):
        offer.make(1, "NEXT_STEP", long).close()
    capfd.readouterr()
    with offer.make(2, "NEXT_STEP", options) as fleet:
        assert fleet.single_observation_space.shape == shape
        assert fleet.reset(seed=1)[0].shape == (2, *shape)
        observations, _, _, _, infos = fleet.step(np.zeros(2, np.int64))
        assert observations.shape == (2, *shape)
        np.testing.assert_array_equal(infos["num_rows"], num_rows)
    assert "compiling" not in capfd.readouterr().err


@pytest.mark.parametrize("step_size", [0, 2.5, "many"])
def test_what_is_no_number_of_flights_is_refused(step_size: object) -> None:
    with pytest.raises(InvalidArgument, match="step_size"):
        make_offer(TURBOFAN).make(1, "NEXT_STEP", {"step_size": step_size})


def test_an_environment_of_ones_own_is_hosted_by_every_process(tmp_path: Path) -> None:
    (tmp_path / "own_envs.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Own-v0', 'own_envs:Own', max_episode_steps=7)\n"
        "class Own(CartPoleEnv): pass\n"
    )
    code = (
        "import sys\n"
        "from envfleet.service.offers import Offer, make_offer\n"
        "offer = make_offer('own_envs:Own-v0') if len(sys.argv) == 1 else Offer.model_validate_json(sys.argv[1])\n"
        "fleet = offer.make(2, 'NEXT_STEP', {'max_episode_steps': 5})\n"
        "fleet.reset(seed=0)\n"
        "assert (offer.env, offer.max_episode_steps, fleet.stats().restarts) == ('Own-v0', 7, 0)\n"
        "print(offer.model_dump_json())\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    first = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    subprocess.run([*command, first.stdout], env=environ, capture_output=True, text=True, check=True)
