"""Turn an exception in a sub-environment into a `Failure`, on the side where it happened."""

from __future__ import annotations

import os
import pickle
import traceback
from typing import Any

import cloudpickle

from envfleet.core.builders import EnvBuilder
from envfleet.core.replay import ReplayRecord
from envfleet.core.trace import Trace
from envfleet.errors import Failure

MAX_TEXT = 200


class StepInterrupted(BaseException):
    """Raised inside a sub-environment that overran its deadline; a `BaseException`, so that no `except Exception` of its own keeps it."""


def make_failure(
    error: BaseException,
    *,
    verb: str,
    env_index: int,
    worker: int,
    seed: int | None = None,
    step: int | None = None,
    action: Any = None,
    replay: bytes | None = None,
) -> Failure:
    """Describe `error` in values that always pickle."""
    return Failure(
        env_index=env_index,
        worker=worker,
        verb=verb,
        type_name=type(error).__qualname__,
        message=_text_of(error),
        traceback="".join(traceback.format_exception(error)),
        pid=os.getpid(),
        seed=seed,
        step=step,
        action=None if action is None else _shorten(action),
        pickled=_pickle(error),
        replay=replay,
        is_timeout=isinstance(error, StepInterrupted),
    )


def original_exception(failure: Failure) -> BaseException | None:
    """The exception as it was raised, or `None` where it does not survive pickling."""
    if failure.pickled is None:
        return None
    try:
        error = cloudpickle.loads(failure.pickled)
    except Exception:  # whatever a foreign __reduce__ may raise; the failure's text says all that matters
        return None
    return error if isinstance(error, BaseException) else None


def replay_bytes(
    builder: EnvBuilder, trace: Trace, row: int, env_index: int, verb: str, error: BaseException
) -> bytes | None:
    """Pickle what `envfleet replay` needs, or `None` if the episode was too long or does not pickle."""
    origin, actions = trace.origins[row], trace.actions_of(row)
    if origin is None or actions is None:
        return None
    record = ReplayRecord(builder, origin, actions, verb, type(error).__qualname__, _text_of(error), env_index)
    try:
        return cloudpickle.dumps(record)
    except Exception:  # an action or option that does not pickle: there is nothing to write
        return None


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # an exception whose own __str__ is broken must not hide itself
        return f"(its text cannot be shown: {second!r})"


def _shorten(action: Any) -> str:
    try:
        text = repr(action)
    except Exception as error:  # as above
        text = f"(cannot be shown: {error!r})"
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _pickle(error: BaseException) -> bytes | None:
    try:
        data = cloudpickle.dumps(error)
        # An exception whose __init__ takes other arguments than it hands to Exception pickles but does not unpickle.
        pickle.loads(data)
    except Exception:
        return None
    return data
