"""What `kernels.py` prints and draws."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kernel_seats as seats

if TYPE_CHECKING:
    from kernel_compile import Compiling
    from kernel_limits import Peak, Work
    from kernels import Samples

FLOORS = {8: 15.0, 1024: 80.0, 131_072: 150.0}
CALL_CEILING_S = 3e-6

# Okabe and Ito's palette: warm and strong for ours, cool or grey for peers.
_STYLES: dict[str, dict[str, Any]] = {
    "kernel-2": {"color": "#d55e00", "marker": "o", "label": "envfleet, 2 threads"},
    "kernel-1": {"color": "#e69f00", "marker": "s", "label": "envfleet, 1 thread"},
    seats.ROLLOUT: {"color": "#8c2d04", "marker": "*", "label": "envfleet, fused rollouts of random actions"},
    "envpool-2": {"color": "#cc79a7", "marker": "D", "label": "EnvPool, 2 threads"},
    "envpool-1": {"color": "#cc79a7", "marker": "d", "label": "EnvPool, 1 thread", "linestyle": ":"},
    seats.NATIVE: {"color": "#0072b2", "marker": "^", "label": "Gymnasium CartPoleVectorEnv"},
    seats.LOOP: {"color": "#777777", "marker": "v", "label": "bare Python loop"},
}


class Findings:
    """Samples by number of sub-environments and contender."""

    def __init__(self, samples: Sequence[Samples]) -> None:
        self._found = {(one.num_envs, one.contender): one for one in samples}
        self.sizes = sorted({size for size, _ in self._found})

    def get(self, num_envs: int, contender: str) -> Samples | None:
        """One contender's samples, if it was measured."""
        return self._found.get((num_envs, contender))

    def ours(self, num_envs: int) -> Samples | None:
        """Ours as `make` makes it."""
        return self.get(num_envs, seats.our_name())

    def ratio(self, num_envs: int, others: Sequence[str]) -> float | None:
        """Our rate over the best of the others', within each round; the median of the rounds."""
        ours = self.ours(num_envs)
        theirs = [found.rates for name in others if (found := self.get(num_envs, name))]
        if ours is None or not theirs:
            return None
        return statistics.median(rate / max(rest) for rate, *rest in zip(ours.rates, *theirs, strict=True))


# --- Words ------------------------------------------------------------------------------------------------------------


def report(
    samples: Sequence[Samples], work: Work, peaks: dict[int, Peak], compiling: Sequence[Compiling]
) -> tuple[list[str], bool]:
    """Write the tables; also tells whether a floor was missed."""
    found = Findings(samples)
    floors, has_missed = _floors(found)
    lines = ["CartPole, transitions a second", *_rates(found), "", *floors]
    lines += ["", *_limits(found, work, peaks)]
    lines += ["", "First make() and reset(), CPU time: nothing compiled / from the cache"]
    lines += [f"  {one.name:<36} {one.cold_s:6.1f} s  {one.cached_s:6.2f} s" for one in compiling]
    return lines, has_missed


def _rates(found: Findings) -> list[str]:
    names = [name for name in _NAMES if any(found.get(size, name) for size in found.sizes)]
    lines = [f"  {'':<20}" + "".join(f"{size:>12,}" for size in found.sizes)]
    for name in names:
        cells = [found.get(size, name) for size in found.sizes]
        lines.append(f"  {name:<20}" + "".join(f"{_short(cell.rate) if cell else '–':>12}" for cell in cells))
    return lines


_NAMES = (
    *(seats.our_name(count, copy=copy) for count in (None, 1, 2) for copy in (True, False)),
    seats.ROLLOUT,
    seats.envpool_name(1),
    seats.envpool_name(2),
    seats.NATIVE,
    seats.LOOP,
)


def _floors(found: Findings) -> tuple[list[str], bool]:
    envpool = [seats.envpool_name(1), seats.envpool_name(2)]
    lines, has_missed = [], False
    for size in found.sizes:
        ratios = [found.ratio(size, others) for others in (envpool, [seats.NATIVE], [seats.LOOP])]
        told = [f"{ratio:8.1f} × {name}" if ratio else "" for ratio, name in zip(ratios, _PEERS, strict=True)]
        floor = FLOORS.get(size)
        mark = ""
        if floor is not None and ratios[0] is not None:
            has_missed |= ratios[0] < floor
            mark = f"   {'met' if ratios[0] >= floor else 'MISSED'}: at least {floor:.0f} × EnvPool"
        lines.append(f"{size:>10,} sub-environments: " + "".join(f"{one:<26}" for one in told) + mark)
    single = found.ours(1)
    if single is not None:
        call_s = statistics.median(single.call_s)
        has_missed |= call_s > CALL_CEILING_S
        mark = "met" if call_s <= CALL_CEILING_S else "MISSED"
        lines.append(
            f"fleet.step with 1 sub-environment: {call_s * 1e6:.2f} µs   {mark}: at most {CALL_CEILING_S * 1e6:.0f} µs"
        )
    return lines, has_missed


_PEERS = ("EnvPool", "Gymnasium", "bare loop")


def limits_ns(num_envs: int, call_s: float, work: Work, peak: Peak) -> dict[str, float]:
    """What one step of one sub-environment takes at least, by what limits it, in nanoseconds.

    Args:
        num_envs: Sub-environments.
        call_s: What a call costs with one sub-environment.
        work: Of a step.
        peak: Of the machine, with as many threads.
    """
    return {
        "call": call_s / num_envs * 1e9,
        "arithmetic": max(work.arithmetic / peak.arithmetic_per_s, work.divisions / peak.divisions_per_s) * 1e9,
        "memory": work.bytes / peak.bytes_per_s[work.bytes * num_envs] * 1e9,
    }


def _limits(found: Findings, work: Work, peaks: dict[int, Peak]) -> list[str]:
    lines = [
        "How far from the limit, per transition",
        f"  a step: {work.bytes} bytes; {work.arithmetic} sums, products, comparisons; {work.divisions} divisions",
        f"  {'sub-environments':>18} {'threads':>8} {'measured':>11} {'call':>9} {'arithmetic':>11} {'memory':>9}",
    ]
    single = found.ours(1)
    for size in found.sizes:
        for count in (1, 2):
            sample = found.get(size, seats.our_name(count))
            if sample is None or single is None:
                continue
            bounds = limits_ns(size, min(single.call_s), work, peaks[count])
            each_ns = min(sample.call_s) / size * 1e9  # the best round, as the peaks are
            binding = max(bounds, key=lambda name: bounds[name])
            cells = "".join(f"{bounds[name]:>8.2f} ns" for name in ("call", "arithmetic", "memory"))
            lines.append(
                f"  {size:>18,} {count:>8} {each_ns:>8.2f} ns{cells}  {binding} binds: {bounds[binding] / each_ns:.0%}"
            )
    return lines


def _short(value: float) -> str:
    for letter, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g}"


# --- The figure -------------------------------------------------------------------------------------------------------


def plot(samples: Sequence[Samples], work: Work, peaks: dict[int, Peak], path: Path) -> None:
    """Draw CartPole: steps a second of everyone, and a step's time against what limits it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    found = Findings(samples)
    style = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.dpi": 200,
        "lines.markersize": 4,
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10.0, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_rates(left, found)
        _draw_limits(right, found, work, peaks)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xticks(found.sizes, [_count(size) for size in found.sizes])
            axes.minorticks_off()
            axes.set_xlabel("sub-environments")
            axes.grid(visible=True, color="#e4e4e4", linewidth=0.6)
            axes.set_axisbelow(True)
        figure.savefig(path)


def _draw_rates(axes: Any, found: Findings) -> None:
    for name, style in _STYLES.items():
        points = [(size, one) for size in found.sizes if (one := found.get(size, name))]
        if points:
            sizes, ones = zip(*points, strict=True)
            axes.plot(sizes, [one.rate for one in ones], **style)
            axes.fill_between(
                sizes,
                [min(one.rates) for one in ones],
                [max(one.rates) for one in ones],
                color=style["color"],
                alpha=0.15,
                linewidth=0,
            )
    axes.set_ylabel("transitions per second")
    axes.set_title("CartPole, whole step() calls", loc="left", fontsize=10, fontweight="bold")
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside upper center", ncols=4)


def _draw_limits(axes: Any, found: Findings, work: Work, peaks: dict[int, Peak]) -> None:
    both = {size: {count: found.get(size, seats.our_name(count)) for count in (1, 2)} for size in found.sizes}
    threads = {size: max((one.rate, count) for count, one in ours.items() if one)[1] for size, ours in both.items()}
    points = [(size, one) for size, ours in both.items() if (one := ours[threads[size]])]
    single = found.ours(1)
    if single is None:
        return
    call_s = min(single.call_s)
    sizes = [size for size, _ in points]
    axes.plot(
        sizes,
        [min(one.call_s) / size * 1e9 for size, one in points],
        color="#d55e00",
        marker="o",
        label="measured, best round, the better number of threads",
    )
    colours = {"call": "#777777", "arithmetic": "#0072b2", "memory": "#009e73"}
    labels = {
        "call": "one call from Python, shared by all",
        "arithmetic": f"arithmetic: {work.arithmetic} operations, {work.divisions} divisions",
        "memory": f"memory: {work.bytes} bytes",
    }
    bounds = {size: limits_ns(size, call_s, work, peaks[threads[size]]) for size in sizes}
    for key, colour in colours.items():
        axes.plot(sizes, [bounds[size][key] for size in sizes], color=colour, linestyle="--", label=labels[key])
    axes.set_ylim(bottom=0.5 * min(bounds[size]["arithmetic"] for size in sizes) / 4)
    axes.set_ylabel("nanoseconds per transition")
    axes.set_title("How far from the limits", loc="left", fontsize=10, fontweight="bold")
    axes.legend(frameon=False, fontsize=8, loc="upper right")


def _count(size: int) -> str:
    if size >= 2**20:
        return f"{size // 2**20}M"
    return f"{size // 1024}k" if size >= 1024 else str(size)
