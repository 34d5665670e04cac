"""Where generated source and machine code are kept on disk, for all processes; notes on stderr of what takes long."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import types
import zlib
from collections.abc import Iterator
from pathlib import Path

from envfleet.files import write_whole

CACHE_VARIABLE = "ENVFLEET_CACHE_DIR"
UNUSED_DAYS = 60
"""How long kernels are kept that no process loads."""

_NAME = re.compile(r".+-[0-9a-f]{24}")


def cache_folder() -> Path:
    """Return the folder of compiled kernels: `$ENVFLEET_CACHE_DIR`, else `envfleet/kernels` in the user's cache."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "envfleet" / "kernels"


@functools.lru_cache(maxsize=16)
def _usable(folder: Path) -> Path:
    """Return the folder, if it can be written; else a temporary one for this process, with a note."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="envfleet-kernels-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        sys.stderr.write(
            f"envfleet: compiled kernels cannot be kept, as {folder} cannot be written ({error.strerror}): every "
            f"process compiles anew; point {CACHE_VARIABLE} to another folder\n"
        )
        return temporary


def load_source(folder_name: str, name: str, text: str) -> types.ModuleType:
    """Make a module of generated source, which is kept for readers, and for compilers that keep code beside it.

    Args:
        folder_name: Of the cache; ends in a hash of all that decides the machine code, so nothing stale is ever found.
        name: Of the file.
        text: The source.
    """
    path = cache_folder() / folder_name / f"{name}.py"
    if not (path.with_suffix(".code").is_file() and _holds(path, text)):  # else it may well be read-only
        path = _usable(cache_folder()) / folder_name / path.name
        if not _holds(path, text):
            write_whole(path, text)
    with contextlib.suppress(OSError):
        os.utime(path)  # for `prune`
    module = types.ModuleType(f"envfleet_generated_{folder_name.replace('-', '_')}_{name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # numba looks functions up there
    exec(compile(text, path, "exec"), vars(module))  # noqa: S102  # our own
    return module


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except OSError:
        return False


def read_code(path: Path) -> bytes | None:
    """Read machine code that `write_code` has kept; `None`, with a note, if the file is damaged, which removes it."""
    try:
        return zlib.decompress(path.read_bytes())
    except FileNotFoundError:
        return None
    except zlib.error:
        sys.stderr.write(f"envfleet: the compiled code in {path} is damaged; it is compiled anew\n")
        with contextlib.suppress(OSError):  # whoever reads it next need not say so again
            path.unlink()
        return None


def write_code(path: Path, data: bytes) -> None:
    """Keep machine code, packed so that damage shows, and remove what no process has used for long."""
    try:
        write_whole(path, zlib.compress(data, 1))
    except OSError as error:
        sys.stderr.write(f"envfleet: {path} cannot be written ({error.strerror}): every process compiles again\n")
    prune(path.parent.parent)


def prune(folder: Path, days: int = UNUSED_DAYS) -> None:
    """Remove kernels from a cache folder that no process has loaded for some days.

    Args:
        folder: The cache; only folders in it that `load_source` made are looked at.
        days: Since the last use.
    """
    oldest_s = time.time() - days * 86_400
    for kept in folder.glob("*-*"):
        with contextlib.suppress(OSError):  # another process may remove it, too
            times = [source.stat().st_mtime for source in kept.glob("*.py")]
            if _NAME.fullmatch(kept.name) and times and max(times) < oldest_s:
                shutil.rmtree(kept, ignore_errors=True)


@contextlib.contextmanager
def note(text: str, after_s: float = 0.3) -> Iterator[None]:
    """Say on stderr that something takes long once it does, and at the end how long it took.

    Args:
        text: What to say.
        after_s: How long is long.
    """
    is_told = threading.Event()

    def tell() -> None:
        is_told.set()
        print(text, end="", file=sys.stderr, flush=True)  # noqa: T201  # which does nothing without a stderr

    timer = threading.Timer(after_s, tell)
    timer.daemon = True
    started_s = time.perf_counter()
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if is_told.is_set():
            print(f" {time.perf_counter() - started_s:.1f} s", file=sys.stderr)  # noqa: T201  # as above


@contextlib.contextmanager
def alone(path: Path, name: str) -> Iterator[None]:
    """Wait until no other process or thread prepares a file, and say so if it takes long."""
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            file = stack.enter_context(path.with_suffix(".lock").open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with note(f"envfleet: waiting for another process, which compiles {name} ..."):
                    fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # no locks on this system or file system, or a read-only folder: both compile
            pass
        yield
