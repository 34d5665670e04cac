"""Engines for any number of flights per decision are those of a kernel that was compiled for that number."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from tests.service.conftest import TURBOFAN

import envfleet
from envfleet.envs.turbofan import engines
from envfleet.envs.turbofan.engines import EngineFleet
from envfleet.errors import InvalidArgument
from envfleet.service.offers import make_offer


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_longer_program_shows_what_the_shorter_one_does(mode: AutoresetMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "SHORT_BLOCK", 1)  # ten flights are cut from the program for fifty
    rng, num_envs = np.random.default_rng(0), 6
    with (
        EngineFleet(num_envs, 10, True, {"autoreset_mode": mode, "max_episode_steps": 9}) as cut,
        envfleet.make(TURBOFAN, num_envs, backend="kernel", autoreset_mode=mode, max_episode_steps=9) as whole,
    ):
        assert cut.single_observation_space == whole.single_observation_space
        assert cut.observation_space == whole.observation_space
        np.testing.assert_array_equal(cut.reset(seed=5)[0], whole.reset(seed=5)[0])
        for _ in range(40):
            if mode is AutoresetMode.DISABLED and whole.terminated_indices:
                ended = whole.terminated_indices
                np.testing.assert_array_equal(cut.reset_envs(ended)[0], whole.reset_envs(ended)[0])
            actions = rng.choice(3, num_envs, p=[0.9, 0.08, 0.02])
            found, expected = cut.step(actions), whole.step(actions)
            for left, right in zip(found[:4], expected[:4], strict=True):
                np.testing.assert_array_equal(left, right)
            assert set(found[4]) == set(expected[4])
            for left, right in zip(found[4].get("final_obs", ()), expected[4].get("final_obs", ()), strict=True):
                np.testing.assert_array_equal(left, right)
        np.testing.assert_array_equal(cut.set_state(cut.get_state()), whole.set_state(whole.get_state()))


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
