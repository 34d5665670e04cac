"""What cannot work is explained: wrong arguments, CUDA and threads before a fork, too few processes or descriptors."""

from __future__ import annotations

import errno
import os
import resource
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.transports.own_python import PATIENCE_S, TARGETS, run_python

from envfleet.errors import EnvfleetError, InvalidArgument
from envfleet.transports import launch as launch_module
from envfleet.transports.launch import StartMethod, launch, require_descriptors

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX"),
]


def test_wrong_arguments() -> None:
    wrong: Any = "thread"
    with pytest.raises(InvalidArgument, match='expected "forkserver", "spawn" or "fork"'):
        launch("a:b", b"", [], start_method=wrong, name="t")
    with pytest.raises(InvalidArgument, match="module:function"):
        launch("a.b", b"", [], start_method="spawn", name="t")


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_module, "os", types.SimpleNamespace(name="nt"))
    with pytest.raises(InvalidArgument, match='backend="thread"'):
        launch("a:b", b"", [], start_method="spawn", name="t")


def test_fork_after_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(InvalidArgument, match='use start_method="forkserver"'):
        launch(f"{TARGETS}:nothing", b"", [], start_method="fork", name="t")


def test_fork_with_threads() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="other")
    thread.start()
    try:
        with pytest.warns(RuntimeWarning, match="other threads run .*other") as caught:
            handle = launch(f"{TARGETS}:nothing", b"", [], start_method="fork", name="t")
    finally:
        stop.set()
        thread.join()
    assert handle.exitcode(PATIENCE_S) == 0
    handle.close()
    assert caught[0].filename == __file__


def test_no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(EnvfleetError, match=r"could not start worker process 't'.*temporarily.*ulimit -u"):
        launch(f"{TARGETS}:nothing", b"", [], start_method="fork", name="t")


@pytest.mark.parametrize("how", ["forkserver", "spawn"])
def test_no_more_processes_for_the_nursery(how: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "def refuse():\n    raise BlockingIOError(11, 'Resource temporarily unavailable')\n"
        "if 'nursery.py' in str(sys.orig_argv):\n    os.fork = refuse\n"
    )
    code = f"""
from envfleet.errors import EnvfleetError
from envfleet.transports.launch import launch
for _ in range(2):
    try:
        launch("{TARGETS}:nothing", b"", [], start_method="{how}", name="t")
    except EnvfleetError as error:
        print(error)
"""
    result = run_python(code, path=str(tmp_path))
    assert result.stdout.count("could not start worker process 't': [Errno 11] Resource temporarily") == 2
    assert result.stderr == ""


def test_no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""
import sys
from envfleet.transports.launch import launch
sys.executable = ""
launch("{TARGETS}:nothing", b"", [], start_method="spawn", name="t")
"""
    err = run_python(code).stderr
    assert "InvalidArgument: worker processes need a Python interpreter" in err
    assert "use backend='thread'" in err


@pytest.fixture
def descriptor_limit() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_descriptors_that_are_there(descriptor_limit: Callable[[int], None]) -> None:
    descriptor_limit(512)
    require_descriptors(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 512


def test_descriptors_by_a_higher_soft_limit(descriptor_limit: Callable[[int], None]) -> None:
    descriptor_limit(256)
    require_descriptors(500)
    assert 500 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1500


def test_too_few_descriptors() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with pytest.raises(InvalidArgument, match=rf"{hard} more .* are needed, .*; \d+ are available.*ulimit -n"):
        require_descriptors(hard)


def test_out_of_descriptors_in_this_process(method: StartMethod) -> None:
    code = f"""
import os, resource
from envfleet.transports.launch import launch, hold_nursery
import tests.unit.transports.launch_targets
limit = lambda soft: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
start = lambda: launch("{TARGETS}:nothing", b"", [], start_method="{method}", name="t")
before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
with hold_nursery():
    start().close()
    limit(len(os.listdir("/proc/self/fd")) - 1)
    try:
        start()
    except Exception as error:
        print(type(error).__name__, error)
    limit(before)
    handle = start()
    print(handle.exitcode(20))
    handle.close()
"""
    result = run_python(code)
    assert result.stdout.startswith("InvalidArgument this process ran out of file descriptors"), result.stderr
    assert result.stdout.endswith("\n0\n"), result.stdout + result.stderr
