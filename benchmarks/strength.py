"""How strong compiled self-play becomes: win rates after so many minutes of training, on compiled hockey and on Box2D.

    python benchmarks/strength.py OUT                    # 10, 20 and 40 minutes, then games: an hour on one core
    python benchmarks/strength.py OUT --minutes 1 2      # a quick look
    python benchmarks/strength.py OUT --only-games       # play the games of a run that is there

Trains by the configuration `ppo_kernel` with one thread, stops at each mark, keeps the agent and goes on; a run that
was stopped goes on as if it had not been. Then every agent plays both scripted players from both sides, on both
engines. Writes OUT/strength.json and OUT/strength.png.
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

import torch

from envfleet.training import RunResult, resume, train
from envfleet.training.evaluation import evaluate
from envfleet.training.games import Rink

OPPONENTS = ("strong", "weak")
RUN = "run"


def learn(out: Path, config: str, marks: list[float], num_envs: int) -> list[dict[str, Any]]:
    """Train up to each mark (minutes); an entry for each, with the file of the agent as it was."""
    entries: list[dict[str, Any]] = []
    for before, mark in itertools.pairwise([0.0, *marks]):
        began_cpu_s = time.process_time()
        if before:
            result = resume(out / RUN, max_minutes=mark - before)
        else:
            result = train(
                config, num_envs=num_envs, workers=1, max_minutes=mark, base_output_dir=out, run_name=RUN
            )  # fmt: skip
        cpu_min = (time.process_time() - began_cpu_s) / 60 + (entries[-1]["cpu_minutes"] if entries else 0.0)
        entries.append({**_entry(result, out, mark), "cpu_minutes": cpu_min})
        _write(out / "marks.json", entries)
    return entries


def _entry(result: RunResult, out: Path, mark: float) -> dict[str, Any]:
    if result.checkpoint is None:
        raise RuntimeError(f"the run of {mark:g} minutes left no checkpoint")
    path = out / f"after_{mark:g}_minutes.pt"
    shutil.copyfile(result.checkpoint, path)
    return {"minutes": mark, "agent": path.name, "transitions": result.total_steps, "updates": result.total_updates}


def play(out: Path, entries: list[dict[str, Any]], games: int) -> None:
    """Let every agent play; figures are added to its entry."""
    for entry, engine, opponent in itertools.product(entries, ("compiled", "box2d"), OPPONENTS):
        found = evaluate(out / entry["agent"], opponent, games=games, seed=1, rink=Rink(engine=engine))
        entry[f"{opponent}, {engine}"] = {
            **found.figures(),
            **{f"win_rate_{side}": score.win_rate for side, score in found.sides.items()},
        }
        print(f"{entry['minutes']:g} minutes, {opponent}, {engine}: {entry[f'{opponent}, {engine}']}", flush=True)


def curve(out: Path) -> dict[str, list[tuple[int, float]]]:
    """Win rates over the run, as it was evaluated while it went: transitions and share, by opponent."""
    points: dict[str, list[tuple[int, float]]] = {}
    with (out / RUN / "evaluations.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["figure"] == "win_rate":
                points.setdefault(row["opponent"], []).append((int(row["transitions"]), float(row["value"])))
    return points


def draw(path: Path, points: dict[str, list[tuple[int, float]]], entries: list[dict[str, Any]]) -> None:
    """Draw the curve, with the marks."""
    import matplotlib as mpl  # takes a second

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, measured in points.items():
        millions, shares = [count / 1e6 for count, _ in measured], [100 * share for _, share in measured]
        axes.plot(millions, shares, label=name.replace("_", " "))
    for entry in entries:
        where = entry["transitions"] / 1e6
        axes.axvline(where, color="0.6", linewidth=0.8)
        label = f"{entry['minutes']:g} min, {entry['cpu_minutes']:.1f} of CPU "
        axes.text(where, 4, label, rotation=90, ha="right", va="bottom", color="0.4", fontsize=8)
    axes.set(xlabel="transitions (millions)", ylabel="games won (%)", ylim=(0, 101))
    axes.set_xlim(left=0)
    axes.set_title("PPO on compiled hockey: best actions, both sides, 500 games a point", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _write(path: Path, content: Any) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Strength of compiled self-play after so many minutes.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--config", default="ppo_kernel")
    parser.add_argument("--minutes", type=float, nargs="+", default=[10.0, 20.0, 40.0])
    parser.add_argument("--num-envs", type=int, default=512)
    parser.add_argument("--games", type=int, default=2000, help="per agent, opponent and engine")
    parser.add_argument("--only-games", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.only_games:
        entries = json.loads((given.out / "marks.json").read_text(encoding="utf-8"))
    else:
        entries = learn(given.out, given.config, sorted(given.minutes), given.num_envs)
    play(given.out, entries, given.games)
    content = {"cores": os.cpu_count(), "marks": entries, "curve": curve(given.out)}
    _write(given.out / "strength.json", content)
    draw(given.out / "strength.png", content["curve"], entries)


if __name__ == "__main__":
    main()
