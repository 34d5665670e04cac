"""The episode protocol of an older turbofan service (version 0.4), as in its student client."""

from __future__ import annotations

import logging
from typing import Any

from envfleet.errors import InvalidArgument, WireError
from envfleet.remote.service_link import ServiceLink
from envfleet.user_settings import TOKEN, find_setting

CLIENT_VERSION = "0.4"
DEFAULT_URL = "http://localhost:8001"
_log = logging.getLogger("envfleet.student")


class StudentLink:
    """Calls to the service. They lack keys, so only calls that certainly were not carried out are repeated.

    What is `None` is read from the environment, then from a file `.env`.

    Args:
        server_url: Where it is; `SERVER_URL`, else the port of `envfleet serve` on this machine.
        user_token: Token of the user; `USER_TOKEN` or `ENVFLEET_TOKEN` by default.
        timeout: Seconds to wait for an answer.
        patience_s: Seconds to ask again what was not carried out.

    Attributes:
        url: URL of the service, without a slash at the end.
        token: The user's.

    Raises:
        InvalidArgument: The token is missing.
    """

    def __init__(
        self, server_url: str | None, user_token: str | None, *, timeout: float = 30.0, patience_s: float = 20.0
    ) -> None:
        self.url = (server_url or find_setting("SERVER_URL") or DEFAULT_URL).rstrip("/")
        token = user_token or find_setting("USER_TOKEN") or find_setting(TOKEN)
        if not token:
            raise InvalidArgument("no token: pass user_token=…, or put USER_TOKEN=… into a file .env")
        self.token, self._headers = token, {"User-Token": token}
        self._link = ServiceLink(self.url, None, timeout_s=timeout, patience_s=patience_s, api="/api/v1")

    def open_session(self, session_id: str | None = None) -> str:
        """Set the session of all further calls, by default a new one, and return its id."""
        latest = str(self.call("GET", "/version").get("latest_version", CLIENT_VERSION))
        if latest != CLIENT_VERSION:
            _log.warning("the service speaks version %s of its protocol, this client %s", latest, CLIENT_VERSION)
        session_id = session_id or str(self.call("POST", "/session/create")["session_id"])
        self._headers["Session-ID"] = session_id
        return session_id

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Make a call.

        Args:
            method: HTTP method.
            path: Path below `/api/v1`.
            body: Body, sent as JSON.

        Raises:
            ServiceUnreachable: No answer; it is unknown whether the call was carried out.
            ServiceRefused: The service refused. Also as `InvalidArgument`.
            WireError: The answer is not a JSON object.
        """
        response = self._link.send(method, path, is_repeatable=False, json=body, headers=self._headers)
        try:
            reply = response.json()
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise WireError(f"{method} {path} was answered with {response.text[:200]!r}, expected a JSON object")
        return reply

    def close(self) -> None:
        """Drop the connection. The service closes idle sessions; its protocol lacks a call for this."""
        self._link.close()
