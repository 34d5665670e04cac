"""Fixtures of the tests on a CUDA device."""

from __future__ import annotations

import importlib

import pytest

from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import require_cuda


@pytest.fixture(scope="session", autouse=True)
def _device() -> None:
    try:
        require_cuda()
    except InvalidArgument as error:
        pytest.skip(f"no CUDA device: {error}")
    if importlib.import_module("numba").config.ENABLE_CUDASIM:
        pytest.skip("numba's CUDA simulator is on")


@pytest.fixture(scope="module", autouse=True)
def _nothing_leaks() -> None:
    """Check nothing: CUDA and torch open descriptors at any time, and keep them until the process ends."""
