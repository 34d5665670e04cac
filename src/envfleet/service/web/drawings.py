"""Charts of the pages: an episode, and a score over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence

import numpy as np

from envfleet.service.web.charts import Chart, draw
from envfleet.service.web.replay import Replay


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Charts of an episode.

    Attributes:
        charts: Charts of the measurements, then of the rewards.
        legend: Word and tone of each kind of mark in them.
        text: Events of the episode, in words.
    """

    charts: tuple[Chart, ...]
    legend: tuple[tuple[str, str], ...]
    text: str


def draw_episode(replay: Replay, titles: Container[str] | None = None) -> Pictures:
    """Draw an episode.

    Args:
        replay: The episode.
        titles: Titles of the lines to draw; by default all, and rewards.
    """
    portrait, unit = replay.log.portrait(), replay.unit
    lines = [line for line in portrait.lines if titles is None or line.title in titles]
    charts = [draw(line.title, line.values, unit=line.unit, x_label=unit, marks=portrait.marks) for line in lines]
    if titles is None:
        for title, values in (
            ("reward of each decision", replay.rewards),
            ("return so far", np.cumsum(replay.rewards)),
        ):
            charts.append(draw(title, values, x_label=unit, at=portrait.ends, marks=portrait.marks))
    legend = dict.fromkeys((mark.word, mark.tone) for mark in portrait.marks)
    return Pictures(tuple(charts), tuple(legend), portrait.text)


def draw_score(history: Sequence[float]) -> Chart:
    """Draw scores over time: the best attempt so far, over the attempts themselves.

    Args:
        history: Score of each complete attempt, the oldest first.
    """
    values = np.asarray(history, np.float64)
    best = np.maximum.accumulate(values)
    return draw("score", best, x_label="ranked attempts", size=(640.0, 200.0), dots=values)
