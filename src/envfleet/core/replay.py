"""Write down a failed episode, and run it again in this process: `envfleet replay FILE`."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import traceback
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from envfleet.core.builders import EnvBuilder
from envfleet.core.trace import Origin
from envfleet.errors import EnvfleetError, Failure, InvalidArgument

FORMAT = 1
PREFIX = "envfleet-replay-"
MAX_FILES = 20


class ReplayUnavailable(EnvfleetError):
    """A replay file cannot be read or run here."""

    code = "replay_unavailable"


@dataclasses.dataclass(frozen=True)
class ReplayRecord:
    """One episode up to a failure. A pickle: only open files you trust.

    Attributes:
        builder: Builds the sub-environment.
        shared: Not kept; the names are in the builder. A sub-environment that needs shared data cannot be replayed.
        origin: How the episode began.
        actions: Every action of it, the failing one last.
        verb: What failed: `"reset"` or `"step"`.
        type_name: Type of the exception.
        message: Its text.
        env_index: Index of the sub-environment in the fleet.
        format: Version of this record.
    """

    builder: EnvBuilder
    origin: Origin
    actions: list[Any]
    verb: str
    type_name: str
    message: str
    env_index: int
    format: int = FORMAT


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """What came of a replay: `reproduced`, and `text` to show a person."""

    reproduced: bool
    text: str


def write_replay(failure: Failure) -> str | None:
    """Write the failure's replay record to a file.

    The file goes to the folder in `ENVFLEET_REPLAY_DIR`, else to the system's folder for temporary files. The newest
    20 are kept.

    Returns:
        The file's path, or `None` if the failure has no record or the disk takes no file.
    """
    if failure.replay is None:
        return None
    folder = Path(os.environ.get("ENVFLEET_REPLAY_DIR") or tempfile.gettempdir())
    path = None
    try:
        handle, path = tempfile.mkstemp(prefix=f"{PREFIX}env{failure.env_index}-", suffix=".pkl", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(failure.replay)
        _forget_old(folder)
    except OSError:
        if path is not None:
            Path(path).unlink(missing_ok=True)
        return None
    return path


def _forget_old(folder: Path) -> None:
    """Remove all but the newest replay files of this user."""
    mine = [path for path in folder.glob(f"{PREFIX}*.pkl") if path.stat().st_uid == os.getuid()]
    for path in sorted(mine, key=lambda path: path.stat().st_mtime)[:-MAX_FILES]:
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


def replay(path: str) -> ReplayReport:
    """Run the episode of a replay file again, in this process and with no fleet around it.

    Args:
        path: A file named in a `SubEnvError`. It is a pickle: only open files you trust.

    Raises:
        ReplayUnavailable: The file cannot be read, or the sub-environment needs the fleet's shared data.
        InvalidArgument: The builder no longer returns an environment.
    """
    record = load_replay(path)
    if record.builder.shared_names:
        raise ReplayUnavailable(f"{path} needs shared data {list(record.builder.shared_names)}, which no file holds")
    steps = len(record.actions)
    head = f"sub-environment {record.env_index}: {record.type_name} in {record.verb} after {max(steps - 1, 0)} steps"
    try:
        done = _run(record)
    except InvalidArgument:
        raise
    except Exception as error:  # noqa: BLE001 - the failure that is being looked for
        text = "".join(traceback.format_exception(error))
        same = _name(error) == record.type_name
        verdict = "reproduced" if same else f"a different error than the recorded {record.type_name}"
        return ReplayReport(same, f"{head}\n{verdict}:\n{text}")
    return ReplayReport(False, f"{head}\nnot reproduced: {done} steps ran without an error")


def _run(record: ReplayRecord) -> int:
    env = record.builder.build({})
    try:
        origin = record.origin
        if origin.rng_state is not None:
            rng = np.random.Generator(getattr(np.random, origin.rng_state["bit_generator"])())
            rng.bit_generator.state = origin.rng_state
            env.unwrapped.np_random = rng
        if origin.seed is None and origin.options is None:
            env.reset()
        else:
            env.reset(seed=origin.seed, options=origin.options)
        for action in record.actions:
            env.step(action)
    finally:
        env.close()
    return len(record.actions)


def _name(error: BaseException) -> str:
    return type(error).__qualname__
