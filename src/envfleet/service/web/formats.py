"""Numbers and times as pages show them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from envfleet.registry import find_hosting


def figure(value: float | None, decimals: int = 0) -> str:
    """Return a number for people.

    Args:
        value: The number; `None` for one that there is not.
        decimals: Digits behind the point.

    >>> figure(-1234.56, 1), figure(20_000), figure(None)
    ('−1,234.6', '20,000', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    text = f"{value:,.{decimals}f}"
    return f"−{text[1:]}" if text.startswith("-") else text


def moment(at: float | None) -> str:
    """Return a time, UTC.

    >>> moment(1_700_000_000.0), moment(None)
    ('14 Nov 2023, 22:13', '–')
    """
    return "–" if at is None else f"{_utc(at):%d %b %Y, %H:%M}"


def short(env: str) -> str:
    """Return an environment's id, without the namespace `envfleet/` if the name is unique.

    >>> short("envfleet/GridWorld-v0"), short("envfleet/CartPole-v1")
    ('GridWorld-v0', 'envfleet/CartPole-v1')
    """
    name = env.removeprefix("envfleet/")
    return env if name in gym.registry else name


def duration(episode: Mapping[str, Any]) -> int:
    """Length of an episode in its environment's own unit."""
    counted: int = episode["details"].get(find_hosting(episode["env"]).unit, episode["length"])
    return counted


def ending(episode: Mapping[str, Any]) -> tuple[str, str]:
    """Return how an episode ended: a word and its tone."""
    words: tuple[str, str] = find_hosting(episode["env"]).ending(episode["outcome"], episode["details"])
    return words


def iso(at: float) -> str:
    """Return a time for machines, UTC.

    >>> iso(1_700_000_000.0)
    '2023-11-14T22:13:20+00:00'
    """
    return _utc(at).isoformat(timespec="seconds")


def _utc(at: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(at, dt.UTC)
