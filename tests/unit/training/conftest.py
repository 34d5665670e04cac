"""Resources that libraries open once and keep, opened before the leak check."""

from __future__ import annotations

import io

import polars as pl
import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    """Every test here runs small networks."""


@pytest.fixture(scope="session", autouse=True)
def _polars_runtime() -> None:
    """Polars opens the descriptors of its runtime with the first file that it reads."""
    pl.read_csv(io.BytesIO(b"a\n1\n"))
