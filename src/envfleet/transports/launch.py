"""Start worker processes without Python's `multiprocessing`, and leave none behind.

`multiprocessing` imports the user's `__main__` again in every child (a script without its guard forks bombs;
`python -c`, stdin and Jupyter break), and a killed owner leaves its children alive. Here workers come from a *nursery*
(`envfleet.transports.nursery`), one small process per owner that starts them on request, reports their exit codes, and
ends them when the owner is gone, however it went. It lives while there are open `WorkerHandle`s or `hold_nursery`
contexts.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NoReturn

from envfleet.errors import InvalidArgument
from envfleet.transports import entry, nursery
from envfleet.transports.handle import WorkerHandle
from envfleet.transports.supervision import (
    NurseryLink,
    NurseryLost,
    descriptors_error,
    import_path,
    lost_error,
    packed,
    start_error,
    supervision,
    worker_environ,
)

__all__ = [
    "StartMethod",
    "WorkerHandle",
    "default_start_method",
    "hold_nursery",
    "launch",
    "require_descriptors",
    "require_no_cuda",
]

StartMethod = Literal["forkserver", "spawn", "fork"]


def default_start_method() -> StartMethod:
    """Return `"forkserver"` on Linux, `"spawn"` elsewhere (system libraries of macOS do not survive a fork)."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def launch(
    target: str,
    args: bytes,
    fds: Sequence[int],
    *,
    start_method: StartMethod,
    name: str,
    close_in_fork: Sequence[int] = (),
) -> WorkerHandle:
    """Start a worker process that calls `target(args, fds)`.

    The worker has the owner's working directory, `sys.path`, `sys.argv`, environment, CPU affinity and limit on
    descriptors as they are now; stdin is empty; stdout and stderr are the owner's descriptors 1 and 2. It ignores
    SIGINT (Ctrl-C is the owner's to act on), SIGUSR1 and SIGUSR2, and dies of SIGTERM. Native thread pools have one
    thread unless the user has set `OMP_NUM_THREADS` (for numpy's own: with "forkserver", before the nursery started;
    with "fork" numpy keeps the owner's). numpy's global generator is seeded anew.

    "forkserver" forks from the nursery, which has numpy, gymnasium and envfleet imported and nothing else: a few
    milliseconds, safe with threads and CUDA. "spawn" starts a fresh interpreter: slower, shares nothing. "fork" forks
    this process: inherits everything, and is safe neither with threads nor with CUDA. A forked worker drops the
    launcher's own descriptors and `close_in_fork`; others stay open, since an environment may need them.

    Args:
        target: What to call, as `"module:function"`, importable in the worker.
        args: Handed to it as they are.
        fds: Descriptors for the worker. It gets copies, under other numbers; the caller keeps its own.
        start_method: How to start it.
        name: What `ps -o comm` and `top` show, on Linux, cut to 15 bytes.
        close_in_fork: The caller's descriptors that a worker must not hold open, such as its own ends of the workers'
            pipes. Only "fork" needs it.

    Returns:
        The worker; close it when it has ended.

    Raises:
        InvalidArgument: This platform or process cannot start workers this way; the message says what to do.
        EnvfleetError: The system refused a new process.
    """
    _check_arguments(target, fds, start_method)
    job = _make_job(target, args, name)
    try:
        with supervision.hold():
            if start_method == "fork":
                return _fork(job, fds, close_in_fork)
            return _launch_from_nursery(job, fds, start_method)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise descriptors_error("this process") from error
        raise


@contextlib.contextmanager
def hold_nursery(start_method: StartMethod | None = None) -> Iterator[None]:
    """Keep the nursery warm: start it now, in the background, and end it no sooner than this context.

    Worth it around code that makes many fleets in turn.

    Args:
        start_method: What workers will be started with; decides what the nursery imports. Default: the platform's.
    """
    _check_platform()
    with supervision.hold():
        if (start_method or default_start_method()) == "forkserver":
            with contextlib.suppress(NurseryLost):  # the next launch finds out, and starts another
                supervision.link().preload()
        yield


def require_descriptors(count: int) -> None:
    """Make sure that this process can open `count` more file descriptors.

    If the soft limit (RLIMIT_NOFILE) is too low and the hard one is not, raises the soft limit of this process as far
    as needed.

    Args:
        count: How many will be opened.

    Raises:
        InvalidArgument: The hard limit is too low.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = _num_open_descriptors()
    needed = num_open + count + _SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
            return
    raise InvalidArgument(
        f"{count} more file descriptors are needed, besides {_SPARE_DESCRIPTORS} for what else a program opens; "
        f"{max(0, soft - num_open)} are available ({num_open} of {soft} are open): use fewer workers, or raise the "
        f"limit before starting Python with `ulimit -n {needed}`."
    )


def require_no_cuda(start_method: StartMethod) -> None:
    """Make sure that a fork takes no CUDA context along, which would not work in the worker.

    Args:
        start_method: How workers are to be started; only "fork" forks this process.

    Raises:
        InvalidArgument: This process has one.
    """
    torch = sys.modules.get("torch")
    if start_method == "fork" and torch is not None and torch.cuda.is_initialized():
        raise InvalidArgument(
            'start_method="fork" after CUDA was initialised in this process; a forked process cannot use CUDA again: '
            'use start_method="forkserver", or make the fleet before anything touches the GPU.'
        )


_SPARE_DESCRIPTORS = 32  # for what a program opens meanwhile


def _num_open_descriptors() -> int:
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(directory)) - 1  # noqa: PTH208  # one is the listing's own
    return 64  # nowhere to look: a guess on the high side


def _check_platform() -> None:
    if os.name != "posix":
        raise InvalidArgument(
            f"the process backend needs POSIX (Linux or macOS), this is {sys.platform}: "
            'use backend="thread" or backend="serial".'
        )


def _check_arguments(target: str, fds: Sequence[int], start_method: str) -> None:
    _check_platform()
    if start_method not in ("forkserver", "spawn", "fork"):
        raise InvalidArgument(
            f'start_method is {start_method!r}, expected "forkserver", "spawn" or "fork": '
            f'leave it out for this platform\'s default, "{default_start_method()}".'
        )
    if ":" not in target:
        raise InvalidArgument(f'target is {target!r}, expected "module:function": name a module-level function.')
    if len(fds) > nursery.MAX_DESCRIPTORS - 4:
        raise InvalidArgument(
            f"{len(fds)} descriptors for one worker, at most {nursery.MAX_DESCRIPTORS - 4} can be passed: "
            "use more workers with fewer sub-environments each."
        )


def _make_job(target: str, args: bytes, name: str) -> dict[str, Any]:
    import resource

    try:
        cwd: str | None = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        cwd = None  # it was deleted; the worker stays where the nursery is
    return {
        "target": target,
        "args": args,
        "name": name,
        "path": import_path(),
        "argv": [str(arg) for arg in sys.argv],
        "environ": worker_environ(),
        "cwd": cwd,
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


# --- by the nursery --------------------------------------------------------------------------------------------------


def _launch_from_nursery(job: dict[str, Any], fds: Sequence[int], start_method: str) -> WorkerHandle:
    for is_last in (False, True):
        link = supervision.link()
        try:
            return _ask(link, job, fds, start_method)
        except NurseryLost:
            if not link.has_ended():
                raise descriptors_error("the worker nursery") from None
            if is_last:
                raise lost_error(link) from None
    raise AssertionError  # the loop returns or raises


def _ask(link: NurseryLink, job: dict[str, Any], fds: Sequence[int], start_method: str) -> WorkerHandle:
    kind = nursery.SPAWN
    if start_method == "forkserver":
        kind = nursery.FORK
        module = job["target"].partition(":")[0]
        link.preload(*([module] if module.startswith("envfleet.") else []))
    ours, theirs = socket.socketpair()
    try:
        with theirs, packed(job) as payload, _standard_streams() as (out, err):
            link.request(kind, [theirs.fileno(), payload, out, err, *fds])
        answer, pidfds = nursery.receive_descriptors(ours, nursery.ANSWER.size, 1)
        if len(answer) < nursery.ANSWER.size:
            raise NurseryLost
        pid, number = nursery.ANSWER.unpack(answer)
        if number:
            raise start_error(f"worker process {job['name']!r}", OSError(number, os.strerror(number)))
        handle = supervision.add(pid, pidfds[0] if pidfds else -1, ours, is_child=False)
    except BaseException:
        ours.close()  # a worker that was started all the same reads end-of-file, and ends
        raise
    _let_go(ours)
    return handle


def _let_go(channel: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may have been killed already; its sentinel tells
        channel.send(entry.GO, nursery.NO_SIGNAL)


@contextlib.contextmanager
def _standard_streams() -> Iterator[tuple[int, int]]:
    null = -1
    try:
        streams = []
        for fd in (1, 2):
            try:
                os.fstat(fd)
                streams.append(fd)
            except OSError:  # closed, as in a daemon
                null = null if null >= 0 else os.open(os.devnull, os.O_WRONLY)
                streams.append(null)
        yield streams[0], streams[1]
    finally:
        if null >= 0:
            os.close(null)


# --- by this process -------------------------------------------------------------------------------------------------


def _fork(job: dict[str, Any], fds: Sequence[int], close_in_fork: Sequence[int]) -> WorkerHandle:
    _check_fork_is_safe()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()  # or the worker would print what is buffered a second time
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            pid = _fork_quietly()
            if pid == 0:
                _become_worker(job, theirs, fds, [ours.fileno(), *(set(close_in_fork) - set(fds))])
    except OSError as error:
        ours.close()
        raise start_error(f"worker process {job['name']!r}", error) from error
    try:
        handle = supervision.add(pid, nursery.open_pidfd(pid), ours, is_child=True)
    except BaseException:
        ours.close()  # it reads end-of-file, and ends
        os.waitpid(pid, 0)
        raise
    _let_go(ours)
    return handle


def _fork_quietly() -> int:
    with entry.held_signals(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own about threads; ours says more
        pid = os.fork()
        if pid == 0:
            entry.set_signals()
            signal.set_wakeup_fd(-1)  # asyncio's, in the owner
        return pid


def _check_fork_is_safe() -> None:
    require_no_cuda("fork")
    if threading.active_count() > 1:
        others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
        warnings.warn(
            f'start_method="fork" while other threads run ({", ".join(others)}): a lock one of them holds stays locked '
            'in the worker, which may then hang. Use start_method="forkserver", or make the fleet first.',
            RuntimeWarning,
            stacklevel=_frames_of_ours(),
        )


def _frames_of_ours() -> int:
    """How far up whoever made the fleet is, for a warning to point there."""
    frame, count = sys._getframe(1), 1  # noqa: SLF001 - how the standard library offers it
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("envfleet."):
        frame, count = frame.f_back, count + 1
    return count


def _become_worker(job: dict[str, Any], channel: socket.socket, fds: Sequence[int], drop: Sequence[int]) -> NoReturn:
    try:
        atexit._clear()  # noqa: SLF001  # the owner's exit handlers are the owner's
        nursery.close_quietly(drop)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        sys.stdin = os.fdopen(0, closefd=False)
        if "threadpoolctl" in sys.modules and "OMP_NUM_THREADS" not in os.environ:
            sys.modules["threadpoolctl"].threadpool_limits(1)
        entry.run_worker(job, channel.detach(), list(fds))
    finally:
        os._exit(1)
