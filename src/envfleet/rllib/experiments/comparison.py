"""`vec` against `packed_vec` over numbers of sub-environments and batch sizes, as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.files import write_whole
from envfleet.rllib.experiments.training import Iteration, TrainingPlan, build, train


def compare(plans: Iterable[TrainingPlan], num_iterations: int) -> Iterator[Iteration]:
    """Train by every plan, for the time it takes.

    Args:
        plans: What to measure, one after the other.
        num_iterations: That count; one more goes before them.

    Yields:
        Of each plan the iteration of median speed.
    """
    for plan in plans:
        with build(plan) as algorithm:
            _, *iterations = train(algorithm, plan, num_iterations + 1)
        yield sorted(iterations, key=lambda iteration: iteration.samples_per_s)[len(iterations) // 2]


def grid(
    plan: TrainingPlan, ways: Iterable[Any], nums_envs: Iterable[int], batch_sizes: Iterable[int]
) -> list[TrainingPlan]:
    """Return plans that differ in way, sub-environments and batch size, each with at least one step per batch.

    Args:
        plan: All else.
        ways: `"vec"`, `"packed_vec"` or both.
        nums_envs: Numbers of sub-environments.
        batch_sizes: In samples.

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
        file: Where to.
    """
    write_whole(file, json.dumps([dataclasses.asdict(found) for found in iterations], indent=1))
