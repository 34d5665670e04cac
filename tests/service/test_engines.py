"""A service has turbofan engines for any number of flights per decision, without compiling for each."""

from __future__ import annotations

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
