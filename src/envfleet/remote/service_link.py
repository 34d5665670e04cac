"""HTTP to one service: a call is sent until it is answered or patience ends, and refusals become errors."""

from __future__ import annotations

import random
import threading
import time
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
from envfleet.packing.values import MEDIA_TYPE, unpack

API: Final = "/api/v2"
CONNECT_TIMEOUT_S: Final = 10.0
_PASSING = frozenset({429, 502, 503, 504})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _GROWTH = 0.05, 5.0, 2.0
_SHOWN = 200  # characters of an answer that nobody understands


class ServiceLink:
    """A connection that is kept alive. Several threads may use it.

    Args:
        url: Of the service, `http://…` or `https://…`.
        token: Sent with every call; `None` for calls that need none.
        timeout_s: Seconds to wait for an answer before a call is sent again.
        patience_s: Seconds after which an error is raised.

    Attributes:
        url: Without a slash at the end.
        requests: Requests sent, those that were not answered included.
        retries: How many of them were repetitions.
        sent_bytes: Of bodies.
        received_bytes: Likewise.

    Raises:
        InvalidArgument: The URL is none of a service.
    """

    def __init__(self, url: str, token: str | None, *, timeout_s: float = 60.0, patience_s: float = 120.0) -> None:
        self.url = url.rstrip("/")
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"url={url!r} is no URL ({error}): pass one such as http://host:8001") from error
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise InvalidArgument(f"url={url!r}: pass one such as http://host:8001")
        self.requests = self.retries = self.sent_bytes = self.received_bytes = 0
        self._patience_s = patience_s
        self._closing = threading.Event()
        headers = {"Accept": f"{MEDIA_TYPE}, application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        )

    def post(self, path: str, body: bytes, *, patience_s: float | None = None, reach_s: float | None = None) -> Any:
        """Make a call that may be repeated, as its body has a key.

        Args:
            path: Below `/api/v2`.
            body: Packed.
            patience_s: Instead of the link's.
            reach_s: Instead of that, as long as it never came to waiting for an answer: the address may be wrong.

        Returns:
            The unpacked answer.

        Raises:
            ServiceUnreachable: There was no answer; it may have been made all the same.
            ServiceRefused: The service does not want to; nothing was done. Also as `InvalidArgument`, `ResetNeeded` and
                `FleetClosed`, where those say it.
            WireError: The answer is not one of an envfleet service.
        """
        return self._read(self._send("POST", path, body, patience_s, reach_s))

    def get(self, path: str, *, patience_s: float | None = None) -> Any:
        """Ask for something that is told in MessagePack; as `post`."""
        return self._read(self._send("GET", path, None, patience_s))

    def get_json(self, path: str) -> Any:
        """Ask for something that is told in JSON; as `post`."""
        response = self._send("GET", path, None, None)
        if response.status_code >= 300:
            raise self._error(response)
        try:
            return response.json()
        except ValueError as error:
            raise WireError(f"{self.url} answered with no JSON: {response.text[:_SHOWN]!r}") from error

    def stop(self) -> None:
        """Have calls that wait to be repeated end."""
        self._closing.set()

    def close(self) -> None:
        """Drop the connection, and what is under way."""
        self._closing.set()
        self._http.close()

    # ------------------------------------------------------------------ sending

    def _send(
        self, method: str, path: str, body: bytes | None, patience_s: float | None, reach_s: float | None = None
    ) -> httpx.Response:
        """Send a request until something final comes back."""
        begun = time.monotonic()
        whole_s = self._patience_s if patience_s is None else patience_s
        patience_s = whole_s if reach_s is None else min(reach_s, whole_s)
        pause_s, attempts = _FIRST_PAUSE_S, 0
        while True:
            attempts += 1
            problem, wait_s, response = self._try(method, path, body)
            if response is not None and response.status_code not in _PASSING:
                return response
            if problem.startswith(httpx.ReadTimeout.__name__):  # somebody is there, and busy
                patience_s = whole_s
            # Not all at once, where many wait for the same service.
            pause = max(wait_s, pause_s * random.uniform(0.75, 1.25))
            waited_s = time.monotonic() - begun
            if waited_s + pause > patience_s or self._closing.wait(pause):
                times = "once" if attempts == 1 else f"{attempts} times in {waited_s:.1f} s"
                if response is not None:
                    told, advice = f"{self.url} put the call off", "Try again later"
                else:
                    told, advice = f"no answer from {self.url}", "Check the address, and that the service runs"
                raise ServiceUnreachable(
                    f"{told}, asked {times}; the last time: {problem}. {advice}. A call that is made again is never "
                    "made twice"
                )
            pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
            self.retries += 1

    def _try(self, method: str, path: str, body: bytes | None) -> tuple[str, float, httpx.Response | None]:
        """Send a request once: what was wrong, seconds that the service asks to wait, and the response if any."""
        self.requests += 1
        self.sent_bytes += len(body or b"")
        headers = {} if body is None else {"Content-Type": MEDIA_TYPE}
        try:
            response = self._http.request(method, f"{API}{path}", content=body, headers=headers)
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ServiceUnreachable(
                    f"{self.url} has a certificate that is not trusted here ({error}): check the address"
                ) from error
            return f"{type(error).__name__}: {error}".rstrip(": "), 0.0, None
        except httpx.DecodingError as error:
            raise WireError(f"{self.url} sent a body that cannot be decompressed: {error}") from error
        self.received_bytes += len(response.content)
        if response.status_code not in _PASSING:
            return "", 0.0, response
        _, detail = _refusal(response)
        after = response.headers.get("Retry-After", "")
        return f"{response.status_code} {detail}", float(after) if after.isdigit() else 0.0, response

    # ------------------------------------------------------------------ reading

    def _read(self, response: httpx.Response) -> Any:
        if response.status_code >= 300:
            raise self._error(response)
        kind = response.headers.get("Content-Type", "nothing")
        if not kind.startswith(MEDIA_TYPE):
            raise WireError(
                f"{self.url} answered with {kind}, expected {MEDIA_TYPE}: {response.text[:_SHOWN]!r}; check that the "
                "address is that of an envfleet service"
            )
        return unpack(response.content)

    def _error(self, response: httpx.Response) -> EnvfleetError:
        status, (reason, detail) = response.status_code, _refusal(response)
        if status == 422:
            return InvalidArgument(detail)
        if status == 410:
            return FleetClosed(detail)
        if reason == "reset_needed":
            return ResetNeeded(detail)
        if status == 401:
            detail = f"{self.url} does not accept the token ({detail}): check it, or ask for another"
        elif 300 <= status < 400:
            detail = f"{self.url} points to {response.headers.get('Location', 'elsewhere')}: pass that address"
        elif not reason:
            detail = f"{self.url} answered {status}: {detail}; check that the address is that of an envfleet service"
        error = ServiceRefused(detail)
        error.status, error.reason = status, reason
        return error


def _refusal(response: httpx.Response) -> tuple[str, str]:
    """Code and detail of a refusal; no code where it is not one of an envfleet service."""
    try:
        body = response.json()
        return str(body["code"]), str(body["detail"])
    except (ValueError, KeyError, TypeError):
        return "", repr(response.text[:_SHOWN])
