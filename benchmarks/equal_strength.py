"""Does an agent end as strong with many sub-environments as with one? The same transitions, several seeds each.

    python benchmarks/equal_strength.py OUT                        # three seeds each: about 15 CPU minutes
    python benchmarks/equal_strength.py OUT --transitions 20000    # a quick look

Trains by a configuration with one thread, on compiled hockey, and lets every agent play both scripted players without
exploration, half of its games on either side. Runs whose figures are in OUT/equal_strength.json already are not
repeated, so that one that was stopped goes on. Writes that file and OUT/equal_strength.png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

from envfleet.training import train
from envfleet.training.config import find_config
from envfleet.training.evaluation import evaluate

OPPONENTS = ("weak", "strong")
GAMES_SEED = 1  # all agents meet the same starts


def run(num_envs: int, seed: int, out: Path, config: dict[str, Any], games: int) -> dict[str, Any]:
    """Train one agent and let it play; an entry of the file."""
    torch.set_num_threads(1)
    name = f"vec{num_envs}_seed{seed}"
    shutil.rmtree(out / "runs" / name, ignore_errors=True)  # of one that was stopped
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    result = train(
        config, num_envs=num_envs, workers=1, seed=seed, base_output_dir=out / "runs", run_name=name, verbose=False
    )
    minutes, cpu_minutes = (time.perf_counter() - began_s) / 60, (time.process_time() - began_cpu_s) / 60
    if result.checkpoint is None:
        raise RuntimeError(f"the run {name} left no checkpoint")
    played = {who: evaluate(result.checkpoint, who, games=games, seed=GAMES_SEED).figures() for who in OPPONENTS}
    return {
        "num_envs": num_envs,
        "seed": seed,
        "transitions": result.total_steps,
        "updates": result.total_updates,
        "minutes": minutes,
        "cpu_minutes": cpu_minutes,
        **played,
    }


def shares(entries: list[dict[str, Any]], opponent: str, num_envs: int) -> list[float]:
    """Games won in percent, one number per seed."""
    return [100 * entry[opponent]["win_rate"] for entry in entries if entry["num_envs"] == num_envs]


def compare(entries: list[dict[str, Any]], opponent: str, counts: list[int]) -> dict[str, Any] | None:
    """The difference of the first and the last number of sub-environments, with its 95 % interval (Welch 1947)."""
    from scipy import stats  # takes a second

    one, many = (shares(entries, opponent, count) for count in (counts[0], counts[-1]))
    if min(len(one), len(many)) < 2:
        return None
    interval = stats.ttest_ind(many, one, equal_var=False).confidence_interval(0.95)
    return {
        "opponent": opponent,
        "difference": statistics.mean(many) - statistics.mean(one),
        "low": float(interval.low),
        "high": float(interval.high),
        "is_within_noise": bool(interval.low <= 0 <= interval.high),
    }


def show(entries: list[dict[str, Any]], counts: list[int], comparisons: list[dict[str, Any]]) -> None:
    """Print the table and what it says."""
    print(f"{'envs':>5} {'seeds':>6} {'transitions':>12} {'CPU min':>8} " + " ".join(f"{w:>20}" for w in OPPONENTS))
    for count in counts:
        mine = [entry for entry in entries if entry["num_envs"] == count]
        if not mine:
            continue
        cells = []
        for opponent in OPPONENTS:
            won = shares(entries, opponent, count)
            spread = statistics.stdev(won) if len(won) > 1 else 0.0
            cells.append(f"{statistics.mean(won):.1f} ± {spread:.1f} %")
        cpu = statistics.mean(entry["cpu_minutes"] for entry in mine)
        print(
            f"{count:>5} {len(mine):>6} {mine[0]['transitions']:>12,} {cpu:>8.1f} "
            + " ".join(f"{c:>20}" for c in cells)
        )
    for found in comparisons:
        verdict = "within noise" if found["is_within_noise"] else "more than noise"
        print(
            f"{found['opponent']}: {counts[-1]} against {counts[0]} sub-environments {found['difference']:+.1f} points "
            f"({found['low']:+.1f} to {found['high']:+.1f}): {verdict}"
        )


def draw(entries: list[dict[str, Any]], counts: list[int], path: Path) -> None:
    """A dot per agent, a bar per mean; one panel for either opponent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(OPPONENTS), figsize=(7, 3.6), layout="constrained", sharey=True)
    for axis, opponent in zip(axes, OPPONENTS, strict=True):
        for place, count in enumerate(counts):
            won = shares(entries, opponent, count)
            if not won:
                continue
            axis.bar(place, statistics.mean(won), width=0.5, color=f"C{place}", alpha=0.35)
            axis.plot([place] * len(won), won, "o", color=f"C{place}")
        axis.set_xticks(range(len(counts)), [str(count) for count in counts])
        axis.set(title=f"against {opponent}", xlabel="sub-environments", ylim=(0, 101))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("games won (%)")
    figure.suptitle(f"After {entries[0]['transitions']:,} transitions; a dot per seed", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def config_of(source: str, transitions: int) -> dict[str, Any]:
    """A configuration whose only phase has so many transitions, and that is evaluated at the end alone."""
    config: dict[str, Any] = json.loads(find_config(source).read_text(encoding="utf-8"))
    (phase,) = config["curriculum"]["phases"]
    phase.update(transitions=transitions, episodes=None)
    config["training"].update(eval_frequency=None, checkpoint_frequency=None)
    return config


def main() -> None:
    """Train, play, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="sac", help="with one phase")
    parser.add_argument("--transitions", type=int, default=300_000, help="of every run")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--games", type=int, default=1000, help="per agent and opponent")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "equal_strength.json"
    given = {"config": config_of(args.config, args.transitions), "games": args.games}
    entries: list[dict[str, Any]] = []
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if {key: before[key] for key in given} != given:
            raise SystemExit(f"{path} is of other runs: pass another folder")
        entries = before["entries"]
    there = {(entry["num_envs"], entry["seed"]) for entry in entries}
    missing = [
        (count, seed) for seed, count in itertools.product(args.seeds, args.num_envs) if (count, seed) not in there
    ]
    comparisons: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(run, *one, args.out, given["config"], args.games) for one in missing]
        for finished in as_completed(runs):
            entries.append(finished.result())
            comparisons = [
                found for opponent in OPPONENTS if (found := compare(entries, opponent, args.num_envs)) is not None
            ]
            content = {**given, "entries": entries, "comparisons": comparisons}
            path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            show(entries, args.num_envs, comparisons)
    draw(entries, args.num_envs, args.out / "equal_strength.png")


if __name__ == "__main__":
    main()
