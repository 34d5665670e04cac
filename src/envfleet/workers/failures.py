"""Exceptions of sub-environments as picklable values: created in the worker, raised in the owner."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from envfleet.errors import EnvfleetError, Failure

_MAX_TEXT = 200
_OWN = tuple(f"{Path(__file__).parents[1] / package}{os.sep}" for package in ("fleet", "workers"))
"""Folders of the code that runs sub-environments; its frames are left out of tracebacks."""


def is_from_signal(error: BaseException) -> bool:
    """Return whether a signal handler of this program raised an error, which is then no failure of an environment."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def make_failure(
    error: BaseException,
    *,
    verb: str,
    env_index: int,
    worker: int,
    seed: int | None = None,
    step: int | None = None,
    action: Any = None,
    replay: bytes | str | None = None,
) -> Failure:
    """Return a picklable description of `error`; `replay` is a replay record, or the reason for its absence."""
    drop_own_frames(error)
    is_message_only = error.__traceback__ is None and error.__cause__ is None
    return Failure(
        env_index=env_index,
        worker=worker,
        verb=verb,
        type_name=type(error).__qualname__,
        message=text_of(error),
        traceback="" if is_message_only else "".join(traceback.format_exception(error)),
        pid=os.getpid(),
        seed=seed,
        step=step,
        action=None if action is None else _shorten(action),
        pickled=_pickle(error),
        replay=replay if isinstance(replay, bytes) else None,
        no_replay=replay if isinstance(replay, str) else None,
        error=error,
    )


def drop_own_frames(error: BaseException) -> None:
    """Remove this library's first frames from the tracebacks of an error and its causes."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        seen.add(id(one))
        theirs = _foreign_part(one.__traceback__)
        if theirs is not None or isinstance(one, EnvfleetError):
            one.__traceback__ = theirs
        is_hidden = one.__suppress_context__
        one.__cause__, one.__context__ = _foreign(one.__cause__), _foreign(one.__context__)
        one.__suppress_context__ = is_hidden
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None and id(other) not in seen]


def _foreign(error: BaseException | None) -> BaseException | None:
    """Return an error that was not raised by code of this library alone."""
    is_own = error is not None and error.__traceback__ is not None and _foreign_part(error.__traceback__) is None
    return None if is_own else error


def _foreign_part(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def repair_info(failure: Failure) -> dict[str, Any]:
    """Return the infos of a sub-environment that failed and was rebuilt."""
    return {"env_error": failure.summary(), "restarted": True}


def text_of(error: BaseException) -> str:
    """Return the text of any exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001  # whatever a foreign __str__ raises
        return f"(its text cannot be shown: {second!r})"


def _shorten(action: Any) -> str:
    try:
        text = repr(action)
    except Exception as error:  # noqa: BLE001  # whatever a foreign __repr__ raises
        text = f"(cannot be shown: {error!r})"
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def _pickle(error: BaseException) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001  # some exceptions pickle and then fail to unpickle
        return None
    return data
