"""The user's score: the figures of the best ranked attempt."""

from __future__ import annotations

import contextlib
from typing import Any

from envfleet.errors import MissingDependency, ServiceRefused
from student_client.episode_protocol import StudentLink

_COLUMNS = (
    "total_episodes", "total_reward", "avg_reward", "best_reward", "maintenance_actions", "avg_episode_length",
    "failure_rate", "last_episode_date",
)  # fmt: skip
_NAMES = {"maintenance_actions": "total_maintenance", "avg_episode_length": "avg_steps"}
"""Columns that have another name at the service; what it leaves out is `None`."""


def get_leaderboard_score(
    user_token: str | None = None,
    server_url: str | None = None,
    limit: int = 100,
    return_dataframe: bool = True,
) -> Any:
    """Return the figures of a user's best ranked attempt.

    Args:
        user_token: Token of the user; by default `USER_TOKEN` of the environment or of a file `.env`.
        server_url: Where the service is; `SERVER_URL` if not given, else port 8001 of this machine.
        limit: Ignored: all episodes of an attempt count.
        return_dataframe: True to return a `pandas.DataFrame` of one row; otherwise a dict is returned.

    Returns:
        `user_token`, `total_episodes`, `total_reward`, `avg_reward`, `best_reward`, `maintenance_actions`,
        `avg_episode_length` (flights), `failure_rate` (0 to 1), `last_episode_date`. Empty without a complete attempt.

    Raises:
        ValueError: The service refused, or its answer makes no sense.
        ConnectionError: No answer.
        MissingDependency: pandas is not installed.
    """
    link = StudentLink(server_url, user_token, patience_s=0.0)
    with contextlib.closing(link):
        try:
            metrics = link.call("GET", f"/user/{link.token}/score").get("metrics") or {}
        except ServiceRefused as error:
            raise ValueError(f"no score ({error}): check user_token and server_url") from error
    row = {"user_token": link.token, **{name: metrics.get(_NAMES.get(name, name)) for name in _COLUMNS}}
    if not return_dataframe:
        return row if metrics else {}
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependency(
            "get_leaderboard_score needs pandas, which is not installed: pip install pandas, or pass "
            "return_dataframe=False for a dict"
        ) from error
    return pd.DataFrame([row] if metrics else [])
