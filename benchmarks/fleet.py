"""The full comparison: sizes × workloads × workers, envfleet and its peers in the same runs.

    python benchmarks/fleet.py OUT            # everything, about half an hour
    python benchmarks/fleet.py OUT --quick    # a subset, about two minutes

Writes OUT/fleet.json (see envfleet.bench.results for its form), OUT/fleet.png, a plot per workload and OUT/report.txt.
How to read them: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from envfleet.bench.child import ChildFailed
from envfleet.bench.contenders import CONTENDERS, PEER_NAMES, Contender, EnvFleet
from envfleet.bench.plot import plot_report
from envfleet.bench.report import count, machine_line, show_report
from envfleet.bench.results import Report, figures_json
from envfleet.bench.rounds import Contest, require_buildable, run_contests
from envfleet.bench.workloads import BUILT_IN, resolve
from envfleet.files import write_whole
from envfleet.machine import whole_cores

SIZES = (1, 2, 8, 64, 256)
QUICK = (("cheap", (8, 64)), ("medium", (8,)), ("image", (8,)), ("dict", (8,)))

ROUNDS = 3

VARIED_SIZES = (8, 64)
"""Where those take part, too, that differ from another contender in one thing: threads, worker counts."""

ONLY_SIZES = {"hockey": (64,), "breakout": (8, 32), "halfcheetah": (8, 32), "minigrid": (8, 32)}
"""Workloads that are measured at some sizes only: hockey is for its budget, else it is as `lunar`."""


@dataclasses.dataclass(frozen=True)
class Budget:
    """A floor of design.md: `ours` must make at least `floor` times the steps/s of `theirs`."""

    title: str
    workload: str
    num_envs: int
    ours: str
    theirs: str
    floor: float


BUDGETS = (
    Budget("serial against the bare loop", "cheap", 8, "envfleet-serial", "loop", 0.75),
    Budget("serial against Gymnasium SyncVectorEnv", "cheap", 8, "envfleet-serial", "gymnasium-sync", 1.0),
    Budget("process against Gymnasium AsyncVectorEnv", "cheap", 8, "envfleet-process", "gymnasium-async", 6.0),
    Budget("process against SB3 SubprocVecEnv", "cheap", 8, "envfleet-process", "sb3-subproc", 7.0),
    Budget("process against EnvPool's C++", "cheap", 8, "envfleet-process", "envpool", 1.0),
    Budget("process against Gymnasium AsyncVectorEnv", "cheap", 64, "envfleet-process", "gymnasium-async", 15.0),
    Budget("process against SB3 SubprocVecEnv", "cheap", 64, "envfleet-process", "sb3-subproc", 15.0),
    # A worker a core, against what as many bare cores make: on two, 0.9 × 2 × one bare core.
    Budget("process against one bare core, Box2D", "hockey", 64, "envfleet-process", "loop", 0.9 * whole_cores()),
    Budget("process against one bare core, Box2D", "lunar", 64, "envfleet-process", "loop", 0.9 * whole_cores()),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if --strict was given and a budget was missed."""
    options = _parse(arguments)
    plan = list(QUICK) if options.quick else _plan(options.workloads, options.sizes)

    def save(report: Report) -> None:  # after every run: a long benchmark that is stopped keeps its figures
        write_whole(options.out / "fleet.json", figures_json("bench", report))

    report = run_contests(_contests(plan), options.seconds, ROUNDS, _tell, save)
    sys.stderr.write("\n")
    _write_text(report, options.out / "report.txt")
    _draw(report, options.out)
    console = Console(highlight=False)
    console.print(f"[dim]{machine_line(report.machine)}[/dim]", soft_wrap=True)
    met = [_show_budget(budget, report, console) for budget in BUDGETS]
    console.print(f"Figures, plots and tables: {options.out}", soft_wrap=True)
    return 1 if options.strict and False in met else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure envfleet against its peers.")
    parser.add_argument("out", type=Path, help="folder for figures, plots and tables")
    parser.add_argument("--quick", action="store_true", help="a subset in about two minutes")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a budget is missed")
    parser.add_argument("--seconds", type=float, default=0.3, help="length of one measurement")
    parser.add_argument("--workloads", nargs="+", default=list(BUILT_IN), choices=BUILT_IN)
    parser.add_argument("--sizes", nargs="+", type=int, help="numbers of sub-environments")
    return parser.parse_args(arguments)


def _plan(workloads: Sequence[str], sizes: Sequence[int] | None) -> list[tuple[str, Sequence[int]]]:
    """Pair each workload with the sizes asked for, or else with its own."""
    return [(name, sizes or ONLY_SIZES.get(name, SIZES)) for name in workloads]


def _contenders(num_envs: int) -> list[Contender]:
    """List the peers and our backends with a worker a core; at `VARIED_SIZES` also processes below and above that."""
    cores = whole_cores()
    backends, counts = ["serial", "process", "auto"], list[int]()
    if num_envs in VARIED_SIZES:
        backends, counts = ["serial", "thread", "process", "auto"], sorted({1, 2 * cores} - {cores})
    ours = [EnvFleet(backend) for backend in backends]
    ours += [
        EnvFleet("process", {"workers": n}, tag=count(n, "worker").replace(" ", "-")) for n in counts if n <= num_envs
    ]
    return [*(CONTENDERS[name] for name in PEER_NAMES), *ours]


def _contests(plan: Sequence[tuple[str, Sequence[int]]]) -> list[Contest]:
    contests = []
    for name, sizes in plan:
        workload = resolve(name)
        try:
            require_buildable(workload)
        except ChildFailed as error:
            sys.stderr.write(f"{name} is left out: {error}\n")
            continue
        contests += [Contest(workload, num_envs, whole_cores(), _contenders(num_envs)) for num_envs in sorted(sizes)]
    return contests


def _tell(text: str, fraction: float) -> None:
    line = f"{fraction:4.0%} {text}"
    sys.stderr.write(f"\r\033[K{line}" if sys.stderr.isatty() else f"{line}\n")
    sys.stderr.flush()


def _write_text(report: Report, path: Path) -> None:
    with path.open("w", encoding="utf-8") as file:
        show_report(report, Console(file=file, width=80, highlight=False))


def _draw(report: Report, out: Path) -> None:
    plot_report(report, out / "fleet.png")
    for name in dict.fromkeys(run.workload for run in report.runs):
        runs = tuple(run for run in report.runs if run.workload == name)
        plot_report(dataclasses.replace(report, runs=runs), out / f"{name}.png")


def _show_budget(budget: Budget, report: Report, console: Console) -> bool | None:
    runs = [run for run in report.runs if (run.workload, run.num_envs) == (budget.workload, budget.num_envs)]
    ratio = runs[0].ratio(budget.ours, budget.theirs) if runs else None
    where = f"{budget.num_envs} × {budget.workload}"
    if ratio is None:
        console.print(f"[dim]not measured  {budget.title}, {where}[/dim]")
        return None
    met = ratio >= budget.floor
    mark = "[green]met   [/green]" if met else "[red]missed[/red]"
    console.print(f"{mark}  {ratio:5.2f}×, at least {budget.floor:.2f}×: {budget.title}, {where}", soft_wrap=True)
    return met


if __name__ == "__main__":
    sys.exit(main())
