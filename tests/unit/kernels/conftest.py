"""Fixtures for kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.kernels.samples import Walker

import envfleet


@pytest.fixture
def walkers() -> Iterator[Any]:
    """A fleet of four that was reset."""
    with envfleet.make(Walker, 4, backend="kernel") as fleet:
        fleet.reset(seed=0)
        yield fleet
