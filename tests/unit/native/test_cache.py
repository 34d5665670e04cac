"""Compiled code on the disk: where it lies, and what is done with files that are damaged, old or unwritable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from envfleet.native.cache import cache_folder, load_source, read_code, write_code


@pytest.mark.parametrize(
    "damage",
    [
        lambda code: code[:1000],
        lambda code: code[:500] + b"?" + code[501:],
        lambda code: code[:-1] + b"?",
        lambda _code: b"",
    ],
)
def test_damaged_code_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "loops.code"
    code = np.random.default_rng(0).bytes(2000)
    write_code(path, code)
    assert read_code(path) == code
    assert capsys.readouterr().err == ""
    path.write_bytes(damage(path.read_bytes()))
    assert read_code(path) is None
    assert f"the compiled code in {path} is damaged and is compiled again" in capsys.readouterr().err


def source_of(name: str) -> Path:
    """Return the path of the source that a program of this name has in the cache."""
    module = load_source(f"{name}-{'2' * 24}", "loops", "ANSWER = 42\n")
    assert module.__file__ is not None
    return Path(module.__file__)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(tmp_path))


def test_the_folder_is_the_one_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_of("Walker").is_relative_to(tmp_path)
    monkeypatch.delenv("ENVFLEET_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "envfleet" / "kernels"


def test_kernels_that_no_process_loads_are_removed(tmp_path: Path) -> None:
    used, unused, other = tmp_path / f"Used-{'0' * 24}", tmp_path / f"Unused-{'1' * 24}", tmp_path / "someone-elses"
    for folder in (used, unused, other):
        folder.mkdir()
        (folder / "loops.py").touch()
        os.utime(folder / "loops.py", (0.0, 0.0 if folder != used else time.time()))
    write_code(source_of("Walker").with_suffix(".code"), b"code")
    assert (used.exists(), unused.exists(), other.exists()) == (True, False, True)
    os.utime(source_of("Walker"), (0.0, 0.0))
    assert source_of("Walker").stat().st_mtime > time.time() - 60


def test_code_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    write_code(tmp_path / "file" / "loops.code", b"code")
    assert "is not writable" in capsys.readouterr().err


def test_an_unwritable_folder_is_replaced_with_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    monkeypatch.setenv("ENVFLEET_CACHE_DIR", str(blocked / "kernels"))
    folder = source_of("Walker")
    assert folder.exists()
    assert not folder.is_relative_to(tmp_path / "file")
    source_of("Switches")
    note = capsys.readouterr().err
    assert note.count("\n") == 1
    assert str(blocked) in note
    assert "ENVFLEET_CACHE_DIR" in note
