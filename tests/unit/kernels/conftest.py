"""Fixtures for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.kernels.samples import Walker

import envfleet
from envfleet.testing import check_kernel
from envfleet.testing.check_kernel import _Trial


@pytest.fixture
def walkers() -> Iterator[Any]:
    """A fleet of four that was reset."""
    with envfleet.make(Walker, 4, backend="kernel") as fleet:
        fleet.reset(seed=0)
        yield fleet


@pytest.fixture
def check_without_indices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return `check_kernel` without its runs in code that checks indices, for which it compiles once more."""
    for name in ("check_indices", "check_gymnasium"):
        monkeypatch.setattr(_Trial, name, lambda _self: None)
    return check_kernel
