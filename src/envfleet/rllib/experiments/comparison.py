"""`vec` against `packed_vec` over numbers of sub-environments and batch sizes, as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.files import write_whole
from envfleet.rllib.experiments.plots import plot_breakdown, plot_throughput
from envfleet.rllib.experiments.training import Iteration, TrainingPlan, build, train


def compare(plans: Iterable[TrainingPlan], num_iterations: int, policies: Path | None = None) -> Generator[Iteration]:
    """Train by every plan, for the time it takes.

    Args:
        plans: Plans to measure, one after the other.
        num_iterations: Iterations that count, after one more.
        policies: Folder for a checkpoint of each trained algorithm; `None` keeps none.

    Yields:
        Of each plan the iteration of median speed.
    """
    for plan in plans:
        with build(plan) as algorithm:
            _, *iterations = train(algorithm, plan, num_iterations + 1)
            if policies is not None:
                algorithm.save_to_path((policies / f"{plan.way}-{plan.num_envs}-{plan.batch_size}").absolute())
        yield sorted(iterations, key=lambda iteration: iteration.samples_per_s)[len(iterations) // 2]


def sweep(
    plans: Sequence[TrainingPlan],
    num_iterations: int,
    out: Path,
    *,
    file_name: str = "compare.json",
    keeps_policies: bool = False,
    show: Callable[[str], object] = print,
) -> list[Iteration]:
    """Measure every plan; write the results after each, and plots at the end.

    Args:
        plans: Plans to measure.
        num_iterations: Iterations that count, after one more.
        out: Folder for results and plots.
        file_name: Name of the results.
        keeps_policies: True to save the trained algorithms, under `policies`.
        show: Called with a line before each plan, which estimates the time that is left, and one after it.

    Returns:
        Of each plan the iteration of median speed.
    """
    results: list[Iteration] = []
    start_s = time.monotonic()
    measured = compare(plans, num_iterations, out / "policies" if keeps_policies else None)
    for index, plan in enumerate(plans):
        done, left = (sum(one.batch_size for one in part) for part in (plans[:index], plans[index:]))
        left_s = (time.monotonic() - start_s) / done * left if done else None
        estimate = "" if left_s is None else f", about {math.ceil(left_s / 60)} min left"
        show(
            f"{index + 1} of {len(plans)}: {plan.way}, {plan.num_envs:,} sub-environments, batches of "
            f"{plan.batch_size:,}{estimate}"
        )
        results.append(one := next(measured))
        seconds = ", ".join(f"{part} {one.seconds[part]:.2f} s" for part in ("iteration", "sampling", "learner"))
        show(f"  {one.samples_per_s:,.0f} samples/s: {seconds}")
        save(results, out / file_name)  # so that hours are not lost with the last plan
    measured.close()
    plot_throughput(results, out / "throughput.png")
    plot_breakdown(results, out / "connectors.png")
    return results


def grid(
    plan: TrainingPlan, ways: Iterable[Any], nums_envs: Iterable[int], batch_sizes: Iterable[int]
) -> list[TrainingPlan]:
    """Return plans that differ in way, sub-environments and batch size, each with at least one step per batch.

    Args:
        plan: Plan with all other settings.
        ways: `"vec"`, `"packed_vec"` or both.
        nums_envs: Numbers of sub-environments.
        batch_sizes: Samples per iteration.

    Raises:
        InvalidArgument: Nothing is left.
    """
    nums_envs, batch_sizes, ways = list(nums_envs), list(batch_sizes), list(ways)
    plans = [
        dataclasses.replace(plan, way=way, num_envs=num_envs, batch_size=batch_size)
        for batch_size in batch_sizes
        for num_envs in nums_envs
        for way in ways
        if num_envs <= batch_size
    ]
    if not plans:
        raise InvalidArgument(
            f"no batch size of {batch_sizes} has room for a step of any of {nums_envs} sub-environments: ask for "
            "larger batches or fewer sub-environments"
        )
    return plans


def save(iterations: Iterable[Iteration], file: Path) -> None:
    """Write results as JSON.

    Args:
        iterations: The results.
        file: File to write.
    """
    write_whole(file, json.dumps([dataclasses.asdict(iteration) for iteration in iterations], indent=1))
