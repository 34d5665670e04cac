"""The user's score: what their last episodes amount to."""

from __future__ import annotations

from typing import Any

from envfleet.errors import MissingDependency, ServiceRefused
from envfleet.remote.service_link import ServiceLink
from student_client.episode_protocol import API, StudentSettings, read_object

_COLUMNS = {  # of the table, and their names at the service; what it leaves out is None
    "total_episodes": "total_episodes",
    "total_reward": "total_reward",
    "avg_reward": "avg_reward",
    "best_reward": "best_reward",
    "maintenance_actions": "total_maintenance",
    "avg_episode_length": "avg_steps",
    "failure_rate": "failure_rate",
    "last_episode_date": "last_episode_date",
}


def get_leaderboard_score(
    user_token: str | None = None,
    server_url: str | None = None,
    limit: int = 100,
    return_dataframe: bool = True,
) -> Any:
    """Return what a user's last episodes amount to.

    Args:
        user_token: Whose; `USER_TOKEN` of the environment or of a file `.env` if not given.
        server_url: Where the service is; `SERVER_URL` if not given, else port 8001 of this machine.
        limit: Number of episodes that count.
        return_dataframe: Whether to return a `pandas.DataFrame` of one row, or a dict.

    Returns:
        `user_token`, `total_episodes`, `total_reward`, `avg_reward`, `best_reward`, `maintenance_actions`,
        `avg_episode_length` (flights), `failure_rate` (0 to 1), `last_episode_date`. Empty if there are no episodes.

    Raises:
        ValueError: The service refused, or its answer makes no sense.
        ConnectionError: No answer.
        MissingDependency: pandas is not installed.
    """
    settings = StudentSettings(server_url, user_token)
    metrics = _read_metrics(settings, limit)
    row = {"user_token": settings.token, **{name: metrics.get(key) for name, key in _COLUMNS.items()}}
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


def _read_metrics(settings: StudentSettings, limit: int) -> dict[str, Any]:
    link = ServiceLink(settings.url, None, timeout_s=settings.timeout, patience_s=0.0, api=API)
    try:
        answer = link.send("GET", f"/user/{settings.token}/score?limit={limit}")
        metrics: dict[str, Any] = read_object(answer).get("metrics") or {}
    except ServiceRefused as error:
        raise ValueError(f"no score ({error}): check user_token and server_url") from error
    finally:
        link.close()
    return metrics
