"""Files of agents: written whole or not at all."""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.agents.samples import KINDS, make

from envfleet.agents import saving


def test_a_disk_that_is_full_is_said_and_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            saving.write(path, {"a": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"old"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, path = make(KINDS["td3"]), tmp_path / "agent.pt"
    agent.save(path)
    before = path.read_bytes()

    def half(payload: Any, file: Any, **_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(OSError, match="disk full"):
        agent.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
