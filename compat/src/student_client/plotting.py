"""Pictures of an engine's observations and rewards, shown as pyplot does it: in a notebook, or in a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.turbofan import FLY, NAMES, SELL, SOLD, plots
from envfleet.errors import InvalidArgument


def plot_observations(
    observations: Sequence[Any],
    actions: Sequence[int] | NDArray[Any] | None = None,
    sensor_names: Sequence[str] | None = None,
    figsize: tuple[float, float] = (12.0, 4.0),
    title: str = "Observation Dimensions Over Time",
) -> None:
    """Show the sensors over flights, a panel for each, with repairs and the sale.

    Args:
        observations: Result of each step, `(flights, 9)` or `(9,)`; the first may be a reset's.
        actions: One for each step.
        sensor_names: Titles of the panels.
        figsize: Inches that a row of panels takes.
        title: Above all of them.

    Raises:
        InvalidArgument: Actions and observations do not go together.
    """
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(figsize[0], 3 * figsize[1]), layout="constrained")
    plots.plot_sensors(_log(observations, actions), figure=figure).suptitle(title)
    for panel, name in zip(figure.axes, sensor_names or (), strict=False):
        panel.set_title(name, fontsize=9, loc="left")
    plt.show()


def plot_rewards(
    rewards: Sequence[float] | NDArray[Any],
    actions: Sequence[int] | NDArray[Any] | None = None,
    figsize: tuple[float, float] = (12.0, 6.0),
    title: str = "Step Rewards Over Time",
) -> None:
    """Show the reward of every step, and their sum.

    Args:
        rewards: One for each step.
        actions: One for each step.
        figsize: Inches.
        title: Above the picture.

    Raises:
        InvalidArgument: Actions and rewards do not go together.
    """
    from matplotlib import pyplot as plt

    log = _log([np.zeros(len(NAMES))] * len(rewards), actions, rewards)
    figure = plots.plot_rewards(log, figure=plt.figure(figsize=figsize, layout="constrained"))
    figure.axes[0].set_xlabel("step")
    figure.suptitle(f"{title} (sum: {sum(rewards):.1f})")
    plt.show()


def _log(
    observations: Sequence[Any],
    actions: Sequence[int] | NDArray[Any] | None,
    rewards: Sequence[float] | NDArray[Any] | None = None,
) -> plots.EngineLog:
    """Collect the steps of one engine; where there is an observation too many, the first is a reset's."""
    steps, chosen = len(observations), [FLY] * len(observations) if actions is None else list(actions)
    if rewards is None and len(chosen) == steps - 1:
        chosen = [FLY, *chosen]
    if len(chosen) != steps:
        raise InvalidArgument(f"{len(chosen)} actions for {steps} steps: pass one for each step")
    log = plots.EngineLog(reason=SOLD if SELL in chosen[-1:] else 0)
    earned = [0.0] * steps if rewards is None else rewards
    for observation, action, reward in zip(observations, chosen, earned, strict=True):
        log.add(observation, action, reward)
    return log
