"""The turbofan's threshold policy against a run of PPO, on the same engines: returns, failures, repairs and flights.

    python -m benchmarks.turbofan RUN [--engines 4000] [--plot FILE]

RUN is a folder of `envfleet train turbofan_ppo --num-envs 1024`; its best checkpoint plays. Engines have
seeds that neither training nor its evaluations use. `--plot` draws the evaluations of the run over its decisions.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import envfleet
from envfleet.agents import load_agent
from envfleet.envs.turbofan import FAILURE, REPAIR, ThresholdPolicy

ENV, SEED, MOST_DECISIONS = "envfleet/Turbofan-v0", 10**9, 1000
Act = Callable[[NDArray[Any]], NDArray[Any]]


class Lives(NamedTuple):
    """What became of many engines, an entry each."""

    returns: NDArray[np.float64]
    failed: NDArray[np.bool_]
    repairs: NDArray[np.int64]
    flights: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Standard error of the mean return."""
        return float(self.returns.std(ddof=1) / np.sqrt(len(self.returns)))


def live(act: Act, num_engines: int, **options: Any) -> Lives:
    """Have each of so many engines live once."""
    returns, failed = np.zeros(num_engines), np.zeros(num_engines, np.bool_)
    repairs, flights = np.zeros((2, num_engines), np.int64)
    alive = np.ones(num_engines, np.bool_)
    with envfleet.make(ENV, num_engines, backend="kernel", autoreset_mode="SAME_STEP", **options) as fleet:
        observations = fleet.reset(seed=SEED)[0]
        for _ in range(MOST_DECISIONS):
            actions = act(observations)
            observations, rewards, terminated, truncated, infos = fleet.step(actions)
            ended = alive & (terminated | truncated)
            final = infos.get("final_info", infos)
            returns[alive] += rewards[alive]
            repairs[alive] += actions[alive] == REPAIR
            flights[alive] += np.where(ended, final["num_rows"], infos["num_rows"])[alive]
            failed |= ended & (final["reason"] == FAILURE)
            alive &= ~ended
            if not alive.any():
                break
    return Lives(returns, failed, repairs, flights)


def draw(run: Path, lives: dict[str, Lives], target: Path) -> None:
    """Draw the evaluations of the run, and the returns of all engines."""
    from matplotlib.figure import Figure

    with (run / "evaluations.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["figure"] == "mean_return"]
    threshold = next(iter(lives.values())).returns.mean()
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    curve, spread = figure.subplots(1, 2)
    millions = [int(row["transitions"]) / 1e6 for row in rows]
    curve.plot(millions, [float(row["value"]) for row in rows], marker="o", color="#2f6db5", label="PPO")
    curve.axhline(threshold, color="#d9822b", linestyle="--", label="threshold policy")
    curve.set_xlabel("decisions, millions")
    curve.set_ylabel("mean return")
    curve.legend(frameon=False)
    bins = np.linspace(-1000.0, 8000.0, 46).tolist()
    for (name, each), colour in zip(lives.items(), ("#d9822b", "#2f6db5", "#2e8b57"), strict=False):
        spread.hist(each.returns, bins, histtype="step", color=colour, label=name)
    spread.set_xlabel("return of an engine")
    spread.set_ylabel("engines")
    spread.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(target, dpi=130)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--engines", type=int, default=4000)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    place = json.loads((asked.run / "config.json").read_text())["curriculum"]["phases"][0]["environment"]
    options = {name: value for name, value in place["kwargs"].items() if name not in ("url", "env")}
    agent = load_agent(str(asked.run / "checkpoints" / "best.pt"), num_envs=asked.engines)
    threshold = ThresholdPolicy(asked.engines)
    lives = {
        "ThresholdPolicy()": live(threshold.act_batch, asked.engines),
        "PPO, most likely action": live(
            lambda each: agent.act_batch(each, deterministic=True), asked.engines, **options
        ),
        "PPO, drawing its actions": live(agent.act_batch, asked.engines, **options),
    }
    print("| policy | return (± standard error) | 5 % | 95 % | failures | repairs | flights |")
    print("|---|---|---|---|---|---|---|")
    for name, each in lives.items():
        low, high = np.percentile(each.returns, [5, 95])
        parts = f"{each.returns.mean():.0f} ± {each.error:.0f} | {low:.0f} | {high:.0f} | {each.failed.mean():.0%}"
        print(f"| {name} | {parts} | {each.repairs.mean():.1f} | {each.flights.mean():.0f} |")
    if asked.plot is not None:
        draw(asked.run, lives, asked.plot)


if __name__ == "__main__":
    main()
