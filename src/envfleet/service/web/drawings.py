"""Which charts a page shows: an engine's sensors, any other episode, and a score over time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from envfleet.envs.turbofan import FAILURE, NAMES, SOLD, UNITS
from envfleet.service.web.charts import Chart, Look, Mark, draw
from envfleet.service.web.replay import Replay

FEW_SENSORS = ("HPC_Tout", "HPC_Pout_st", "LPT_Tin")
"""Those that tell most of wear."""

_WINDOW = 100
_WORDS = {SOLD: "sale", FAILURE: "failure"}


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Charts of an episode.

    Attributes:
        charts: Of sensors or observations, then of rewards.
        kinds: Kinds of marks in them, for the legend.
        repairs: Flights at which an engine was repaired.
        end: What ended an engine, with the flight; empty if nothing did.
    """

    charts: tuple[Chart, ...]
    kinds: tuple[str, ...]
    repairs: tuple[int, ...]
    end: str


def picture(replay: Replay, *, sensors: Sequence[str] = NAMES, has_rewards: bool = True) -> Pictures:
    """Draw an episode.

    Args:
        replay: The episode.
        sensors: Which, of an engine.
        has_rewards: Whether to draw rewards, too.
    """
    if replay.engine is None:
        return Pictures(tuple(_observations(replay) + _rewards(replay, "steps")), (), (), "")
    log = replay.engine
    rows, ends = log.sensors, log.ends
    marks = [Mark(float(flight), "repair") for flight in log.repairs]
    end = ""
    if log.reason in _WORDS:
        marks.append(Mark(float(ends[-1]), _WORDS[log.reason]))
        end = f"{_WORDS[log.reason]} at flight {ends[-1]}"
    charts = [
        draw(name, rows[:, NAMES.index(name)], Look(unit=UNITS[NAMES.index(name)]), marks=marks) for name in sensors
    ]
    if has_rewards:
        charts += _rewards(replay, "flights", at=ends.astype(np.float64), marks=marks)
    kinds = tuple(dict.fromkeys(mark.kind for mark in marks))
    return Pictures(tuple(charts), kinds, tuple(int(flight) for flight in log.repairs), end)


def _observations(replay: Replay) -> list[Chart]:
    look = Look(x_label="steps")
    charts = [draw(f"observation[{k}]", column, look) for k, column in enumerate(replay.observations.T)]
    if len(replay.actions):
        charts.append(draw("action", replay.actions, look))
    return charts


def _rewards(replay: Replay, x_label: str, **more: object) -> list[Chart]:
    bars = Look(x_label=x_label, is_bars=True, has_zero=True)
    line = Look(x_label=x_label, has_zero=True)
    return [
        draw("reward of each decision", replay.rewards, bars, **more),  # type: ignore[arg-type]  # passed on as given
        draw("return so far", np.cumsum(replay.rewards), line, **more),  # type: ignore[arg-type]  # passed on as given
    ]


def draw_score(history: Sequence[float]) -> Chart:
    """Draw a score over time: the mean of the last 100 ranked episodes after each, over the episodes themselves.

    Args:
        history: What each ranked episode counts, the oldest first.
    """
    values = np.asarray(history, np.float64)
    sums = np.concatenate(([0.0], np.cumsum(values)))
    after = np.arange(1, len(values) + 1)
    before = np.maximum(after - _WINDOW, 0)
    means = (sums[after] - sums[before]) / (after - before)
    return draw("score", means, Look(x_label="ranked episodes", size=(640.0, 200.0)), dots=values)
