"""Memory without a name and mail in it: seen by other processes, refused in time when there is too little."""

from __future__ import annotations

import contextlib
import enum
import errno
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.waiting import PATIENCE_S

from envfleet.errors import EnvfleetError, OutOfMemory
from envfleet.workers import memory
from envfleet.workers.memory import FileMail, NamelessFile, Room, available_memory, dumps_reply

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")


def open_descriptors() -> int:
    """Count those of files of ours; the rest of the test session has its own."""
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
    preamble = "import os, signal, sys\nfrom envfleet.workers.memory import FileMail, NamelessFile\n"
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
    """Run in a temporary folder and compare."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = held()
    yield
    assert held() == before


@pytest.fixture(params=["memfd", "file", "file without fallocate"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way to make a file, also those of other systems."""
    if request.param != "memfd":
        monkeypatch.delattr(os, "memfd_create")
    if request.param == "file without fallocate":
        monkeypatch.delattr(os, "posix_fallocate")
    return str(request.param)


@pytest.fixture
def file(kind: str) -> Iterator[NamelessFile]:
    with contextlib.closing(NamelessFile()) as file:
        yield file


# --- life --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1, 64, 4096, 5000, (1 << 24) + 1])
def test_reserved_memory_is_zero_and_writable(file: NamelessFile, size_bytes: int) -> None:
    file.allocate(size_bytes)
    assert os.fstat(file.fd).st_size == size_bytes
    assert os.fstat(file.fd).st_blocks * 512 >= size_bytes
    assert not os.get_inheritable(file.fd)
    view = np.frombuffer(file.map(size_bytes), np.uint8)
    assert not view.any()
    view[-1] = 7
    assert file.map(size_bytes)[size_bytes - 1] == 7


def test_a_descriptor_that_was_passed_is_the_same_memory(file: NamelessFile) -> None:
    file.allocate(128)
    with contextlib.closing(NamelessFile(os.dup(file.fd))) as other:
        np.frombuffer(file.map(128), np.int64)[3] = 42
        assert np.frombuffer(other.map(128), np.int64)[3] == 42


def test_close_can_be_repeated(file: NamelessFile) -> None:
    fd = file.fd
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_views_outlive_close() -> None:
    file = NamelessFile()
    file.allocate(64)
    view = np.frombuffer(file.map(64), np.int64)
    part = view[2:]
    file.close()
    part[0] = 5
    assert view[2] == 5
    assert mappings() == 1
    del view, part
    gc.collect()
    assert mappings() == 0


def test_a_forgotten_file_is_freed() -> None:
    file = NamelessFile()
    file.allocate(64)
    del file
    assert open_descriptors() == 0


# --- processes ---------------------------------------------------------------------------------------------------


def test_a_child_killed_while_it_writes_leaves_what_it_wrote(file: NamelessFile) -> None:
    file.allocate(4096)
    code = f"NamelessFile({file.fd}).map(4096)[:4] = b'half'; os.kill(os.getpid(), signal.SIGKILL)"
    assert run_child(code, file.fd).wait(PATIENCE_S) == -signal.SIGKILL
    assert file.map(4096)[:5] == b"half\0"


def test_nothing_is_left_of_a_killed_owner(kind: str) -> None:
    # The fixture compares /dev/shm and the temporary folder, in which the child works.
    code = f"import tempfile; tempfile.tempdir = {tempfile.gettempdir()!r}\n"
    for name, missing in (("memfd_create", kind != "memfd"), ("posix_fallocate", kind.endswith("fallocate"))):
        code += f"del os.{name}\n" if missing else ""
    code += "file = NamelessFile(); file.allocate(1 << 20); file.map(4)[:] = b'mine'; os.kill(os.getpid(), 9)"
    assert run_child(code).wait(PATIENCE_S) == -signal.SIGKILL


def test_mail_is_read_by_another_process_again_and_again(file: NamelessFile) -> None:
    mail = FileMail(file.fd, 3)
    for message in ("short", "x" * 100_000, ["shorter again"]):  # a longer one moves, a shorter one stays
        mail.put(1, message)
    mail.put(2, {"other": "slot"})
    code = f"mail = FileMail({file.fd}, 0); print(mail.get(1), mail.get(2), mail.get(1))"
    output, _ = run_child(code, file.fd, stdout=subprocess.PIPE).communicate(timeout=PATIENCE_S)
    assert output == b"['shorter again'] {'other': 'slot'} ['shorter again']\n"


def test_a_message_may_take_many_reads(file: NamelessFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of more than 2 GiB does."""
    mail, pread = FileMail(file.fd, 2), os.pread
    mail.put(1, "x" * 1000)
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 24), offset))
    assert mail.get(1) == "x" * 1000


def test_a_limit_on_the_size_of_files_is_out_of_memory() -> None:
    code = """
import resource
from envfleet.errors import OutOfMemory
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
file = NamelessFile()
file.allocate(1 << 19)
for use in (lambda: file.allocate(1 << 21), lambda: FileMail(file.fd, 1).put(0, bytes(1 << 21))):
    try:
        use()
    except OutOfMemory as error:
        print(error)
"""
    child = run_child(code, stdout=subprocess.PIPE)
    output, _ = child.communicate(timeout=PATIENCE_S)
    assert child.returncode == 0
    assert output.count(b"File too large") == 2


# --- too little --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [1 << 50, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 80])
def test_more_than_there_is_is_refused_at_once(file: NamelessFile, size_bytes: int) -> None:
    with pytest.raises(OutOfMemory, match=r"not enough shared memory.*available in.*fewer sub-environments") as caught:
        file.allocate(size_bytes)
    assert caught.value.code == "out_of_memory"
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, EnvfleetError)


def test_some_memory_is_left_for_others(file: NamelessFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NamelessFile, "_room", lambda self: Room(16 << 20, "a thimble"))
    file.allocate(15 << 20)
    with pytest.raises(OutOfMemory, match=r"16\.0 MiB available in a thimble, expected 15\.0 MiB"):
        file.allocate((15 << 20) + 1)


def test_unknown_room_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    with contextlib.closing(NamelessFile()) as file:
        file.allocate(2 << 20)
        with pytest.raises(OutOfMemory, match="unknown amount"):
            file.allocate(1 << 80)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT])
def test_a_full_system_is_out_of_memory(
    file: NamelessFile, kind: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite" if kind.endswith("fallocate") else "posix_fallocate", fail)
    with pytest.raises(OutOfMemory, match=os.strerror(number)) as caught:
        file.allocate(4096)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_sandbox_without_memfd_gets_a_file(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", fail)
    with contextlib.closing(NamelessFile()) as file:
        file.allocate(64)
        assert os.fstat(file.fd).st_nlink == 0


def test_too_few_descriptors_are_not_called_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    with pytest.raises(OSError, match="Too many open files"):
        NamelessFile()


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
        ("3:cpu,cpuacct:/", {}, MACHINE),
    ],
)
def test_control_groups(system, cgroup, files, expected):
    assert system({"proc/meminfo": MEMINFO, "proc/self/cgroup": f"{cgroup}\n"} | files) == expected


def test_this_system_says_how_much_there_is():
    room = available_memory()
    assert room is not None
    assert room.size_bytes > 1 << 20


_FULL_SHM = 'mount -t tmpfs -o size=64k full /dev/shm && { cat /dev/zero > /dev/shm/all 2>&-; exec "$@"; }'
_STEP = """
import sys, envfleet
try:
    with envfleet.make("CartPole-v1", 2, backend="process", workers=2) as fleet:
        fleet.reset(seed=0)
        fleet.step(fleet.action_space.sample())
    print("stepped")
except envfleet.errors.OutOfMemory as error:
    print(error)
"""


@pytest.mark.parametrize("has_memfd", [True, False])
def test_dev_shm_is_full(has_memfd: bool) -> None:
    """In a separate mount namespace: memory needs no name there; if it needs a folder, the error names it."""
    in_namespace = ["unshare", "--mount", "sh", "-c", _FULL_SHM, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*in_namespace, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no mount namespace can be made here")
    program = _STEP
    if not has_memfd:
        program = 'import os, tempfile; del os.memfd_create; tempfile.tempdir = "/dev/shm"' + _STEP
    run = subprocess.run(
        [*in_namespace, sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")
    if has_memfd:
        assert run.stdout == "stepped\n"
    else:
        assert "the temporary folder /dev/shm" in run.stdout


class Position(enum.Enum):
    LONG = 1


def test_replies_of_known_classes_are_pickled_fast() -> None:
    reply = {"position": Position.LONG, "text": "x", "array": np.arange(3)}
    data = dumps_reply(reply)
    assert data == pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    assert pickle.loads(data)["position"] is Position.LONG


def test_replies_with_what_only_cloudpickle_pickles() -> None:
    assert pickle.loads(dumps_reply([lambda: 5]))[0]() == 5
    Here = type("Here", (), {"__module__": "__main__", "value": 3})  # noqa: N806
    assert pickle.loads(dumps_reply(Here())).value == 3
