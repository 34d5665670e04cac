"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from envfleet.core.files import replacing, write_whole


def test_whole_files_replace_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    write_whole(path, "one ×")
    assert path.read_text(encoding="utf-8") == "one ×"
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def write_half(path: Path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("half")
        raise KeyboardInterrupt


def test_what_was_not_finished_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path) as one, replacing(path) as two:
        assert one.suffix == two.suffix == ".txt"
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]
