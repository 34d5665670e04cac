"""A tournament as a picture: ratings, and who scored how much against whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from envfleet.training.evaluation.tournament import Tournament
from envfleet.training.records.drawing import COLOURS, new_figure, save_figure, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERS = 16  # players, above which numbers in the cells could not be read
_LETTER = 0.08  # inches


def plot_tournament(tournament: Tournament, path: str | Path) -> Path:
    """Draw ratings with two standard deviations, and the matrix of scores.

    Names of players are paths of any length, so they stand once; the matrix has their ranks.

    Args:
        tournament: To draw.
        path: Of the PNG.

    Returns:
        The path.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    with style():
        return save_figure(draw_tournament(tournament), Path(path))


def draw_tournament(tournament: Tournament) -> Figure:
    """Draw what `plot_tournament` saves, in the style that is entered."""
    count, longest = len(tournament.names), max(map(len, tournament.names))
    width = 3.5 + 0.25 * count + _LETTER * longest / 2
    figure, (left, right) = new_figure(2, width=width, height=2.2 + 0.36 * count)
    _draw_ratings(left, tournament)
    _draw_scores(right, tournament)
    return figure


def _draw_ratings(panel: Axes, tournament: Tournament) -> None:
    for place, rating in enumerate(tournament.ratings):
        colour = "#777777" if rating.is_anchor else COLOURS[0]
        reach = 0.0 if rating.is_anchor else 2 * rating.sigma
        panel.errorbar(rating.mu, place, xerr=reach, fmt="o", color=colour, capsize=3, markersize=5)
    panel.set_yticks(range(len(tournament.names)), [f"{name}  {rank}" for rank, name in enumerate(tournament.names, 1)])
    panel.set_ylim(len(tournament.names) - 0.5, -0.5)
    panel.set_xlabel("rating ± 2 standard deviations; grey ones stand fixed")
    panel.set_title("Ratings")


def _draw_scores(panel: Axes, tournament: Tournament) -> None:
    count = len(tournament.names)
    shares = (tournament.wins + tournament.draws / 2) / tournament.games
    np.fill_diagonal(shares, np.nan)
    panel.imshow(shares, vmin=0, vmax=1, cmap="PuOr_r", aspect="auto")
    ranks = [str(rank) for rank in range(1, count + 1)]
    panel.set_xticks(range(count), ranks)
    panel.set_yticks(range(count), ranks)
    panel.set_xlabel("opponent; a draw is half a win")
    panel.grid(visible=False)
    panel.set_title("Score of row against column")
    for row, column in np.ndindex(count, count) if count <= _MOST_NUMBERS else ():
        if row != column:
            share = shares[row, column]
            colour = "white" if abs(share - 0.5) > 0.35 else "black"
            panel.text(column, row, f"{share:.0%}", ha="center", va="center", fontsize=7, color=colour)
