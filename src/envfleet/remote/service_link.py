"""HTTP to one service: a call is sent until it is answered or patience ends, and refusals become errors."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import httpx

from envfleet.errors import (
    EnvfleetError,
    FleetClosed,
    InvalidArgument,
    ResetNeeded,
    ServiceRefused,
    ServiceUnreachable,
    WireError,
)
from envfleet.remote.codec import MEDIA_TYPE, unpack
from envfleet.remote.hot_connection import Answer, HotConnection

API: Final = "/api/v2"
CONNECT_TIMEOUT_S: Final = 10.0
_PUT_OFF = frozenset({429, 503})  # said by the service, which did nothing
_PASSING = _PUT_OFF | {502, 504}  # said by something in between, too
_PACKED = {"Content-Type": MEDIA_TYPE}
_SAID_FIRST = frozenset({"", "unauthorized"})  # reasons that say nothing about a call that was made before
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.05, 5.0, 2.0
_LEAST_TIMEOUT_S = 0.1
_SHOWN = 200  # characters of an answer that makes no sense
_make_tls = functools.cache(httpx.create_ssl_context)  # reading certificates takes longer than a call


class ServiceLink:
    """A connection that is kept alive. Several threads may use it.

    Args:
        url: URL of the service, `http://…` or `https://…`.
        token: Token sent with every call, or `None`.
        timeout_s: Seconds to wait for an answer before a call is sent again.
        patience_s: Seconds after which an error is raised; 0 to ask once, and wait for `timeout_s`.
        api: Prefix of all paths.

    Attributes:
        url: Without a slash at the end.
        requests: Requests sent, those without an answer included.
        retries: Number of requests that were repetitions.

    Raises:
        InvalidArgument: The URL is not that of a service.
    """

    def __init__(
        self, url: str, token: str | None, *, timeout_s: float = 60.0, patience_s: float = 120.0, api: str = API
    ) -> None:
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"url={url!r} is not a URL ({error}): pass one such as http://host:8001") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidArgument(f"url={url!r}: pass one such as http://host:8001")
        self.requests = self.retries = 0
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._closing = threading.Event()
        headers = {"Accept": f"{MEDIA_TYPE}, application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        whole = httpx.URL(f"{self.url}{api}")
        self._http = httpx.Client(base_url=whole, headers=headers, verify=_make_tls())
        self._hot = HotConnection(whole, {**headers, **_PACKED}) if HotConnection.is_possible(whole) else None

    def post(self, path: str, body: bytes, *, patience_s: float | None = None) -> Any:
        """Make a call that has a key in its body, so that it may be repeated.

        Args:
            path: Path below the prefix.
            body: Packed.
            patience_s: Value that replaces the link's `patience_s`.

        Returns:
            The unpacked answer.

        Raises:
            ServiceUnreachable: No answer arrived; the call may have been carried out nevertheless.
            ServiceRefused: The service refused; nothing was done. Also as `InvalidArgument`, `ResetNeeded` and
                `FleetClosed`.
            WireError: The answer is not one of an envfleet service.
        """
        return self._unpack(self.send("POST", path, patience_s, content=body))

    def get(self, path: str, *, patience_s: float | None = None) -> Any:
        """Read something that is sent as MessagePack; as `post`."""
        return self._unpack(self.send("GET", path, patience_s))

    def stop(self) -> None:
        """Have calls that wait to be repeated fail."""
        self._closing.set()

    def close(self) -> None:
        """Drop the connection, and what is under way."""
        self._closing.set()
        if self._hot is not None:
            self._hot.close()
        self._http.close()

    def send(
        self, method: str, path: str, patience_s: float | None = None, *, is_repeatable: bool = True, **request: Any
    ) -> httpx.Response | Answer:
        """Send a request until it is answered, and return the answer, unless that is a refusal; raises as `post`.

        Args:
            method: HTTP method.
            path: Path below the prefix.
            patience_s: Value that replaces the link's `patience_s`.
            is_repeatable: True to repeat it although it may have been carried out.
            **request: `content`, which is packed, or `json` and `headers`, as httpx has them.
        """
        begun = time.monotonic()
        patience_s = self._patience_s if patience_s is None else patience_s
        pause_s, attempts, is_unclear = _FIRST_PAUSE_S, 0, False
        while True:
            attempts, wait_s = attempts + 1, 0.0
            left_s = begun + patience_s - time.monotonic() if patience_s else self._timeout_s
            left_s = max(_LEAST_TIMEOUT_S, min(self._timeout_s, left_s))
            self.requests += 1
            try:
                response = self._exchange(method, path, left_s, request)
            except httpx.RequestError as error:
                is_unclear |= not isinstance(error, _NOT_SENT)
                outcome, advice = f"no answer from {self.url}", "Check the address, and that the service runs"
                problem = f"{type(error).__name__}: {error}".rstrip(": ")
                is_final = not is_repeatable and not isinstance(error, _NOT_SENT)
            else:
                if response.status_code < 300:
                    return response
                if response.status_code not in (_PASSING if is_repeatable else _PUT_OFF):
                    is_unclear |= response.status_code >= 500  # said by something in between, whatever the service did
                    raise self._error(response, is_unclear=is_unclear and method == "POST")
                outcome, advice = f"{self.url} put the call off", "Try again later"
                problem, is_final = f"{response.status_code} {_refusal(response)[1]}", False
                after = response.headers.get("retry-after", "")
                wait_s = float(after) if after.isdigit() else 0.0
            # Not all at once, where many wait for the same service.
            pause = max(wait_s, pause_s * random.uniform(0.75, 1.25))
            waited_s = time.monotonic() - begun
            if is_final or waited_s + pause > patience_s or self._closing.wait(pause):
                times = "once" if attempts == 1 else f"{attempts} times in {waited_s:.1f} s"
                again = ". A call that is made again is never carried out twice" if is_repeatable else ""
                raise ServiceUnreachable(f"{outcome}, asked {times}; the last time: {problem}. {advice}{again}")
            pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
            self.retries += 1

    def _exchange(
        self, method: str, path: str, timeout_s: float, request: Mapping[str, Any]
    ) -> httpx.Response | Answer:
        """Send a request once and return its answer."""
        connect_s, body = min(timeout_s, CONNECT_TIMEOUT_S), request.get("content")
        if body is not None and self._hot is not None:
            answer = self._hot.post(path, body, timeout_s=timeout_s, connect_s=connect_s)
            if answer is not None:
                return answer
        if body is not None:
            request = {**request, "headers": _PACKED}
        return self._http.request(method, path, timeout=httpx.Timeout(timeout_s, connect=connect_s), **request)

    def _unpack(self, response: httpx.Response | Answer) -> Any:
        kind = response.headers.get("content-type", "nothing")
        if not kind.startswith(MEDIA_TYPE):
            raise WireError(
                f"{self.url} answered with {kind}, expected {MEDIA_TYPE}: {response.text[:_SHOWN]!r}; check that the "
                "address is that of an envfleet service"
            )
        return unpack(response.content)

    def _error(self, response: httpx.Response | Answer, *, is_unclear: bool) -> EnvfleetError:
        """Return the error for an answer; `is_unclear` is True if the call may have been carried out before."""
        status, (reason, detail) = response.status_code, _refusal(response)
        if status == 422:
            return InvalidArgument(detail)
        if status == 410:
            return FleetClosed(detail)
        if reason == "reset_needed":
            return ResetNeeded(detail)
        if status == 401:
            advice = "" if reason else ": check it, or ask for another"  # an envfleet service says what to do
            detail = f"{self.url} does not accept the token ({detail}){advice}"
        elif 300 <= status < 400:
            detail = f"{self.url} points to {response.headers.get('location', 'elsewhere')}: pass that address"
        elif not reason or detail == "Not Found":  # a path that an envfleet service does not have
            detail = f"{self.url} answered {status}: {detail}; check that the address is that of an envfleet service"
        if is_unclear and reason in _SAID_FIRST:
            return ServiceUnreachable(f"no answer, so it is unknown whether the call was carried out: {detail}")
        error = ServiceRefused(detail)
        error.status, error.reason = status, reason
        return error


def _refusal(response: httpx.Response | Answer) -> tuple[str, str]:
    """Return code and detail of a refusal; the text, and no code, where it is not one of an envfleet service."""
    try:
        body = response.json()
        return str(body.get("code", "")), str(body["detail"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", repr(response.text[:_SHOWN])
