"""Compiling kernels changes nothing for a user's own numba code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(1200)  # compiles in a new process, on a busy machine


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reports of `foreign_code` before and after the first kernel of a new process is compiled."""
    environment = {**os.environ, "ENVFLEET_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "tests.unit.kernels.foreign_code"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1100, check=False)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    return before, after


def test_numba_code_behaves_the_same_after_a_kernel(looks: Any) -> None:
    before, after = looks
    for one, other in zip(before["calls"], after["calls"], strict=True):
        assert one == other


@pytest.mark.parametrize("part", ["typing", "target", "records", "slices", "functions"])
def test_numba_has_the_same_parts_as_before(looks: Any, part: str) -> None:
    before, after = looks
    assert before[part] == after[part]
