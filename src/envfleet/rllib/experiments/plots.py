"""Plots of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envfleet.files import replacing
from envfleet.rllib.experiments.comparison import Comparison

_COLOURS = {"vec": "#c2571a", "packed_vec": "#1f6f8b"}
_STYLES = {"vec": {"marker": "s", "linestyle": "--"}, "packed_vec": {"marker": "o", "linestyle": "-"}}
_PIECES = 8  # of the breakdown; what is left is drawn as one


def plot_throughput(comparisons: Sequence[Comparison], file: Path) -> None:
    """Draw samples per second over sub-environments: a line per way and batch size.

    Args:
        comparisons: What was measured.
        file: Where to: .png, .pdf or .svg.
    """
    figure, axes = _figure()
    sizes = sorted({found.batch_size for found in comparisons})
    for way, colour in _COLOURS.items():
        for rank, batch_size in enumerate(sizes):
            line = [found for found in comparisons if (found.way, found.batch_size) == (way, batch_size)]
            if line:
                axes.plot(
                    [found.num_envs for found in line],
                    [found.samples_per_s for found in line],
                    color=colour,
                    **_STYLES[way],
                    alpha=0.35 + 0.65 * (rank + 1) / len(sizes),
                    label=f"{way}, batches of {batch_size:,}",
                )
    axes.set(xscale="log", yscale="log", xlabel="sub-environments", ylabel="samples per second of whole iterations")
    counts = sorted({found.num_envs for found in comparisons})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_minor_formatter(lambda rate, _: f"{rate:,.0f}" if f"{rate:e}"[0] in "25" else "")
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(frameon=False)
    _write(figure, file)


def plot_breakdown(comparisons: Sequence[Comparison], file: Path) -> None:
    """Draw the seconds of connector pieces per iteration, stacked, a bar per way and number of sub-environments.

    Args:
        comparisons: What was measured; those of the largest batch are drawn.
        file: Where to: .png, .pdf or .svg.
    """
    figure, axes = _figure()
    largest = max(found.batch_size for found in comparisons)
    bars = sorted((found for found in comparisons if found.batch_size == largest), key=lambda f: (f.num_envs, f.way))
    totals: dict[str, float] = {}
    for found in bars:
        for piece, seconds in found.connectors.items():
            totals[piece] = totals.get(piece, 0.0) + seconds
    shown = sorted(totals, key=lambda piece: -totals[piece])[:_PIECES]
    heights = [0.0] * len(bars)
    for rank, piece in enumerate([*shown, "all others"]):
        parts = [_seconds(found, piece, shown) for found in bars]
        axes.bar(range(len(bars)), parts, bottom=heights, label=piece.replace("_", " "), color=f"C{rank}", width=0.7)
        heights = [height + part for height, part in zip(heights, parts, strict=True)]
    for place, height in enumerate(heights):
        axes.annotate(f"{height:.2f}", (place, height), ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(bars)), [f"{found.way}\n{found.num_envs:,}" for found in bars], fontsize=8)
    axes.set(
        xlabel="way and sub-environments",
        ylabel=f"seconds in connectors per iteration of {largest:,} samples",
        ylim=(0, max(heights) * 1.08),
    )
    figure.legend(frameon=False, fontsize=8, loc="outside upper center", ncols=2)
    _write(figure, file)


def _seconds(found: Comparison, piece: str, shown: list[str]) -> float:
    if piece != "all others":
        return found.connectors.get(piece, 0.0)
    return sum(seconds for name, seconds in found.connectors.items() if name not in shown)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _write(figure: Any, file: Path) -> None:
    with replacing(file) as unfinished:
        figure.savefig(unfinished, dpi=150)
