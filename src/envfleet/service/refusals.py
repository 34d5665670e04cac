"""Errors of the service, each with the status and code that the protocol's page lists."""

from __future__ import annotations

import logging
import textwrap
from typing import Any, ClassVar, NamedTuple

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from envfleet.errors import EnvfleetError, InvalidArgument, ResetNeeded, StepTimeout, SubEnvError, WireError, WorkerDied

_STATUS: tuple[tuple[type[EnvfleetError], int], ...] = ((WireError, 400), (ResetNeeded, 409), (InvalidArgument, 422))
_HTTP_CODES = {404: "not_found", 405: "not_allowed", 408: "too_slow", 413: "too_large"}
_UNTOLD = "the service failed to do this; its log says why"
_MAX_MESSAGE = 300
_log = logging.getLogger("envfleet.service")


class Refusal(EnvfleetError):
    """A call that is not answered.

    Attributes:
        status: HTTP status.
        code: For programs.
        retry_after_s: When to try again, if that helps.
    """

    status: ClassVar[int] = 400
    code = "refused"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Unauthorized(Refusal):
    """No token, or none that is good."""

    status = 401
    code = "unauthorized"


class Disabled(Unauthorized):
    """The token is good, but its user is disabled."""


class QuotaSpent(Refusal):
    """A limit was reached."""

    status = 403
    code = "quota"


class Forbidden(Refusal):
    """Only an administrator may."""

    status = 403
    code = "forbidden"


class NotFound(Refusal):
    """The object does not exist or belongs to another user."""

    status = 404
    code = "not_found"


class OutOfStep(Refusal):
    """The caller has another count of the fleet's events than the fleet.

    Attributes:
        seq: The fleet's.
    """

    status = 409
    code = "out_of_step"

    def __init__(self, seq: int, expected: int) -> None:
        self.seq = seq
        super().__init__(
            f"the fleet made {seq} calls, the request expects {expected}: an answer was lost or another program "
            "uses it; reset all sub-environments to continue"
        )


class EpisodeOver(Refusal):
    """A step of an episode that has ended."""

    status = 409
    code = "reset_needed"


class Closed(Refusal):
    """The fleet was closed."""

    status = 410
    code = "closed"


class Diverged(Closed):
    """The fleet was closed, because its repeated events had other results."""


class Busy(Refusal):
    """It was not the call's turn in time."""

    status = 429
    code = "busy"


class EnvFailed(Refusal):
    """An environment raised."""

    status = 500
    code = "env_failed"


def failed(error: Exception) -> EnvFailed:
    """Describe an environment that failed to its user; tracebacks are for the log."""
    if isinstance(error, StepTimeout):
        return EnvFailed(
            f"sub-environment {error.env_index} took longer than the {error.timeout_s:g} s that it may take here, and "
            "was ended; the fleet stands where it stood before the call"
        )
    if isinstance(error, WorkerDied):
        return EnvFailed("the process of the environment ended; the fleet stands where it stood before the call")
    return EnvFailed(f"the environment raised {cause_of(error)}; the service's log says more")


def cause_of(error: Exception) -> str:
    """Return the type of an error and, if an environment raised it, the beginning of its message."""
    if not isinstance(error, SubEnvError):
        return type(error).__name__
    first = error.failures[0]
    message = textwrap.shorten(first.message, _MAX_MESSAGE, placeholder="…")
    return f"{first.type_name}: {message}" if message else first.type_name


class Stopping(Refusal):
    """The service is stopping."""

    status = 503
    code = "stopping"


class Answer(NamedTuple):
    """Error response: HTTP status, code for programs, detail for people."""

    status: int
    code: str
    detail: str
    retry_after_s: float | None = None


def answer_to(error: Exception) -> Answer:
    """Return the HTTP answer to an error; log what the caller must not see."""
    if isinstance(error, RequestValidationError):
        return Answer(422, "invalid_argument", describe(error.errors()))
    if isinstance(error, HTTPException):
        return Answer(error.status_code, _HTTP_CODES[error.status_code], error.detail)
    if isinstance(error, Refusal):
        if error.status == 500:
            _log.error("%s", error, exc_info=error.__cause__)
        return Answer(error.status, error.code, str(error), error.retry_after_s)
    if isinstance(error, EnvfleetError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        if status == 500:  # participants do not get the environment's own message
            _log.error("a call failed", exc_info=error)
        return Answer(status, error.code, _UNTOLD if status == 500 else str(error))
    _log.error("the database failed", exc_info=error)
    detail = f"the database does not answer ({type(error).__name__}): try again"
    return Answer(503, "stopping", detail, retry_after_s=2.0)


def describe(errors: Any) -> str:
    """Return validation errors in one line: where, and what is wrong."""
    return "; ".join(f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in errors[:5])
