"""For the tests of all adapters: the peers' residue kept out of the leak check, replay files out of the way."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.adapters.peers import Make


@pytest.fixture(scope="session", autouse=True)
def _heap_of_multiprocessing() -> None:
    """Gymnasium's shared memory comes from a heap that `multiprocessing` never gives back: begin it first."""
    multiprocessing.RawArray("b", 1 << 20)


@pytest.fixture(autouse=True)
def _replay_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENVFLEET_REPLAY_DIR", str(tmp_path))


@pytest.fixture
def close_later() -> Iterator[Make]:
    """Construct vector environments that are closed after the test, whatever state it leaves them in."""
    opened: list[Any] = []

    def construct(kind: Make, *args: Any, **kwargs: Any) -> Any:
        opened.append(kind(*args, **kwargs))
        return opened[-1]

    yield construct
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a call was under way
        while opened:  # the list outlives the test, and what it holds the fleets' memory
            envs = opened.pop()
            envs.close(**({"terminate": True} if hasattr(envs, "call_async") else {}))
            del envs
