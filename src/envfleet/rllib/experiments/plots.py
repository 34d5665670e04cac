"""Plots of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from envfleet.files import replacing
from envfleet.rllib.experiments.training import Iteration

_STYLES = {"vec": "s--", "packed_vec": "o-"}
_PIECES = 8  # of the breakdown; what is left is drawn as one


def plot_throughput(measured: Sequence[Iteration], file: Path) -> None:
    """Draw samples per second over sub-environments: a line per way and batch size.

    Args:
        measured: Iterations, of which each stands for its plan.
        file: File to write: .png, .pdf or .svg.
    """
    figure, axes = _figure()
    for way, batch_size in sorted({(iteration.plan.way, iteration.plan.batch_size) for iteration in measured}):
        line = [each for each in measured if (each.plan.way, each.plan.batch_size) == (way, batch_size)]
        counts, rates = [iteration.plan.num_envs for iteration in line], [iteration.samples_per_s for iteration in line]
        axes.loglog(counts, rates, _STYLES[way], label=f"{way}, batches of {batch_size:,}")
    axes.set(xlabel="sub-environments", ylabel="samples per second of whole iterations")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    _write(figure, file)


def plot_breakdown(measured: Sequence[Iteration], file: Path) -> None:
    """Draw the seconds of connector pieces per iteration, stacked, a bar per way and number of sub-environments.

    Args:
        measured: Iterations, of which each stands for its plan; those of the largest batch are drawn.
        file: File to write: .png, .pdf or .svg.
    """
    figure, axes = _figure()
    largest = max(iteration.plan.batch_size for iteration in measured)
    bars = sorted(
        (iteration for iteration in measured if iteration.plan.batch_size == largest),
        key=lambda f: (f.plan.num_envs, f.plan.way),
    )
    names = sorted({piece for iteration in bars for piece in iteration.connectors})
    seconds = np.array([[iteration.connectors.get(piece, 0.0) for iteration in bars] for piece in names])
    order = np.argsort(-seconds.sum(axis=1))
    shown, others = order[:_PIECES], order[_PIECES:]
    parts = [*((names[k].replace("_", " "), seconds[k]) for k in shown), ("all others", seconds[others].sum(axis=0))]
    heights = np.zeros(len(bars))
    for name, part in parts:
        drawn = axes.bar(range(len(bars)), part, bottom=heights, label=name, width=0.7)
        heights += part
    axes.bar_label(drawn, [f"{height:.2f}" for height in heights], fontsize=8)
    axes.set_xticks(
        range(len(bars)), [f"{iteration.plan.way}\n{iteration.plan.num_envs:,}" for iteration in bars], fontsize=8
    )
    axes.set(xlabel="way and sub-environments", ylabel=f"seconds in connectors per iteration of {largest:,} samples")
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
    _write(figure, file)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _write(figure: Any, file: Path) -> None:
    with replacing(file) as unfinished:
        figure.savefig(unfinished, dpi=150)
