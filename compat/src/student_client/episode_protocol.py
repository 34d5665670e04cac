"""The episode protocol, that of an older turbofan service (version 0.4), as its student client speaks it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import httpx

from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.service_link import ServiceLink
from envfleet.user_settings import TOKEN, find_setting

CLIENT_VERSION = "0.4"
DEFAULT_URL = "http://localhost:8001"
API = "/api/v1"
_PATIENCE_S = 20.0
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
        token = self.user_token or find_setting("USER_TOKEN") or find_setting(TOKEN)
        if not token:
            raise InvalidArgument("no token: pass user_token=…, or put USER_TOKEN=… into a file .env")
        return token


class StudentLink:
    """Calls to the service. They have no keys, so only what was surely not carried out is asked again.

    Args:
        settings: Where and who.
        session_id: Of a session that goes on; a new one is made else.
    """

    def __init__(self, settings: StudentSettings, session_id: str | None = None) -> None:
        self.url, self._headers = settings.url, {"User-Token": settings.token}
        self._link = ServiceLink(self.url, None, timeout_s=settings.timeout, patience_s=_PATIENCE_S, api=API)
        try:
            self._compare_versions()
            self.session_id = session_id or str(self.call("POST", "/session/create")["session_id"])
        except BaseException:
            self._link.close()
            raise

    def call(self, method: str, path: str, body: Any = None, *, has_session: bool = False) -> dict[str, Any]:
        """Make a call.

        Args:
            method: Of HTTP.
            path: Below `/api/v1`.
            body: Sent as JSON.
            has_session: Whether to name the session.

        Raises:
            ServiceUnreachable: No answer; it is unknown whether the call was carried out.
            ServiceRefused: The service refused. Also as `InvalidArgument`.
            WireError: The answer is no JSON object.
        """
        headers = {**self._headers, **({"Session-ID": self.session_id} if has_session else {})}
        return read_object(self._link.send(method, path, is_repeatable=False, json=body, headers=headers))

    def close(self) -> None:
        """Drop the connection. The service has no call for this; it closes what lies idle."""
        self._link.close()

    def _compare_versions(self) -> None:
        latest = str(self.call("GET", "/version").get("latest_version", CLIENT_VERSION))
        if latest != CLIENT_VERSION:
            _log.warning("the service speaks version %s of its protocol, this client %s", latest, CLIENT_VERSION)


def read_object(response: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises:
        WireError: It is something else.
    """
    try:
        found = response.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise WireError(f"{response.url} answered {response.text[:200]!r}, expected a JSON object")
    return found
