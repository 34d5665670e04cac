"""What the machine grants."""

import sys

import pytest

from envfleet.bench.measure import require_psutil
from envfleet.bench.results import describe_machine
from envfleet.errors import InvalidArgument


def test_facts():
    facts = describe_machine(["gymnasium", "no-such-package"])
    assert facts.cores >= facts.usable_cores > 0
    assert "no-such-package" not in facts.versions
    assert facts.versions["gymnasium"]


def test_without_psutil(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(InvalidArgument, match="pip install psutil"):
        require_psutil()
