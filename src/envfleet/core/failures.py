"""Turn an exception in a sub-environment into a `Failure`, on the side where it happened."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from envfleet.errors import EnvfleetError, Failure, InvalidArgument, SubEnvError

MAX_TEXT = 200

_PACKAGE = Path(__file__).parents[1]
_OWN = (str(_PACKAGE / "core"), str(_PACKAGE / "making"))
"""Where code lies that runs sub-environments, and whose frames say nothing about what they did."""


class StepInterrupted(BaseException):
    """Raised inside a sub-environment that overran its deadline.

    A `BaseException`, so that no `except Exception` of the environment's own keeps it.
    """


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
    """Describe `error` in values that always pickle; `replay` is a replay record, or why there is none."""
    leave_out_own_frames(error)
    is_told = error.__traceback__ is None and error.__cause__ is None  # by its text, and that is all there is
    return Failure(
        env_index=env_index,
        worker=worker,
        verb=verb,
        type_name=type(error).__qualname__,
        message=text_of(error),
        traceback="" if is_told else "".join(traceback.format_exception(error)),
        pid=os.getpid(),
        seed=seed,
        step=step,
        action=None if action is None else shorten(action),
        pickled=_pickle(error),
        replay=replay if isinstance(replay, bytes) else None,
        no_replay=replay if isinstance(replay, str) else None,
        is_timeout=isinstance(error, StepInterrupted),
        error=error,
    )


def leave_out_own_frames(error: BaseException) -> None:
    """Have the tracebacks of an error, and of those it came of, begin where a sub-environment's own code does.

    What the fleet found out itself, about a value that a sub-environment returned, has no such place; then nothing is
    left of its traceback, nor of errors behind it that are as much the fleet's own.
    """
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop()
        seen.add(id(one))
        theirs = _without_own(one.__traceback__)
        if theirs is not None or isinstance(one, EnvfleetError):
            one.__traceback__ = theirs
        if isinstance(one, EnvfleetError):
            is_hidden = one.__suppress_context__  # which setting a cause would switch on
            one.__cause__, one.__context__ = _foreign(one.__cause__), _foreign(one.__context__)
            one.__suppress_context__ = is_hidden
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None and id(other) not in seen]


def _foreign(error: BaseException | None) -> BaseException | None:
    return None if error is None or _without_own(error.__traceback__) is None else error


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def tell_repair(failure: Failure) -> dict[str, Any]:
    """What the infos tell of a failure that was repaired."""
    text = f"{failure.summary()}\n{failure.traceback}" if failure.is_timeout else failure.summary()
    return {"env_error": text, "restarted": True}


def original_exception(failure: Failure) -> BaseException | None:
    """The exception as it was raised, or `None` where it came from elsewhere and did not survive pickling."""
    if failure.error is not None:
        return failure.error
    if failure.pickled is None:
        return None
    try:
        error = cloudpickle.loads(failure.pickled)
    except Exception:  # noqa: BLE001 - whatever a foreign __reduce__ may raise; the failure's text says it all
        return None
    return error if isinstance(error, BaseException) else None


def sub_env_error(failures: Sequence[Failure], replay_file: str | None = None) -> SubEnvError:
    """The error for some failures, chained to the original of the first where that survived."""
    error = SubEnvError(failures, replay_file)
    error.__cause__ = original_exception(error.failures[0])
    return error


def build_error(failures: Sequence[Failure]) -> EnvfleetError:
    """The error for sub-environments that were not built: a mistake in what was given is told as just that."""
    original = original_exception(failures[0])
    return original if isinstance(original, InvalidArgument) else sub_env_error(failures)


def text_of(error: BaseException) -> str:
    """The text of any exception."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - an exception whose own __str__ is broken must not hide itself
        return f"(its text cannot be shown: {second!r})"


def shorten(action: Any) -> str:
    """`repr` of an action, cut to what fits a message."""
    try:
        text = repr(action)
    except Exception as error:  # noqa: BLE001 - as above
        text = f"(cannot be shown: {error!r})"
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _pickle(error: BaseException) -> bytes | None:
    try:
        data: bytes = cloudpickle.dumps(error)
        # An exception whose __init__ takes other arguments than it hands to Exception pickles but does not unpickle.
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - any type may fail in its own way; then the text has to do
        return None
    return data
