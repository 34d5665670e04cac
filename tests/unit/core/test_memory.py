"""Shared memory: seen by other processes, refused in time when there is too little, gone with its owners."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envfleet.core import memory
from envfleet.core.memory import Room, SharedBlock, available_memory
from envfleet.errors import EnvfleetError, FleetClosed, InvalidArgument, OutOfMemory

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")


def open_descriptors() -> int:
    """Count those of blocks; the rest of the test session has its own."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # gone again, as that of the listing itself
            target = str(entry.readlink())
            count += "memfd:envfleet" in target or tempfile.gettempdir() in target
    return count


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:envfleet")


def run_child(code: str, *fds: int, **options: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    preamble = "import os, signal, sys\nfrom envfleet.core.memory import SharedBlock\n"
    return subprocess.Popen([sys.executable, "-c", preamble + code], pass_fds=fds, env=environment, **options)


def held() -> tuple[Any, ...]:
    """Return what could leak: descriptors, mappings, and names in shared memory and in the temporary folder."""
    gc.collect()
    return (
        open_descriptors(),
        mappings(),
        sorted(Path("/dev/shm").glob("*envfleet*")),
        sorted(Path(tempfile.gettempdir()).iterdir()),
    )


@pytest.fixture(autouse=True)
def leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a temporary folder of one's own, and compare."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = held()
    yield
    assert held() == before


@pytest.fixture(params=["memfd", "file", "file without fallocate"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to make a block, also those of other systems."""
    if request.param != "memfd":
        monkeypatch.delattr(os, "memfd_create")
    if request.param == "file without fallocate":
        monkeypatch.delattr(os, "posix_fallocate")
    return str(request.param)


# --- life --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 64, 4096, 5000, (1 << 24) + 1])
def test_new_block_is_zeroed_writable_and_reserved(kind, size_bytes):
    with SharedBlock.create(size_bytes) as block:
        assert block.size_bytes == len(block.buffer) == os.fstat(block.fd).st_size == size_bytes
        assert os.fstat(block.fd).st_blocks * 512 >= size_bytes
        assert not os.get_inheritable(block.fd)
        view = np.frombuffer(block.buffer, np.uint8)
        assert not view.any()
        view[-1] = 7
        assert block.buffer[size_bytes - 1] == 7


def test_attached_block_is_the_same_memory(kind):
    with SharedBlock.create(128) as block, SharedBlock.attach(os.dup(block.fd), 128) as other:
        np.frombuffer(block.buffer, np.int64)[3] = 42
        assert np.frombuffer(other.buffer, np.int64)[3] == 42


def test_close_can_be_repeated_and_ends_use(kind):
    block = SharedBlock.create(64)
    fd = block.fd
    block.close()
    block.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    for use in (lambda: block.fd, lambda: block.buffer):
        with pytest.raises(FleetClosed, match="after close"):
            use()
    assert repr(block) == "SharedBlock(64 bytes, closed)"


def test_views_outlive_close():
    block = SharedBlock.create(64)
    assert repr(block) == f"SharedBlock(64 bytes, fd={block.fd})"
    view = np.frombuffer(block.buffer, np.int64)
    part = view[2:]
    block.close()
    block.close()
    part[0] = 5
    assert view[2] == 5
    del block
    assert view[2] == 5
    assert mappings() == 1
    del view, part
    gc.collect()
    assert mappings() == 0


def test_forgotten_block_says_so_and_is_freed():
    block = SharedBlock.create(64)
    with pytest.warns(ResourceWarning, match="unclosed file"):
        del block


# --- processes ---------------------------------------------------------------------------------------------------


def test_child_writes_into_the_block(kind):
    with SharedBlock.create(4096) as block:
        child = run_child(f"b = SharedBlock.attach({block.fd}, 4096); b.buffer[:4] = b'done'; b.close()", block.fd)
        assert child.wait(30) == 0
        assert block.buffer[:5] == b"done\0"


def test_child_killed_while_attached_leaves_what_it_wrote(kind):
    code = "b = SharedBlock.attach({}, 4096); b.buffer[:4] = b'half'; os.kill(os.getpid(), signal.SIGKILL)"
    with SharedBlock.create(4096) as block:
        assert run_child(code.format(block.fd), block.fd).wait(30) == -signal.SIGKILL
        assert block.buffer[:5] == b"half\0"


def test_nothing_is_left_of_a_killed_owner(kind):
    # The fixture compares /dev/shm and the temporary folder, in which the child works.
    code = f"import tempfile; tempfile.tempdir = {tempfile.gettempdir()!r}\n"
    for name, missing in (("memfd_create", kind != "memfd"), ("posix_fallocate", kind.endswith("fallocate"))):
        code += f"del os.{name}\n" if missing else ""
    code += "b = SharedBlock.create(1 << 20); b.buffer[:4] = b'mine'; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_child(code).wait(30) == -signal.SIGKILL


def test_file_size_limit_of_the_process_is_out_of_memory():
    code = """
import resource
from envfleet.errors import OutOfMemory
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
SharedBlock.create(1 << 19).close()
try:
    SharedBlock.create(1 << 21)
except OutOfMemory as error:
    print(error)
"""
    child = run_child(code, stdout=subprocess.PIPE)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 0
    assert b"File too large" in output


# --- too little --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 80])
def test_more_than_there_is_is_refused_at_once(kind, size_bytes):
    with pytest.raises(OutOfMemory, match=r"not enough shared memory.*available in.*fewer sub-environments") as caught:
        SharedBlock.create(size_bytes)
    assert caught.value.code == "out_of_memory"
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, EnvfleetError)


@pytest.mark.parametrize("size_bytes", [0, -1])
def test_empty_blocks_are_refused(size_bytes):
    with pytest.raises(InvalidArgument, match=f"size_bytes is {size_bytes}"):
        SharedBlock.create(size_bytes)


def test_some_memory_is_left_for_others(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: Room(1600, "a thimble"))
    SharedBlock.create(1500).close()
    with pytest.raises(OutOfMemory, match=r"1\.6 KiB available in a thimble, expected 1\.5 KiB"):
        SharedBlock.create(1501)


def test_unknown_room_is_tried(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    SharedBlock.create(64).close()
    with pytest.raises(OutOfMemory, match="unknown amount"):
        SharedBlock.create(1 << 80)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT])
def test_a_full_system_is_out_of_memory(kind, monkeypatch, number):
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite" if kind.endswith("fallocate") else "posix_fallocate", fail)
    with pytest.raises(OutOfMemory, match=os.strerror(number)) as caught:
        SharedBlock.create(4096)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_other_errors_pass_and_leak_nothing(monkeypatch, error):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(memory, "_reserve", fail)
    with pytest.raises(type(error)):
        SharedBlock.create(4096)


def test_no_mapping_leaks_nothing(monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", fail)
    with pytest.raises(OutOfMemory, match="Cannot allocate memory"):
        SharedBlock.create(4096)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_sandbox_without_memfd_gets_a_file(monkeypatch, number):
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", fail)
    with SharedBlock.create(64) as block:
        assert os.fstat(block.fd).st_nlink == 0


def test_too_few_descriptors_are_not_called_too_little_memory(monkeypatch):
    def fail(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(OSError, match="Too many open files"):
        SharedBlock.create(64)


@pytest.mark.parametrize("size_bytes", [0, -1, 65, 1 << 62, 1 << 80])
def test_attach_refuses_another_size(size_bytes):
    with SharedBlock.create(64) as block:
        fd = os.dup(block.fd)
        with pytest.raises(InvalidArgument, match="shared block has 64 bytes"):
            SharedBlock.attach(fd, size_bytes)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            SharedBlock.attach(fd, 64)


# --- how much there is -------------------------------------------------------------------------------------------

MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"
MACHINE = Room(8_000_000 * 1024, "this machine's memory")
GROUP = "the memory limit of this container or control group"


@pytest.fixture
def system(tmp_path: Path) -> Any:
    """Build a `/proc` and a `/sys/fs/cgroup`; return what they say is available."""

    def available(files: dict[str, str]) -> Room | None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return available_memory(tmp_path / "proc", tmp_path / "cgroup")

    return available


def v2(group: str, limit: str, usage: int, cache: int = 0) -> dict[str, str]:
    statistics = f"anon 5\nfile 99999\nshmem 88\ninactive_file {cache}\nactive_file 1\n"
    group = f"cgroup/{group}"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{usage}\n",
        f"{group}/memory.stat": statistics,
    }


def v1(group: str, limit: int, usage: int, cache: int = 0) -> dict[str, str]:
    group = f"cgroup/memory/{group}"
    return {
        f"{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{group}/memory.usage_in_bytes": f"{usage}\n",
        f"{group}/memory.stat": f"cache 99999\ninactive_file 7\ntotal_inactive_file {cache}\ntotal_active_file 1\n",
    }


def test_system_that_does_not_say(system):
    assert system({}) is None


def test_machine_without_control_groups(system):
    assert system({"proc/meminfo": MEMINFO}) == MACHINE


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/", {}, MACHINE),
        ("0::/job", v2("job", "max", 500), MACHINE),
        ("0::/job", v2("job", "1000", 400, cache=99), Room(700, GROUP)),
        ("0::/job", v2("job", "1000", 4000), Room(0, GROUP)),
        ("0::/outer/job", v2("outer/job", "max", 400) | v2("outer", "5000", 900), Room(4101, GROUP)),
        ("0::/outer/job", v2("outer/job", "1000", 400) | v2("outer", "5000", 900), Room(601, GROUP)),
        ("0::/host/path", v2("", "1000", 400), Room(601, GROUP)),
        ("0::/../../job", v2("", "1000", 400), Room(601, GROUP)),
        ("4:memory:/job", v1("job", 1000, 400, cache=99), Room(700, GROUP)),
        ("4:memory:/job", v1("job", 9223372036854771712, 400), MACHINE),
        ("4:memory:/host/path\n0::/", v1("", 1000, 400), Room(601, GROUP)),
        ("1:name=systemd:/job\n0::/job", v2("unified/job", "1000", 400), Room(601, GROUP)),
        ("3:cpu,cpuacct:/", {}, MACHINE),
    ],
)
def test_control_groups(system, cgroup, files, expected):
    assert system({"proc/meminfo": MEMINFO, "proc/self/cgroup": f"{cgroup}\n"} | files) == expected


def test_this_system_says_how_much_there_is():
    room = available_memory()
    assert room is not None
    assert room.size_bytes > 1 << 20
