"""How strong PPO on compiled hockey becomes: win rates after so many minutes of training, over seeds.

    python benchmarks/strength.py OUT    # `ppo_kernel`: ten minutes, three seeds: 40 minutes on one core
    python benchmarks/strength.py OUT --config quickstart --minutes 1    # the demo
    python benchmarks/strength.py OUT --only-games       # play the games of runs that are there

Trains by a configuration with one thread, stops at each mark, keeps the agent and goes on; a run that was stopped goes
on as if it had not been. Then every agent plays both scripted players from both sides. Writes
OUT/strength.json, which says what was run, and OUT/strength.png.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from envfleet.training import RunResult, resume, train
from envfleet.training.config import read_config
from envfleet.training.evaluation import evaluate
from envfleet.training.games import Rink

OPPONENTS = ("strong", "weak")
RUN = "run"


def learn(out: Path, config: str, marks: list[float], num_envs: int, seed: int) -> list[dict[str, Any]]:
    """Train up to each mark (minutes); an entry for each, with the file of the agent as it was."""
    out.mkdir(parents=True, exist_ok=True)
    entries: list[dict[str, Any]] = []
    for before, mark in itertools.pairwise([0.0, *marks]):
        began_cpu_s = time.process_time()
        if before:
            result = resume(out / RUN, max_minutes=mark - before)
        else:
            result = train(
                config, num_envs=num_envs, workers=1, max_minutes=mark, base_output_dir=out, run_name=RUN, seed=seed
            )  # fmt: skip
        cpu_min = (time.process_time() - began_cpu_s) / 60 + (entries[-1]["cpu_minutes"] if entries else 0.0)
        entries.append({**_entry(result, out, mark), "seed": seed, "cpu_minutes": cpu_min})
        _write(out / "marks.json", entries)
    return entries


def _entry(result: RunResult, out: Path, mark: float) -> dict[str, Any]:
    if result.checkpoint is None:
        raise RuntimeError(f"the run of {mark:g} minutes left no checkpoint")
    path = out / f"after_{mark:g}_minutes.pt"
    shutil.copyfile(result.checkpoint, path)
    return {"minutes": mark, "agent": path.name, "transitions": result.total_steps, "updates": result.total_updates}


def play(out: Path, entries: list[dict[str, Any]], games: int, engines: list[str]) -> None:
    """Let every agent of a seed play; figures are added to its entry."""
    for entry, engine, opponent in itertools.product(entries, engines, OPPONENTS):
        found = evaluate(out / entry["agent"], opponent, games=games, seed=1, rink=Rink(engine=engine))
        entry[f"{opponent}, {engine}"] = {
            **found.figures(),
            **{f"win_rate_{side}": score.win_rate for side, score in found.sides.items()},
        }
        found_here = entry[f"{opponent}, {engine}"]
        print(f"seed {entry['seed']}, {entry['minutes']:g} minutes, {opponent}, {engine}: {found_here}", flush=True)


def over_seeds(entries: list[dict[str, Any]], engines: list[str]) -> list[dict[str, Any]]:
    """Return mean win rates over the seeds of every mark, with intervals of 95 % (Student's t) of the mean."""
    summary = []
    for mark in sorted({entry["minutes"] for entry in entries}):
        chosen = [entry for entry in entries if entry["minutes"] == mark]
        for engine, opponent in itertools.product(engines, OPPONENTS):
            rates = np.array([entry[f"{opponent}, {engine}"]["win_rate"] for entry in chosen])
            found = {"minutes": mark, "opponent": opponent, "engine": engine, "seeds": len(rates)}
            found |= {"mean": float(rates.mean()), "least": float(rates.min()), "most": float(rates.max())}
            if len(rates) > 1:
                reach = float(stats.t.ppf(0.975, len(rates) - 1) * rates.std(ddof=1) / len(rates) ** 0.5)
                found["interval"] = [found["mean"] - reach, min(found["mean"] + reach, 1.0)]
            summary.append(found)
            print(found, flush=True)
    return summary


def curve(out: Path) -> dict[str, list[tuple[int, float]]]:
    """Win rates over the run, as it was evaluated while it went: transitions and share, by opponent."""
    points: dict[str, list[tuple[int, float]]] = {}
    with (out / RUN / "evaluations.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["figure"] == "win_rate":
                points.setdefault(row["opponent"], []).append((int(row["transitions"]), float(row["value"])))
    return points


def draw(
    path: Path, curves: list[dict[str, list[tuple[int, float]]]], entries: list[dict[str, Any]], title: str
) -> None:
    """Draw the curves of all seeds, with the marks of the first."""
    import matplotlib as mpl  # takes a second

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    colours: dict[str, str] = {}
    low = 10 * int(10 * min(share for points in curves for measured in points.values() for _, share in measured))
    for number, (name, measured) in enumerate(pair for points in curves for pair in points.items()):
        millions, shares = [count / 1e6 for count, _ in measured], [100 * share for _, share in measured]
        label = None if name in colours else name.replace("_", " ")
        axes.plot(millions, shares, label=label, color=colours.setdefault(name, f"C{number}"))
    for entry in entries:
        where = entry["transitions"] / 1e6
        axes.axvline(where, color="0.6", linewidth=0.8)
        label = f"{entry['minutes']:g} min, {entry['cpu_minutes']:.1f} of CPU "
        axes.text(where, low + 1, label, rotation=90, ha="right", va="bottom", color="0.4", fontsize=8)
    axes.set(xlabel="transitions (millions)", ylabel="games won (%)", ylim=(low, 101))
    axes.set_xlim(left=0)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Strength of PPO on compiled hockey after so many minutes.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="ppo_kernel")
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--num-envs", type=int, default=1024)
    parser.add_argument("--games", type=int, default=2000, help="per agent, opponent and engine")
    parser.add_argument("--engines", nargs="+", choices=("compiled", "box2d"), default=["compiled", "box2d"])
    parser.add_argument("--only-games", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    entries, curves = list[dict[str, Any]](), []
    for seed in given.seeds:
        place = given.out / f"seed_{seed}"
        if given.only_games:
            found = json.loads((place / "marks.json").read_text(encoding="utf-8"))
        else:
            found = learn(place, given.config, sorted(given.minutes), given.num_envs, seed)
        play(place, found, given.games, given.engines)
        entries += found
        curves.append(curve(place))
    config = read_config(given.config)
    ran = {"config": config.model_dump(mode="json"), "num_envs": given.num_envs, "games": given.games, "threads": 1}
    content = {
        "ran": {"name": given.config, **ran, "cores": os.cpu_count(), "load_average": os.getloadavg()},
        "over_seeds": over_seeds(entries, given.engines),
        "marks": entries,
        "curves": curves,
    }
    _write(given.out / "strength.json", content)
    title = f"{given.config}: best actions, both sides, {config.training.eval_games} games a point"
    draw(given.out / "strength.png", curves, entries[: len(given.minutes)], title)


if __name__ == "__main__":
    main()
