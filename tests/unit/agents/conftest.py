"""Settings of the tests of agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.agents.samples import KINDS, OPEN


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    """Every test here runs small networks."""


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]
