"""The figures of README.md: a table and a plot, made from the tables of docs/benchmarks.md without measuring anything.

python -m benchmarks.headlines
"""

from __future__ import annotations

import re
from pathlib import Path

from envfleet.files import replacing, write_whole

ROOT = Path(__file__).parents[1]
MARK = "<!-- headlines -->\n"
PLOT = ROOT / "docs" / "assets" / "speed.png"
_COLUMNS = {
    ("process", "Gymnasium AsyncVectorEnv"): "`process` ÷ Gymnasium AsyncVectorEnv",
    ("process", "SB3 SubprocVecEnv"): "`process` ÷ SB3 SubprocVecEnv",
    ("serial", "Gymnasium SyncVectorEnv"): "`serial` ÷ Gymnasium SyncVectorEnv",
}
_COLORS = {"envfleet": "#d55e00", "EnvPool": "#0072b2", "SyncVectorEnv": "#999999", "AsyncVectorEnv": "#cc79a7"}


def read_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table with a text in its head, without the line below the head."""
    start = next(match.start() for match in re.finditer(r"^\|.*$", page, re.MULTILINE) if heading in match[0])
    lines = page[start:].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [lines[0], *lines[2:]]]


def headline_table(page: str) -> str:
    """Return the table of README.md: a row per workload, ratios of one run."""
    head, *rows = read_rows(page, "| against |")
    ratios = {(row[0].strip("`"), row[1]): row[2:] for row in rows}
    lines = [f"| | {' | '.join(_COLUMNS.values())} |", "|---" * (1 + len(_COLUMNS)) + "|"]
    for index, workload in enumerate(head[2:]):
        lines.append(f"| {workload} | {' | '.join(f'{ratios[pair][index]} ×' for pair in _COLUMNS)} |")
    return "\n".join(lines) + "\n"


def task_rates(page: str, num_envs: str = "8") -> dict[str, dict[str, float]]:
    """Return steps per second by MuJoCo task and library."""
    head, *rows = read_rows(page, "| task |")
    names = ["envfleet" if name == "native" else name for name in head[2:]]
    rates, task = dict[str, dict[str, float]](), ""
    for row in rows:
        task = row[0] or task
        if row[1] == num_envs:
            rates[task] = {name: float(cell.replace(",", "")) for name, cell in zip(names, row[2:], strict=True)}
    return rates


def draw_rates(rates: dict[str, dict[str, float]], path: Path) -> None:
    """Draw steps per second as labeled bars."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 12, "savefig.dpi": 144}):  # 9 pixels on a phone
        figure = Figure((5.0, 5.6), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        libraries = list(next(iter(rates.values())))
        for place, name in enumerate(libraries):
            offsets = [task + (place - (len(libraries) - 1) / 2) * 0.21 for task in range(len(rates))]
            values = [row[name] for row in rates.values()]
            bars = axes.barh(offsets, values, 0.2, label=name, color=_COLORS[name])
            axes.bar_label(bars, [_short(value) for value in values], padding=2)
        axes.set_yticks(range(len(rates)), list(rates))
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.set_title("steps per second\n8 sub-environments, 2 cores", loc="left", fontsize=12)
        axes.legend(frameon=False, loc="lower right")
        with replacing(path) as unfinished:
            figure.savefig(unfinished, format="png")


def _short(value: float) -> str:
    return f"{value / 1e3:.1f}k" if value < 1e4 else f"{value / 1e3:.0f}k"


def main() -> None:
    """Write the block of README.md and the plot."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    readme = ROOT / "README.md"
    before, _, after = readme.read_text(encoding="utf-8").split(MARK)
    write_whole(readme, f"{before}{MARK}\n{headline_table(page)}\n{MARK}{after}")
    draw_rates(task_rates(page), PLOT)


if __name__ == "__main__":
    main()
