"""Shared memory without a name, so nothing is left behind however its owners die.

Pages are reserved when a block is made: memory that runs out later would be a SIGBUS in whichever process touches it,
or a visit from the kernel's out-of-memory killer. So what is available is looked up first.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from envfleet.errors import FleetClosed, InvalidArgument, OutOfMemory

_CHUNK_BYTES = 1 << 24
"""Reserved at a time: short enough that a process with an interval timer gets through between two signals."""

_USABLE = 15 / 16
"""Part of what is available that a block may take: whoever takes the last page is killed, or somebody else is."""

_FULL = frozenset({errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT, errno.EOVERFLOW})
_NO_MEMFD = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})  # an old kernel, or a sandbox


class Room(NamedTuple):
    """How many bytes may still be used, and of what."""

    size_bytes: int
    where: str


class SharedBlock:
    """A block of memory shared between processes that hold its descriptor.

    A memfd on Linux, else an unlinked temporary file. It has no name: it vanishes with its last descriptor and mapping.

    Attributes:
        size_bytes: Its size.
    """

    def __init__(self, file: io.FileIO, size_bytes: int) -> None:
        """Map an open file, which the block owns from now on; prefer `create` and `attach`."""
        self._file = file
        self.size_bytes = size_bytes
        self._map: mmap.mmap | None = None
        try:
            if sys.version_info >= (3, 13):
                self._map = mmap.mmap(file.fileno(), size_bytes, trackfd=False)
            else:  # keeps a duplicate of the descriptor for as long as the mapping lives
                self._map = mmap.mmap(file.fileno(), size_bytes)
        except BaseException:
            file.close()
            raise

    @classmethod
    def create(cls, size_bytes: int, *, label: str = "envfleet") -> SharedBlock:
        """Make a zeroed block and reserve its pages.

        Args:
            size_bytes: How large.
            label: Shown by `/proc/PID/maps` and `lsof`; need not be unique.

        Raises:
            InvalidArgument: `size_bytes` is not positive.
            OutOfMemory: There is not enough memory.
        """
        unsized = UnsizedBlock(label)
        try:
            return unsized.allocate(size_bytes)
        finally:
            unsized.close()

    @classmethod
    def attach(cls, fd: int, size_bytes: int) -> SharedBlock:
        """Map a block by a descriptor from another process; the descriptor belongs to the block from now on.

        Raises:
            InvalidArgument: The block is smaller than `size_bytes`; `fd` is closed.
            OSError: `fd` is no descriptor, or cannot be mapped.
        """
        file = io.FileIO(fd, "r+")
        found_bytes = os.fstat(fd).st_size
        # Mapping more than there is would succeed on some systems, and end in SIGBUS when touched.
        if not 0 < size_bytes <= found_bytes:
            file.close()
            raise InvalidArgument(
                f"shared block has {found_bytes} bytes, expected at least size_bytes = {size_bytes} > 0: pass the "
                "descriptor and the size of the same block"
            )
        return cls(file, size_bytes)

    @property
    def fd(self) -> int:
        """Its descriptor, not inheritable; pass it on with `pass_fds` or over a Unix socket."""
        self._check_open()
        return self._file.fileno()

    @property
    def buffer(self) -> mmap.mmap:
        """Its memory, writable; views of it stay valid after `close`."""
        return self._check_open()

    def close(self) -> None:
        """Give up the descriptor and the mapping; idempotent.

        While numpy views of the memory exist it stays mapped, and goes with the last of them.
        """
        # Never unmapped by hand: numpy does not tell the map that arrays still look at it.
        self._map = None
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._map is None else f"fd={self._file.fileno()}"
        return f"SharedBlock({in_words(self.size_bytes)}, {state})"

    def _check_open(self) -> mmap.mmap:
        if self._map is None:
            raise FleetClosed("shared block was used after close(): create or attach a new one")
        return self._map


class UnsizedBlock:
    """A block whose size is not known yet, but whose descriptor can go to other processes already.

    Args:
        label: Shown by `/proc/PID/maps` and `lsof`; need not be unique.
    """

    def __init__(self, label: str = "envfleet") -> None:
        self._file, self._room = _open_nameless(label)

    @property
    def fd(self) -> int:
        """Its descriptor, not inheritable."""
        return self._file.fileno()

    def allocate(self, size_bytes: int) -> SharedBlock:
        """Reserve its pages and map it, once.

        Raises:
            InvalidArgument: `size_bytes` is not positive.
            OutOfMemory: There is not enough memory.
        """
        if size_bytes <= 0:
            raise InvalidArgument(f"size_bytes is {size_bytes}, expected at least 1: pass the size of a BlockLayout")
        room = self._room
        if room is not None and size_bytes > room.size_bytes * _USABLE:
            raise _out_of_memory(size_bytes, room)
        try:
            _reserve(self.fd, size_bytes)
            return SharedBlock.attach(os.dup(self.fd), size_bytes)
        except (OSError, OverflowError) as error:
            if isinstance(error, OverflowError) or error.errno in _FULL:
                raise _out_of_memory(size_bytes, room, str(error)) from error
            raise

    def close(self) -> None:
        """Give up this descriptor; blocks already allocated live on."""
        self._file.close()


def in_words(size_bytes: int) -> str:
    """Write a size for people.

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
    """Find how much memory this process can still use, or `None` where the system does not say.

    That is the least of what the machine has and what the limit of each enclosing control group (version 1 or 2)
    leaves. Page cache counts as available, as the kernel drops it first; swap does not.

    Args:
        proc: Where procfs is mounted.
        cgroups: Where control groups are mounted.
    """
    rooms = [*_room_of_machine(proc), *_room_of_cgroups(proc, cgroups)]
    return min(rooms, default=None)


def _room_of_machine(proc: Path) -> Iterator[Room]:
    for line in _read_lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield Room(int(value.split()[0]) * 1024, "this machine's memory")


def _room_of_cgroups(proc: Path, cgroups: Path) -> Iterator[Room]:
    for line in _read_lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts, limit, usage, prefix = (cgroups, cgroups / "unified"), "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            mounts, prefix = (cgroups / controllers, cgroups / "memory"), "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # In a container the path may be the host's, of which only the last part is mounted, at the top; hence the
        # walk up, which also meets the limits of enclosing groups.
        relative = Path(path.lstrip("/"))
        levels = [Path()] if ".." in relative.parts else [relative, *relative.parents]
        for mount in dict.fromkeys(mounts):
            for level in levels:
                yield from _room_of_group(mount / level, limit, usage, prefix)


def _room_of_group(group: Path, limit_name: str, usage_name: str, prefix: str) -> Iterator[Room]:
    limit, usage = (next(iter(_read_lines(group / name)), "") for name in (limit_name, usage_name))
    if not (limit.isdigit() and usage.isdigit()):  # "max", or no such group
        return
    statistics = dict(line.split() for line in _read_lines(group / "memory.stat"))
    # Not "file" or "cache", which count shared memory too.
    cache_bytes = sum(int(statistics.get(f"{prefix}{age}_file", 0)) for age in ("active", "inactive"))
    yield Room(max(0, int(limit) - int(usage) + cache_bytes), "the memory limit of this container or control group")


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # not this system, not this version, or not for us to see
        return []


def _open_nameless(label: str) -> tuple[io.FileIO, Room | None]:
    """Open an empty file that has no name, and say how large it may become."""
    if hasattr(os, "memfd_create"):
        try:
            return io.FileIO(os.memfd_create(label), "r+"), available_memory()
        except OSError as error:
            if error.errno not in _NO_MEMFD:
                raise
    folder = tempfile.gettempdir()
    # `dup`, as the wrapper that tempfile returns differs from system to system, and closes what it holds.
    with tempfile.TemporaryFile(buffering=0, dir=folder, prefix=label) as file:
        duplicate = os.dup(file.fileno())
    return io.FileIO(duplicate, "r+"), Room(shutil.disk_usage(folder).free, f"the temporary folder {folder}")


def _reserve(fd: int, size_bytes: int) -> None:
    os.ftruncate(fd, size_bytes)
    for start in range(0, size_bytes, _CHUNK_BYTES):
        chunk_bytes = min(_CHUNK_BYTES, size_bytes - start)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, start, chunk_bytes)
        else:
            os.pwrite(fd, bytes(chunk_bytes), start)


def _out_of_memory(size_bytes: int, room: Room | None, reason: str | None = None) -> OutOfMemory:
    found = (
        "an unknown amount is available" if room is None else f"{in_words(room.size_bytes)} available in {room.where}"
    )
    said = "" if reason is None else f" ({reason})"
    return OutOfMemory(
        f"not enough shared memory{said}: found {found}, expected {in_words(size_bytes)} for the arrays of all "
        "sub-environments: use fewer sub-environments or smaller observations, for instance uint8 images in place of "
        "float32, or free memory"
    )
