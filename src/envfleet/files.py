"""Atomic writing of files, and reading of JSON."""

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
"""Errors of a full disk or an exceeded quota."""


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Add the name of this file to errors of the operating system without a file name, such as a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Write a file atomically: under another name, which replaces it once it is complete and on the disk.

    After an exception the new file is removed and the old one stays; an `OSError` has the name of the file. Any number
    of processes may write the same file; the last one wins. Links are followed and permissions kept. Devices and other
    special files are written directly.

    Args:
        path: Path of the file; its folder is created if missing.

    Yields:
        Path to write to, in the same folder, with a leading dot and the same suffix.
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
    """Write a file atomically; text is encoded as UTF-8. See `replacing`."""
    with replacing(path) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


def check_writable(path: str | Path) -> None:
    """Check that a file can be written later; its folder is created if missing.

    Raises:
        OSError: The file cannot be written; has its name.
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
        path: Path of the file.
        advice: Advice of the message if the file is missing.

    Raises:
        InvalidArgument: The file cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read ({error.strerror}): {advice}") from error
    except ValueError as error:
        raise InvalidArgument(f"{path} is not JSON ({error}): fix it there") from error
