"""Files that are replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envfleet.files import check_writable, replacing, write_whole


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


def test_an_unfinished_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "film.gif"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(FileNotFoundError) as caught, replacing(path) as unfinished:
        unfinished.read_bytes()  # nothing is there yet
    assert caught.value.filename == str(path)


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with replacing(path) as one, replacing(path) as two:
        assert one.suffix == two.suffix == ".txt"
        one.write_text("one")
        two.write_text("two")
    assert path.read_text() == "one"
    assert list(tmp_path.iterdir()) == [path]


def test_links_permissions_and_devices_are_kept(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "a.txt", tmp_path / "link.txt", tmp_path / "pipe"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o600
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "new")
    assert os.read(reader, 10) == b"new"
    os.close(reader)
    assert pipe.is_fifo()


def test_whether_a_file_can_be_written_shows_before_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    check_writable(path)
    assert list(path.parent.iterdir()) == []
    path.write_text("old")
    check_writable(path)
    check_writable("/dev/null")
    assert path.read_text() == "old"
    for place in (path / "below", tmp_path):
        with pytest.raises(OSError, match=r"Not a directory|Is a directory") as caught:
            check_writable(place)
        assert caught.value.filename == str(place)
