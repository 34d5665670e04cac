"""Figures of runs, and the histories that they are drawn from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from matplotlib.collections import LineCollection
from matplotlib.image import imread
from tests.unit.training.records import played

from envfleet.errors import InvalidArgument
from envfleet.training.folder import RunFolder
from envfleet.training.records import plot_runs, read_history
from envfleet.training.records.figures import draw_evaluations, draw_returns
from envfleet.training.records.tables import TableWriter

FIGURES = ("evaluations", "losses", "returns", "win_rate")


def test_histories_hold_what_was_told(run: RunFolder) -> None:
    history = read_history(run.path)
    assert (history.name, history.phases) == (run.name, [("shooting", 0), ("games", 8000)])
    assert history.updates["figure"].unique().sort().to_list() == ["critic_loss", "entropy"]
    assert history.evaluations.filter(pl.col("opponent") == "weak", pl.col("figure") == "win_rate")[
        "value"
    ].to_list() == pytest.approx([0.333, 0.473, 0.613, 0.753, 0.893])


def test_figures_are_drawn_at_the_end(run: RunFolder) -> None:
    assert sorted(path.stem for path in run.plots.glob("*")) == list(FIGURES)
    for path in run.plots.glob("*.png"):
        picture = imread(path)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.05  # there is something on it


def test_several_runs_are_drawn_into_the_same_figures(run: RunFolder, tmp_path: Path) -> None:
    other = played.make_folder(tmp_path)
    observers = [TableWriter(other)]
    played.notify(observers, played.begin(other.path), *played.rounds(last=30, seed=1))
    played.close(observers)
    files = plot_runs([run.path, other.path], tmp_path / "both")
    assert sorted(path.stem for path in files) == list(FIGURES)
    assert (tmp_path / "both" / "returns.png").read_bytes() != (run.plots / "returns.png").read_bytes()
    with pytest.raises(InvalidArgument, match=r"2 runs to compare, but no folder for the figures"):
        plot_runs([run.path, other.path])
    with pytest.raises(InvalidArgument, match=r"no run to plot"):
        plot_runs([])


def test_phases_in_plots_begin_where_the_last_one_ended(run: RunFolder) -> None:
    history = read_history(run.path)
    late = history.episodes.filter((pl.col("phase") == 0) | (pl.col("transitions") > 12_000))
    assert dataclasses.replace(history, episodes=late).phases == [("shooting", 0), ("games", 8000)]


def test_one_evaluation_alone_has_its_interval(run: RunFolder) -> None:
    history = read_history(run.path)
    first = history.evaluations.filter(pl.col("transitions") == history.evaluations["transitions"].min())
    figure = draw_evaluations([dataclasses.replace(history, evaluations=first)])
    assert figure is not None
    for panel in figure.axes:
        (lines,) = [drawn for drawn in panel.collections if isinstance(drawn, LineCollection)]
        ((_, low), (_, high)) = lines.get_segments()[0]
        assert high > low


def test_return_curves_are_smoothed_within_phases(run: RunFolder) -> None:
    history = read_history(run.path)
    jump = history.episodes.with_columns(pl.col("return") + 1000 * pl.col("phase"))
    figure = draw_returns([dataclasses.replace(history, episodes=jump)])
    assert figure is not None
    raw, smooth = (np.asarray(line.get_ydata(), float) for line in figure.axes[0].lines[:2])
    assert [line.get_alpha() for line in figure.axes[0].lines[:2]] == [0.3, None]
    ends = jump["return"].to_numpy()
    np.testing.assert_allclose(raw, ends.reshape(-1, len(ends) // len(raw)).mean(1))
    assert np.abs(np.diff(smooth[: len(smooth) // 2])).mean() < 0.3 * np.abs(np.diff(raw[: len(raw) // 2])).mean()
    assert ((smooth < 500) == (raw < 500)).all()  # nothing of one phase gets into another
    smooth_mean, raw_mean = smooth.mean(), raw.mean()
    assert smooth_mean == pytest.approx(raw_mean, abs=1.0)


def test_a_run_that_has_just_begun_has_nothing_to_plot(tmp_path: Path) -> None:
    folder = played.make_folder(tmp_path)
    observers = [TableWriter(folder)]
    played.notify(observers, played.begin(folder.path))
    played.close(observers)
    assert plot_runs([folder.path]) == []
