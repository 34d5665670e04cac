"""Files that are written as a whole or not at all: readers see the old one or the new one. And JSON that is read."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envfleet.errors import InvalidArgument

NO_ROOM = {errno.EDQUOT, errno.EFBIG, errno.ENOSPC}
"""Errors of a disk that is full, or of what one may have of it."""


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Have errors of the operating system name this file if they name none, as those of a full disk do."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Have a file written under another name, which takes its place once it is complete and on the disk.

    If anything is raised meanwhile, what was written is removed and the old file stays; an `OSError` names the file.
    Any number of processes may write the same file; the last one wins. Links are followed, permissions kept; a device
    or another special file is written to directly.

    Args:
        path: The file; its folder is created if missing.

    Yields:
        What to write: a new path in the same folder, hidden by a leading dot, with the same suffix.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        with naming(path):
            yield unfinished
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            if path.exists():
                shutil.copymode(path, unfinished)
            unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(unfinished):
            error.filename = str(path)
        raise


def write_whole(path: str | Path, content: bytes | str) -> None:
    """Write a file in one piece; text is written as UTF-8. See `replacing`."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def check_writable(path: str | Path) -> None:
    """Check that a file can be written later, before the work that goes into it; its folder is created if missing.

    Raises:
        OSError: It cannot; names the file.
    """
    path = Path(path).resolve()
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file() or not path.exists():  # else a device
            if not path.parent.exists():  # the next line reports a file of this name, with the reason
                path.parent.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        error.filename = str(path)
        raise


def read_json(path: Path, advice: str) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        advice: What to do if the file is missing.

    Raises:
        InvalidArgument: The file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON ({error}): fix it there") from error
