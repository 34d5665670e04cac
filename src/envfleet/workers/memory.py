"""Unnamed shared memory, accessible to processes that hold its file descriptor, and mail in such memory.

Nothing in `/dev/shm` can collide or be left behind: the memory is freed when its last holder ends, for any reason.
Pages are reserved at once, so that too little memory is an error at the start and not a SIGBUS later.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle

from envfleet.errors import InvalidArgument, OutOfMemory

_CHUNK_BYTES = 1 << 24
"""Bytes to reserve in one call: few enough to succeed between two signals of an interval timer."""

_SMALL_BYTES = 1 << 20
"""Size of a block up to which the available memory is not checked."""

_USABLE = 15 / 16
"""Maximum fraction of the available memory for one block, because the system kills a process when memory runs out."""

_FULL = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.EOVERFLOW})
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
_NO_MEMFD = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})


class Room(NamedTuple):
    """Number of available bytes, and the resource that limits them."""

    size_bytes: int
    where: str


class NamelessFile:
    """Unnamed file in memory.

    Args:
        fd: Descriptor from another process, which this object then owns; `None` opens a new file.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._folder: str | None = None
        if fd is None and hasattr(os, "memfd_create"):
            try:
                fd = os.memfd_create("envfleet")
            except OSError as error:
                if error.errno not in _NO_MEMFD:
                    raise
        if fd is None:
            self._folder = tempfile.gettempdir()
            with tempfile.TemporaryFile(buffering=0, dir=self._folder, prefix="envfleet") as file:
                fd = os.dup(file.fileno())
        self.fd = fd
        self._closer = weakref.finalize(self, os.close, fd)

    def _room(self) -> Room | None:
        if self._folder is None:
            return available_memory()
        return Room(shutil.disk_usage(self._folder).free, f"the temporary folder {self._folder}")

    def allocate(self, size_bytes: int) -> mmap.mmap:
        """Return `size_bytes` of writable memory, all zero, which stays valid after `close`.

        Raises:
            OutOfMemory: There is too little memory, or the limit on file sizes is too low.
        """
        room = self._room() if size_bytes > _SMALL_BYTES else None
        if room is not None and size_bytes > room.size_bytes * _USABLE:
            raise _out_of_memory(size_bytes, room)
        try:
            os.ftruncate(self.fd, size_bytes)
            for start in range(0, size_bytes, _CHUNK_BYTES):
                chunk_bytes = min(_CHUNK_BYTES, size_bytes - start)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self.fd, start, chunk_bytes)
                else:  # a file with holes would fail at the first write, by SIGBUS
                    os.pwrite(self.fd, bytes(chunk_bytes), start)
        except (OSError, OverflowError) as error:
            if isinstance(error, OverflowError) or error.errno in _FULL:
                raise _out_of_memory(size_bytes, self._room(), str(error)) from error
            raise
        return mmap.mmap(self.fd, size_bytes, **_MAP_OPTIONS)

    def map(self, size_bytes: int) -> mmap.mmap:
        """Map the first bytes of the memory that another process allocated; they stay valid after `close`."""
        return mmap.mmap(self.fd, size_bytes, **_MAP_OPTIONS)

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        self._closer()
        self.fd = -1


def dumps_reply(message: Any) -> bytes:
    """Pickle a worker's reply; classes that the owner might not be able to import are pickled by value."""
    try:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)  # a fraction of cloudpickle's time
    except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ may raise; cloudpickle says what it is
        data = b"__main__"
    return cloudpickle.dumps(message) if b"__main__" in data else data


class Mail(Protocol):
    """Message slots; a message can be read repeatedly until the next one in its slot."""

    def put(self, slot: int, message: Any) -> None:
        """Write the message of a slot."""

    def get(self, slot: int) -> Any:
        """Return the message of a slot."""


class FileMail:
    """Mail in an unnamed file: for each slot an offset, a capacity and a length, then the pickled messages.

    Only one process may write.

    Args:
        fd: Descriptor of the file.
        num_slots: Number of slots.
        dumps: Function that pickles messages.
    """

    _HEAD_BYTES = 24

    def __init__(self, fd: int, num_slots: int, dumps: Callable[[Any], bytes] = cloudpickle.dumps) -> None:
        self._fd, self._end, self._dumps = fd, num_slots * self._HEAD_BYTES, dumps
        self._places: dict[int, tuple[int, int]] = {}

    def put(self, slot: int, message: Any) -> None:
        """Write the message of a slot; a `memoryview` is a message that is already pickled.

        Raises:
            InvalidArgument: The message does not pickle.
            OutOfMemory: There is too little memory.
        """
        try:
            data = message if isinstance(message, memoryview) else self._dumps(message)
        except Exception as error:
            raise InvalidArgument(
                f"an argument cannot be sent to the workers ({type(error).__name__}: {error}): pass values that pickle"
            ) from error
        offset, capacity = self._places.get(slot, (0, -1))
        if len(data) > capacity:  # a longer message than before lies at the end
            offset, capacity = self._end, 2 * len(data)
            self._places[slot], self._end = (offset, capacity), self._end + capacity
        head = b"".join(word.to_bytes(8, "little") for word in (offset, capacity, len(data)))
        try:
            for part, start in ((data, offset), (head, slot * self._HEAD_BYTES)):
                view, at = memoryview(part), start
                while view:
                    written = os.pwrite(self._fd, view, at)
                    view, at = view[written:], at + written
        except OSError as error:
            if error.errno in _FULL:
                raise _out_of_memory(len(data), None, str(error)) from error
            raise

    def get(self, slot: int) -> Any:
        """Return the message of a slot."""
        return pickle.loads(self.read(slot))

    def read(self, slot: int) -> bytes:
        """Return the pickled message of a slot."""
        head = os.pread(self._fd, self._HEAD_BYTES, slot * self._HEAD_BYTES)
        offset, length = int.from_bytes(head[:8], "little"), int.from_bytes(head[16:], "little")
        data = b""
        while len(data) < length and (part := os.pread(self._fd, length - len(data), offset + len(data))):
            data += part  # one call reads at most 2 GiB
        return data


class HeapMail(dict[int, Any]):
    """Mail within this process: messages are passed as they are."""

    put = dict.__setitem__


def in_words(size_bytes: int) -> str:
    """Return a size in bytes, KiB, MiB, GiB or TiB.

    >>> in_words(3 << 19), in_words(64)
    ('1.5 MiB', '64 bytes')
    """
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def available_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> Room | None:
    """Return the memory that this process can still use; `None` if the system does not report it.

    It is the minimum of the machine's available memory and the remainder of each enclosing control group's limit
    (version 2). Page cache counts as available, because the kernel drops it first; swap does not.

    Args:
        proc: Mount point of procfs.
        cgroups: Mount point of control groups.
    """
    rooms = [
        Room(int(line.split()[1]) * 1024, "this machine's memory")
        for line in _read_lines(proc / "meminfo")
        if line.startswith("MemAvailable:")
    ]
    for line in _read_lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        # In a container the path may be the host's, of which only the last part is mounted, at the top.
        relative = Path(path.lstrip("/"))
        levels = [Path()] if ".." in relative.parts else [relative, *relative.parents]
        rooms += [room for level in levels if not controllers for room in _room_of_cgroup(cgroups / level)]
    return min(rooms, default=None)


def _room_of_cgroup(group: Path) -> Iterator[Room]:
    """Yield the remainder of a control group's limit (version 2), if it has one."""
    limit, usage = (next(iter(_read_lines(group / f"memory.{name}")), "") for name in ("max", "current"))
    if limit.isdigit() and usage.isdigit():  # not "max", and there is such a group
        statistics = dict(line.split() for line in _read_lines(group / "memory.stat"))
        # Not "file", which counts shared memory too.
        cache_bytes = sum(int(statistics.get(f"{age}_file", 0)) for age in ("active", "inactive"))
        left_bytes = max(0, int(limit) - int(usage) + cache_bytes)
        yield Room(left_bytes, "the memory limit of this container or control group")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not this system, not this version, or not for us to see
        return []


def _out_of_memory(size_bytes: int, room: Room | None, reason: str | None = None) -> OutOfMemory:
    available = (
        "an unknown amount is available" if room is None else f"{in_words(room.size_bytes)} available in {room.where}"
    )
    message = "" if reason is None else f" ({reason})"
    return OutOfMemory(
        f"not enough shared memory{message}: found {available}, expected {in_words(size_bytes)} for the arrays of all "
        "sub-environments: use fewer sub-environments or smaller observations, for instance uint8 images instead of "
        "float32, or free memory"
    )
