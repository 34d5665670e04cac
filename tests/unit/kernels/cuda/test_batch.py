"""Kernels on CUDA under numba's simulator, in a separate process: the simulator replaces numba's compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


@pytest.mark.timeout(1200)  # compiles every kernel, on a busy machine
def test_kernels_on_cuda_are_the_same_kernels() -> None:
    suite = Path(__file__).with_name("simulated.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(suite)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    results = done.stdout.split(maxsplit=1)[0]
    assert len(results) > 20
    assert set(results) == {"."}  # nothing is skipped
