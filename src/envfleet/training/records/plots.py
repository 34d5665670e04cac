"""Drawing the figures of runs into files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envfleet.errors import InvalidArgument
from envfleet.training.records.drawing import save_figure, style
from envfleet.training.records.figures import (
    Histories,
    draw_evaluations,
    draw_losses,
    draw_returns,
    draw_speed,
    draw_win_rates,
)
from envfleet.training.records.history import read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_runs(runs: Sequence[str | Path], out: str | Path | None = None) -> list[Path]:
    """Draw the figures of runs; several runs are drawn into the same ones.

    Args:
        runs: Folders of runs.
        out: Folder for the figures; `None` for `plots` in that of the only run.

    Returns:
        The files: returns, win rates, evaluations, losses, speed; those that there is something to draw for.

    Raises:
        InvalidArgument: There is no run, one is none, or there are several and no `out`.
        MissingDependency: matplotlib is not installed.
    """
    if not runs:
        raise InvalidArgument("no run to plot: pass one or more folders of runs")
    if out is None and len(runs) > 1:
        raise InvalidArgument(f"{len(runs)} runs to compare, but no folder for the figures: pass one as `out` (--out)")
    histories = [read_history(run) for run in runs]
    folder = Path(runs[0]) / "plots" if out is None else Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Callable[[Histories], Figure | None]] = {
        "returns": draw_returns,
        "win_rate": draw_win_rates,
        "evaluations": draw_evaluations,
        "losses": draw_losses,
        "speed": draw_speed,
    }
    with style():
        drawn = {name: draw(histories) for name, draw in figures.items()}
        return [save_figure(figure, folder / f"{name}.png") for name, figure in drawn.items() if figure is not None]
