"""What tests of launching have in common."""

from __future__ import annotations

import pytest
from tests.unit.transports.own_python import METHODS

from envfleet.transports.launch import StartMethod


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> StartMethod:
    """Every way to start a worker process."""
    return request.param
