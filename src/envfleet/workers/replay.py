"""Replay files, which reproduce the episode of a failed sub-environment in one process without a fleet."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import numpy as np

from envfleet.errors import EnvfleetError, Failure, after_steps
from envfleet.fleet.checks import check_reward_shape
from envfleet.fleet.layout import SpaceLayout
from envfleet.workers.builders import EnvBuilder
from envfleet.workers.env_checks import explain_result, find_reward_space, read_reset
from envfleet.workers.failures import drop_own_frames, text_of
from envfleet.workers.state import rng_state_of, set_rng_state

_FORMAT = 3
_PREFIX = "envfleet-replay-"
_MAX_FILES = 20
_MAX_STEPS = 20_000
"""Maximum number of recorded steps of a group. A longer episode cannot be replayed from its start."""

_MAX_BYTES = 32 << 20
"""Maximum number of recorded actions of a worker."""


class ReplayUnavailable(EnvfleetError):
    """Error for a replay file that cannot be read or run in this process."""

    code = "replay_unavailable"


class Origin(NamedTuple):
    """Beginning of an episode: the seed of its reset, or else the generator's state just before."""

    seed: int | None
    options: Any
    rng_state: Any
    build_seed: int | None


class EpisodeLog:
    """Start states of a group's running episodes, and the actions since then.

    Args:
        num_envs: Number of sub-environments of the group.

    Attributes:
        steps: Actions of each step, appended by the group: a list for all rows, or a dict for some.
        count: Number of steps, counted by the group.
        build_seeds: Seed with which each sub-environment was built.
        last_seeds: Seed of each sub-environment's last reset with a seed.
    """

    def __init__(self, num_envs: int) -> None:
        self.steps: collections.deque[list[Any] | dict[int, Any]] = collections.deque(maxlen=_MAX_STEPS)
        self.build_seeds: list[int | None] = [None] * num_envs
        self.last_seeds: list[int | None] = [None] * num_envs
        self.count = 0
        self._starts: list[int] = [0] * num_envs
        self._origins: list[tuple[Any, ...] | None] = [None] * num_envs  # fields of an `Origin`

    def limit(self, step_bytes: int) -> None:
        """Keep fewer steps if the actions of one take many bytes."""
        most = min(_MAX_STEPS, max(_MAX_BYTES // max(step_bytes, 1), 1))
        self.steps = collections.deque(self.steps, maxlen=most)

    def begin(self, row: int, env: gym.Env[Any, Any], seed: int | None, options: Any) -> None:
        """Record the beginning of an episode; called just before the reset."""
        if seed is not None:
            self.last_seeds[row] = seed
        self._origins[row] = seed, options, rng_state_of(env) if seed is None else None, self.build_seeds[row]
        self._starts[row] = self.count

    def resume(self, row: int) -> None:
        """Record that a row continues a restored episode, which cannot be replayed."""
        self._origins[row] = self.last_seeds[row] = None
        self._starts[row] = self.count

    def actions_of(self, row: int) -> list[Any] | None:
        """Return the actions of a row's running episode, or `None` if the first of them were dropped."""
        first = self.count - len(self.steps)
        if self._starts[row] < first:
            return None
        steps = itertools.islice(self.steps, self._starts[row] - first, None)
        return [actions[row] for actions in steps if isinstance(actions, list) or row in actions]

    def record(self, row: int, builder: EnvBuilder, verb: str, error: BaseException, env_index: int) -> bytes | str:
        """Return a pickled replay record of a row's episode, or the reason why it cannot be written."""
        origin, actions = self._origins[row], self.actions_of(row)
        if origin is None:
            return "the beginning of its episode is unknown, as after set_state()"
        if actions is None:
            return "its episode is longer than the recorded actions"
        record = ReplayRecord(
            builder, Origin(*origin), actions, verb, type(error).__qualname__, text_of(error), env_index
        )
        try:
            data: bytes = cloudpickle.dumps(record)
        except Exception as reason:  # noqa: BLE001  # whatever a foreign __reduce__ may raise
            return f"what it takes does not pickle ({type(reason).__name__}: {reason})"
        return data


@dataclasses.dataclass(frozen=True)
class ReplayRecord:
    """One episode up to a failure. A pickle: only open files you trust."""

    builder: EnvBuilder
    origin: Origin
    actions: list[Any]
    verb: str
    type_name: str
    message: str
    env_index: int
    format: int = _FORMAT

    def describe(self) -> str:
        """Return a description of the failure."""
        after = f" {after_steps(len(self.actions) - 1)} of its episode" if self.actions else ""
        message = self.message.partition("\n")[0]
        return f"sub-environment {self.env_index}: {self.type_name} in {self.verb}{after}: {message}"


@dataclasses.dataclass(frozen=True)
class ReplayReport:
    """Result of a replay: `reproduced`, and a `text` for the user."""

    reproduced: bool
    text: str


def write_replay(failure: Failure) -> tuple[Failure, str | None]:
    """Write the failure's replay record to a file that only this user may read.

    Returns:
        The failure (with the reason if no file could be written), and the path of the file.
    """
    if failure.replay is None:
        return failure, None
    folder = Path(os.environ.get("ENVFLEET_REPLAY_DIR") or tempfile.gettempdir())
    try:
        handle, name = tempfile.mkstemp(prefix=f"{_PREFIX}env{failure.env_index}-", suffix=".part", dir=folder)
        unfinished = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(failure.replay)
            path = unfinished.replace(unfinished.with_suffix(".pkl"))
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _drop_old(folder, path)
    except OSError as error:
        reason = f"{folder} is not writable ({error.strerror}), set ENVFLEET_REPLAY_DIR to a folder that is"
        return dataclasses.replace(failure, no_replay=reason), None
    return failure, str(path)


def _drop_old(folder: Path, newest: Path) -> None:
    """Remove all but the newest replay files of this user, and unfinished files of the same age."""
    user, own_files = newest.stat().st_uid, []
    for path in set(folder.glob(f"{_PREFIX}*.p*")) - {newest}:
        with contextlib.suppress(FileNotFoundError):  # another process may tidy up as well
            status = path.stat()
            if status.st_uid == user:
                own_files.append((status.st_mtime_ns, path))
    for _, path in sorted(own_files)[: 1 - _MAX_FILES]:
        path.unlink(missing_ok=True)


def load_replay(path: str) -> ReplayRecord:
    """Read a replay file. It is a pickle: only open files you trust.

    Raises:
        ReplayUnavailable: The file cannot be read in this process.
    """
    try:
        record = cloudpickle.loads(Path(path).read_bytes())
    except OSError as error:
        raise ReplayUnavailable(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise ReplayUnavailable(
            f"cannot unpickle {path}: {error!r}; run this where the environment's code can be imported"
        ) from error
    if not isinstance(record, ReplayRecord) or record.format != _FORMAT:
        raise ReplayUnavailable(f"{path} is not a replay file of this version of envfleet")
    return record


def replay(path: str, announce: Callable[[str], None] = lambda text: None) -> ReplayReport:
    """Run the episode of a replay file again, in this process and without a fleet.

    Raises:
        ReplayUnavailable: The file cannot be read, or needs shared data that no file holds.
    """
    record = load_replay(path)
    if record.builder.shared_names:
        raise ReplayUnavailable(f"{path} needs shared data {list(record.builder.shared_names)}, which no file holds")
    announce(record.describe())
    env = record.builder.build({}, record.origin.build_seed)
    try:
        _run(record, env)
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001  # whatever it raised the first time
        drop_own_frames(error)
        is_same = type(error).__qualname__ == record.type_name
        verdict = "reproduced" if is_same else f"a different error than the recorded {record.type_name}"
        return ReplayReport(is_same, f"{verdict}:\n{''.join(traceback.format_exception(error))}")
    finally:
        with contextlib.suppress(Exception):
            env.close()
    return ReplayReport(False, f"not reproduced: {len(record.actions)} steps ran without an error")


def _run(record: ReplayRecord, env: gym.Env[Any, Any]) -> None:
    origin, layout = record.origin, SpaceLayout(env.observation_space)
    arrays = [np.zeros((1, *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    write = layout.writer(arrays, [[None] for _ in range(layout.num_objects)])
    reward_shape = getattr(find_reward_space(env), "shape", ())
    set_rng_state(env, origin.rng_state)
    is_plain = origin.seed is None and origin.options is None
    observation, _ = read_reset(env.reset() if is_plain else env.reset(seed=origin.seed, options=origin.options))
    write(0, observation)
    for action in record.actions:
        result: Any = env.step(action)
        try:
            observation, reward, terminated, truncated, info = result
            write(0, observation)
            if reward_shape:
                check_reward_shape(reward, reward_shape)
            else:
                float(reward)
            bool(terminated or truncated), dict(info or {})
        except Exception as error:  # noqa: BLE001  # whatever a wrong result leads to
            raise explain_result(error, result, reward_shape) from None
