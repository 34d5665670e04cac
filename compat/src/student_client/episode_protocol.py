"""The episode protocol, that of an older turbofan service (version 0.4), as its student client speaks it."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import Any

import httpx

from envfleet.errors import InvalidArgument, ServiceRefused, ServiceUnreachable, WireError
from envfleet.remote.settings import TOKEN, find_setting

CLIENT_VERSION = "0.4"
DEFAULT_URL = "http://localhost:8001"
_NOT_MADE = frozenset({429, 503})
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_log = logging.getLogger("envfleet.student")


@dataclasses.dataclass(frozen=True)
class StudentSettings:
    """Where the service is and who asks. What is `None` is read from the environment, then from a file `.env`.

    Attributes:
        server_url: `SERVER_URL`, else the port of `envfleet serve` on this machine.
        user_token: `USER_TOKEN` or `ENVFLEET_TOKEN`.
        env_type: `ENV_TYPE`, else `DegradationEnv`.
        timeout: Seconds to wait for an answer.
    """

    server_url: str | None = None
    user_token: str | None = None
    env_type: str | None = None
    timeout: float = 30.0

    @property
    def url(self) -> str:
        """Of the service, without a slash at the end."""
        return (self.server_url or find_setting("SERVER_URL") or DEFAULT_URL).rstrip("/")

    @property
    def token(self) -> str:
        """The user's.

        Raises:
            InvalidArgument: There is none.
        """
        token = self.user_token or find_setting("USER_TOKEN", TOKEN)
        if not token:
            raise InvalidArgument("no token: pass user_token=…, or put USER_TOKEN=… into a file .env")
        return token


class StudentLink:
    """Calls to the service. It has no keys for repetitions, so only what was surely not done is asked again.

    Args:
        settings: Where and who.
        session_id: Of a session that goes on; a new one is made else.
    """

    def __init__(self, settings: StudentSettings, session_id: str | None = None) -> None:
        headers = {"User-Token": settings.token, "Content-Type": "application/json"}
        self.url = settings.url
        self._http = httpx.Client(base_url=f"{self.url}/api/v1", headers=headers, timeout=settings.timeout)
        try:
            self._compare_versions()
            self.session_id = session_id or str(self.call("POST", "/session/create")["session_id"])
        except BaseException:
            self._http.close()
            raise

    def call(self, method: str, path: str, body: Any = None, *, has_session: bool = False) -> dict[str, Any]:
        """Make a call.

        Args:
            method: Of HTTP.
            path: Below `/api/v1`.
            body: Sent as JSON.
            has_session: Whether to name the session.

        Raises:
            ServiceUnreachable: No answer; whether it was made is not known.
            ServiceRefused: The service does not want to.
            WireError: The answer is no JSON object.
        """
        headers = {"Session-ID": self.session_id} if has_session else None
        for pause_s in (*_PAUSES_S, None):
            try:
                response = self._http.request(method, path, json=body, headers=headers)
            except httpx.ConnectError as error:  # nothing was sent
                if pause_s is None:
                    raise unreachable(self.url, error) from error
            except httpx.TransportError as error:
                raise unreachable(self.url, error) from error
            else:
                if response.status_code not in _NOT_MADE or pause_s is None:
                    return read_reply(response)
            time.sleep(pause_s or 0.0)
        raise AssertionError  # the last turn returns or raises

    def close(self) -> None:
        """Drop the connection. The service has no call for this; it closes what lies idle."""
        self._http.close()

    def _compare_versions(self) -> None:
        latest = str(self.call("GET", "/version").get("latest_version", CLIENT_VERSION))
        if latest != CLIENT_VERSION:
            _log.warning("the service speaks version %s of its protocol, this client %s", latest, CLIENT_VERSION)


def unreachable(url: str, error: Exception) -> ServiceUnreachable:
    """Return the error that says that there was no answer."""
    return ServiceUnreachable(
        f"no answer from {url} ({type(error).__name__}: {error}): check the address, and that the service runs"
    )


def read_reply(response: httpx.Response) -> dict[str, Any]:
    """Read the object that a reply holds.

    Raises:
        ServiceRefused: The service refused the call.
        WireError: The reply is no JSON object.
    """
    try:
        body = response.json()
    except ValueError as error:
        raise WireError(f"{response.url.host} answered with no JSON: {response.text[:200]!r}") from error
    if response.status_code >= 300:
        detail = body.get("detail", body) if isinstance(body, dict) else body
        refused = ServiceRefused(f"the service answered {response.status_code}: {detail}")
        refused.status = response.status_code
        raise refused
    if not isinstance(body, dict):
        raise WireError(f"the service answered {body!r:.200}, expected an object")
    return body
