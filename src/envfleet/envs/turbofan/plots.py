"""Plots of one engine: sensors over flights, and rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hosting import Line, Mark, Portrait
from envfleet.envs.turbofan.kernel import FAILURE, REPAIR, SOLD
from envfleet.envs.turbofan.sensors import NAMES, NUM_SENSORS, UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDS = {SOLD: ("sale", "good"), FAILURE: ("failure", "bad")}
_BLUE, _GREEN, _ORANGE, _RED = "#2f6db5", "#2e8b57", "#d9822b", "#c0392b"


@dataclasses.dataclass
class EngineLog:
    """History of one engine, decision by decision; filled by `add`.

    Attributes:
        blocks: Sensor rows of each decision, `(rows, 9)`.
        actions: Action of each decision.
        rewards: Reward of each decision.
        reason: 0 while it runs, 1 sold, 2 failure.
        degradation: Degradation at the end of each decision, if it was revealed.
    """

    blocks: list[NDArray[Any]] = dataclasses.field(default_factory=list)
    actions: list[int] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    reason: int = 0
    degradation: list[float] = dataclasses.field(default_factory=list)

    def add(
        self, observation: NDArray[Any], action: int, reward: float, *, info: Mapping[str, Any] | None = None
    ) -> None:
        """Add one decision.

        Args:
            observation: Resulting observation, `(step_size, 9)`, or `(9,)`, used for every flight; of longer rows only
                the sensors are used.
            action: The action.
            reward: The block's reward.
            info: The infos of that engine: `num_rows`, `reason`, and `degradation` if revealed.
        """
        info = info or {}
        observation = np.asarray(observation)
        rows = observation.reshape(-1, observation.shape[-1])[:, :NUM_SENSORS]
        num_rows = int(info.get("num_rows", len(rows)))
        self.blocks.append(rows.repeat(num_rows, axis=0) if observation.ndim == 1 else rows[:num_rows])
        self.actions.append(int(action))
        self.rewards.append(float(reward))
        self.reason = int(info.get("reason", self.reason))
        if "degradation" in info:
            self.degradation.append(float(info["degradation"]))

    @property
    def sensors(self) -> NDArray[Any]:
        """Sensors of all flights, `(flights, 9)`."""
        return np.concatenate(self.blocks) if self.blocks else np.zeros((0, NUM_SENSORS), np.float32)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Number of flights after each decision, `(decisions,)`."""
        return np.cumsum([len(block) for block in self.blocks], dtype=np.int64)

    @property
    def repairs(self) -> NDArray[np.int64]:
        """Flights at which it was repaired."""
        starts = self.ends - [len(block) for block in self.blocks]
        chosen: NDArray[np.int64] = starts[np.asarray(self.actions, np.int64) == REPAIR] + 1
        return chosen

    def portrait(self) -> Portrait:
        """Return a plot of sensors, repairs and the end over flights, for a web page."""
        ends, rows, repairs = self.ends, self.sensors, self.repairs.tolist()
        marks, sentences = [Mark(flight, "repair", "warn") for flight in repairs], []
        if repairs:
            sentences.append(f"Repaired at flight {', '.join(map(str, repairs))}.")
        if self.reason in _ENDS:
            marks.append(Mark(int(ends[-1]), *_ENDS[self.reason]))
            sentences.append(f"{marks[-1].word.capitalize()} at flight {ends[-1]}.")
        lines = [Line(name, rows[:, k], UNITS[k]) for k, name in enumerate(NAMES)]
        return Portrait(lines, ends, marks, " ".join(sentences))


def plot_sensors(log: EngineLog, *, figure: Figure | None = None) -> Figure:
    """Draw sensors over flights, one panel each; repairs are dashed, the end is marked.

    Args:
        log: Log of the engine.
        figure: Figure to draw to; a new one by default.
    """
    figure = figure or _figure(12.0, 6.1)
    panels = figure.subplots(3, 3, sharex=True)
    flights = np.arange(1, len(log.sensors) + 1)
    for k, (panel, name) in enumerate(zip(panels.flat, NAMES, strict=True)):
        panel.plot(flights, log.sensors[:, k], color=_BLUE, linewidth=1.0)
        panel.set_title(f"{name} ({UNITS[k]})" if UNITS[k] else name, fontsize=9, loc="left")
        panel.tick_params(labelsize=7)
        panel.ticklabel_format(useOffset=False, style="plain")
        _mark(panel, log)
    for panel in panels[-1]:
        panel.set_xlabel("flights", fontsize=8)
    _legend(figure, panels.flat[0])
    return figure


def plot_rewards(log: EngineLog, *, figure: Figure | None = None) -> Figure:
    """Draw the reward of each decision, and their cumulative sum; on a new figure by default."""
    figure = figure or _figure(8.0, 3.2)
    panel = figure.subplots()
    sizes = [max(1, len(block)) for block in log.blocks]
    colors = [_BLUE if reward >= 0.0 else _RED for reward in log.rewards]
    panel.bar(log.ends - np.asarray(sizes), log.rewards, sizes, align="edge", color=colors, alpha=0.6)
    panel.plot(log.ends, np.cumsum(log.rewards), color="black", linewidth=1.2, label="sum")
    panel.set_xlabel("flights")
    panel.set_ylabel("reward")
    _mark(panel, log)
    _legend(figure, panel)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _mark(panel: Axes, log: EngineLog) -> None:
    for number, flight in enumerate(log.repairs):
        panel.axvline(flight, color=_ORANGE, linestyle="--", linewidth=0.9, label="repair" if number == 0 else None)
    if log.reason == SOLD:
        panel.axvline(log.ends[-1], color=_GREEN, linewidth=1.4, label="sale")
    if log.reason == FAILURE:
        panel.axvline(log.ends[-1], color=_RED, linewidth=1.4, label="failure")


def _legend(figure: Figure, panel: Axes) -> None:
    handles, labels = panel.get_legend_handles_labels()
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False)
