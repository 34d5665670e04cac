"""Write down a failed episode, and run it again in this process: `envfleet replay FILE`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import gymnasium as gym
import numpy as np

from envfleet.core.alarms import borrowed_alarm
from envfleet.core.builders import EnvBuilder
from envfleet.core.failures import StepInterrupted, leave_out_own_frames
from envfleet.core.origins import Origin
from envfleet.core.results import Taker
from envfleet.errors import EnvfleetError, Failure

FORMAT = 2
PREFIX = "envfleet-replay-"
MAX_FILES = 20

DEATH = "WorkerDied"
"""What stands for an exception's type where the worker died."""

TOO_LONG = "its episode is longer than the actions that are kept"
NO_BEGINNING = "how its episode began is not known, as after set_state() or a reset with options that are large"
UNTOLD = "its worker has no memory in common with the fleet, so nobody knows how its episode began"


class ReplayUnavailable(EnvfleetError):
    """A replay file cannot be read or run here."""

    code = "replay_unavailable"


@dataclasses.dataclass(frozen=True)
class ReplayRecord:
    """One episode up to a failure. A pickle: only open files you trust.

    Attributes:
        builder: Builds the sub-environment; one that needs shared data, whose names it has, cannot be replayed.
        origin: How the episode began.
        actions: Every action of it, the failing one last.
        verb: What failed: `"reset"` or `"step"`.
        type_name: Type of the exception, or `"WorkerDied"`.
        message: Its text, or how the worker ended.
        env_index: Index of the sub-environment in the fleet.
        timeout_s: Deadline of its steps and resets, if it had one.
        format: Version of this record.
    """

    builder: EnvBuilder
    origin: Origin
    actions: list[Any]
    verb: str
    type_name: str
    message: str
    env_index: int
    timeout_s: float | None = None
    format: int = FORMAT

    def describe(self) -> str:
        """Say what happened, and what to expect of running it again."""
        steps = max(len(self.actions) - 1, 0)
        message = self.message.partition("\n")[0]
        text = f"sub-environment {self.env_index}: {self.type_name} in {self.verb} after {steps} steps: {message}"
        if self.type_name == DEATH:
            text += "\nIts worker died of that. If it happens again, this process ends the same way"
        return text

    def pack(self) -> bytes | str:
        """Pickle the record; returns why not, where it does not pickle."""
        try:
            data: bytes = cloudpickle.dumps(self)
        except Exception as error:  # noqa: BLE001 - an action or option may fail in its own way
            return f"what it takes does not pickle ({type(error).__name__}: {error})"
        return data


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """What came of a replay: `reproduced`, and `text` to show a person."""

    reproduced: bool
    text: str


def write_replay(failure: Failure) -> tuple[Failure, str | None]:
    """Write the failure's replay record to a file.

    The file goes to the folder in `ENVFLEET_REPLAY_DIR`, else to the system's folder for temporary files. The newest
    20 are kept.

    Returns:
        The failure, and the file's path; `None` if the failure has no record, or if the folder takes no file, which
        the failure then says.
    """
    if failure.replay is None:
        return failure, None
    folder = Path(os.environ.get("ENVFLEET_REPLAY_DIR") or tempfile.gettempdir())
    try:
        path = _write_new(folder, f"{PREFIX}env{failure.env_index}-", failure.replay)
        _forget_old(folder, path)
    except OSError as error:
        reason = f"{folder} takes no file ({error.strerror}), set ENVFLEET_REPLAY_DIR to a folder that does"
        return dataclasses.replace(failure, no_replay=reason), None
    return failure, str(path)


def _write_new(folder: Path, prefix: str, content: bytes) -> Path:
    """Write a file that only this user may read, under a new name that it gets once it is complete."""
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=".unfinished", dir=folder)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return unfinished.rename(unfinished.with_suffix(".pkl"))
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _forget_old(folder: Path, newest: Path) -> None:
    """Remove all but the newest replay files of this user; many may have been written at the same time by the clock."""
    mine = []
    for path in set(folder.glob(f"{PREFIX}*.pkl")) - {newest}:
        with contextlib.suppress(FileNotFoundError):  # another process may be forgetting it, too
            found = path.stat()
            if not hasattr(os, "getuid") or found.st_uid == os.getuid():  # there is none on Windows
                mine.append((found.st_mtime_ns, path))
    for _, path in sorted(mine)[: 1 - MAX_FILES]:
        path.unlink(missing_ok=True)


def load_replay(path: str) -> ReplayRecord:
    """Read a replay file. It is a pickle: only open files you trust.

    Raises:
        ReplayUnavailable: The file is missing, is no replay file, or needs code that cannot be imported here.
    """
    try:
        record = cloudpickle.loads(Path(path).read_bytes())
    except OSError as error:
        raise ReplayUnavailable(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise ReplayUnavailable(
            f"cannot unpickle {path}: {error!r}; run this where the environment's code can be imported"
        ) from error
    if not isinstance(record, ReplayRecord) or record.format != FORMAT:
        raise ReplayUnavailable(f"{path} is no replay file of this version of envfleet")
    return record


def replay(path: str, announce: Callable[[str], None] = lambda text: None) -> ReplayReport:
    """Run the episode of a replay file again, in this process and with no fleet around it.

    A step that overran a deadline is interrupted after the same time, in the main thread. What killed a worker will
    kill this process, too.

    Args:
        path: A file named in an error. It is a pickle: only open files you trust.
        announce: Told what happened, before it is run again.

    Raises:
        ReplayUnavailable: The file cannot be read, or the sub-environment needs the fleet's shared data.
        InvalidArgument: The builder no longer returns an environment.
    """
    record = load_replay(path)
    if record.builder.shared_names:
        raise ReplayUnavailable(f"{path} needs shared data {list(record.builder.shared_names)}, which no file holds")
    announce(record.describe())
    env = record.builder.build({}, record.origin.build_seed)
    try:
        _run(record, env)
    except (Exception, SystemExit, GeneratorExit, StepInterrupted) as error:  # noqa: BLE001 - what is being looked for
        leave_out_own_frames(error)
        text = "".join(traceback.format_exception(error))
        same = type(error).__qualname__ == record.type_name
        return ReplayReport(same, f"{_verdict(same, record)}:\n{text}")
    finally:
        with contextlib.suppress(Exception):  # what it is about has been said
            env.close()
    return ReplayReport(False, f"not reproduced: {len(record.actions)} steps ran without an error")


def _verdict(same: bool, record: ReplayRecord) -> str:
    return "reproduced" if same else f"a different error than the recorded {record.type_name}"


def _run(record: ReplayRecord, env: gym.Env[Any, Any]) -> None:
    origin, taker = record.origin, Taker(env.observation_space)
    if origin.rng_state is not None:
        rng = np.random.Generator(getattr(np.random, origin.rng_state["bit_generator"])())
        rng.bit_generator.state = origin.rng_state
        env.unwrapped.np_random = rng
    with _deadline(record.timeout_s) as restart_clock:
        restart_clock()
        is_bare = origin.seed is None and origin.options is None
        taker.take_reset(env.reset() if is_bare else env.reset(seed=origin.seed, options=origin.options))
        for action in record.actions:
            restart_clock()
            taker.take_step(env.step(action))


@contextlib.contextmanager
def _deadline(timeout_s: float | None) -> Iterator[Callable[[], None]]:
    """Interrupt what takes longer than `timeout_s` after a call of what this gives; only the main thread can."""
    if timeout_s is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    limit_s = timeout_s

    def interrupt(signum: int, frame: Any) -> NoReturn:
        raise StepInterrupted(f"ran longer than step_timeout_s={limit_s:g}")

    with borrowed_alarm(interrupt) as set_timer:
        yield lambda: set_timer(limit_s, 0)
