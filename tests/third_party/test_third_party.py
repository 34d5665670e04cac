"""Environments of other packages show the same bits as in `SyncVectorEnv`, start soon and step as fast as they can.

They are in `requirements.txt` next to this file; `make thirdparty` installs them and runs this module.
"""

from __future__ import annotations

import importlib.util

import pytest
from benchmarks.third_party import ENVIRONMENTS, measure

from envfleet.choice import MARGIN

SLOWEST_START, SLOWEST_AUTO = 1.5, 0.95 / MARGIN  # auto takes workers if they are faster by the margin


@pytest.mark.third_party
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_fleet_of_it(name: str) -> None:
    env = ENVIRONMENTS[name]
    if importlib.util.find_spec(env.module.partition(".")[0]) is None:
        pytest.skip(f"{env.distribution} is not installed: see tests/third_party/requirements.txt")
    for is_last in (False, True):  # what else the machine does may slow one measurement
        result = measure(name)
        if result["again"] == "same":  # else SyncVectorEnv does not repeat itself
            assert (result["serial"], result["process"]) == ("same", "same")
            assert result["thread"].partition(":")[0] == env.thread
        start = result["start_s"] / result["async_start_s"]
        if is_last or (start <= SLOWEST_START and result["auto"] >= SLOWEST_AUTO):
            break
    assert start <= SLOWEST_START, result
    assert result["auto"] >= SLOWEST_AUTO, result
