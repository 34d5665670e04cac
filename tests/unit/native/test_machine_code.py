"""Machine code of programs: what can be kept on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.kernels.samples import Walker

import envfleet

_LARGE = np.arange(300_000.0)
_REVERSED = np.arange(9.0)[::-1]


class LooksUp(Walker):
    """Reads arrays so large, or so strided, that compiled code holds their addresses."""

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        return _LARGE[200_000 + int(action)] + _REVERSED[int(action)], False


def test_code_with_addresses_of_this_process_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path))
    with envfleet.make(LooksUp, 3, backend="kernel", workers=1) as fleet:
        fleet.reset(seed=0)
        np.testing.assert_array_equal(fleet.step(np.zeros(3, np.int64))[1], _LARGE[200_000] + _REVERSED[0])
    assert list(tmp_path.glob("LooksUp-*/loops.py"))
    assert not list(tmp_path.glob("LooksUp-*/loops.code"))
