"""A fleet on Ray against plain actor calls and against an actor per worker that holds a DummyVecEnv.

    python benchmarks/ray_fleets.py OUT            # five minutes
    python benchmarks/ray_fleets.py OUT --quick    # one or two

Prints ratios, each the median over rounds in which all contenders are measured in a new random order, and writes
OUT/ray.json. What is compared, and how to read it: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import logging
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.cluster_utils import Cluster

import envfleet

SIZES = ((2, 1), (2, 4), (2, 64), (4, 2))
FLOORS = {
    ("shared memory", "pattern", (2, 4)): 10.0,
    ("shared memory", "pattern", (2, 64)): 4.0,
    ("shared memory", "plain calls", (2, 4)): 10.0,
    ("actor calls", "plain calls", (2, 4)): 1.0,
    ("actor calls, in flight", "plain calls", (2, 4)): 1.0,
}
LITTLE = 0.01
WARM_UP_STEPS = 20
WHERE: dict[str, tuple[Sequence[tuple[int, int]], dict[str, Any]]] = {
    "one node": (SIZES, {"num_cpus": LITTLE}),
    "another node": (SIZES[1:3], {"num_cpus": LITTLE, "resources": {"far": LITTLE}}),
}


class PlainWorker:
    """What one writes first: a list of environments in an actor, arrays back from each call."""

    def __init__(self, num_envs: int) -> None:
        self._envs = [gym.make("CartPole-v1") for _ in range(num_envs)]

    def reset(self, seed: int) -> Any:
        return np.stack([env.reset(seed=seed + index)[0] for index, env in enumerate(self._envs)])

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated = [], [], [], []
        for env, action in zip(self._envs, actions, strict=True):
            observation, reward, is_terminated, is_truncated, _ = env.step(int(action))
            if is_terminated or is_truncated:
                observation = env.reset()[0]
            observations.append(observation)
            rewards.append(reward)
            terminated.append(is_terminated)
            truncated.append(is_truncated)
        return np.stack(observations), np.asarray(rewards), np.asarray(terminated), np.asarray(truncated)


class DummyWorker:
    """An actor that holds a DummyVecEnv, as packages do that put Stable-Baselines3 on Ray."""

    def __init__(self, num_envs: int) -> None:
        from stable_baselines3.common.vec_env import DummyVecEnv

        self._envs = DummyVecEnv([lambda: gym.make("CartPole-v1")] * num_envs)

    def reset(self, seed: int) -> Any:
        self._envs.seed(seed)
        return self._envs.reset()

    def step(self, actions: Any) -> Any:
        return self._envs.step(actions)


@dataclasses.dataclass
class Contender:
    """Something that steps: `step` takes the actions of all sub-environments."""

    name: str
    step: Callable[[Any], object]
    close: Callable[[], None]


def make_plain(workers: int, envs: int, options: dict[str, Any]) -> Contender:
    actors = _actors(PlainWorker, workers, envs, options)

    def step(actions: Any) -> object:
        parts = np.split(actions, workers)
        results = ray.get([actor.step.remote(part) for actor, part in zip(actors, parts, strict=True)])
        return [np.concatenate(column) for column in zip(*results, strict=True)]

    return Contender("plain calls", step, functools.partial(_kill, actors))


def make_pattern(workers: int, envs: int, options: dict[str, Any]) -> Contender:
    """`ray.wait` for whoever is ready, `ray.get` of each, results put back in order."""
    actors = _actors(DummyWorker, workers, envs, options)

    def step(actions: Any) -> object:
        parts = np.split(actions, workers)
        order = {actor.step.remote(part): index for index, (actor, part) in enumerate(zip(actors, parts, strict=True))}
        results: list[Any] = [None] * workers
        left = list(order)
        while left:
            (ref, *_), left = ray.wait(left, num_returns=1)
            results[order[ref]] = ray.get(ref)
        observations, rewards, dones, infos = zip(*results, strict=True)
        return (
            np.concatenate(observations), np.concatenate(rewards), np.concatenate(dones),
            [info for part in infos for info in part],
        )  # fmt: skip

    return Contender("pattern", step, functools.partial(_kill, actors))


def make_fleet(
    workers: int, envs: int, options: dict[str, Any], *, shared_memory: bool, is_async: bool = False
) -> Contender:
    fleet = envfleet.make(
        "CartPole-v1",
        backend="ray",
        workers=workers,
        envs_per_worker=envs,
        ray_options={**options, "shared_memory": shared_memory},
    )
    fleet.reset(seed=0)
    name = "shared memory" if shared_memory else "actor calls"
    if not is_async:
        return Contender(name, fleet.step, fleet.close)
    parts = fleet.split(workers)
    for part in parts:
        part.reset(seed=0)
        part.send(np.zeros(envs, np.int64))

    def step(actions: Any) -> object:
        batches = []
        for part, own in zip(parts, np.split(actions, workers), strict=True):
            batches.append(part.recv())
            part.send(own)
        return batches

    return Contender(f"{name}, in flight", step, fleet.close)


def _actors(kind: type, workers: int, envs: int, options: dict[str, Any]) -> list[Any]:
    actor_class: Any = ray.remote(kind)
    actors = [actor_class.options(**options).remote(envs) for _ in range(workers)]
    ray.get([actor.reset.remote(index * envs) for index, actor in enumerate(actors)])
    return actors


def _kill(actors: Sequence[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


@dataclasses.dataclass(frozen=True)
class Run:
    """One comparison: for every contender its steps of all sub-environments per second, one figure per round."""

    where: str
    workers: int
    envs: int
    rates: dict[str, list[float]]
    load: list[float]

    def ratio(self, ours: str, theirs: str) -> float:
        pairs = zip(self.rates[ours], self.rates[theirs], strict=True)
        return statistics.median(one / other for one, other in pairs)


def compare(where: str, size: tuple[int, int], options: dict[str, Any], rounds: int, seconds: float) -> Run:
    workers, envs = size
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(64, workers * envs))
    with contextlib.ExitStack() as stack:
        contenders = list(_contenders(where, workers, envs, options, stack))
        rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        load = []
        for _ in range(rounds):
            load.append(os.getloadavg()[0])
            for contender in random.sample(contenders, len(contenders)):
                rates[contender.name].append(_rate(contender, actions, seconds))
    return Run(where, workers, envs, rates, load)


def _contenders(
    where: str, workers: int, envs: int, options: dict[str, Any], stack: contextlib.ExitStack
) -> Iterator[Contender]:
    makers: list[Callable[..., Contender]] = [make_plain, make_pattern]
    if where == "one node":
        makers.append(functools.partial(make_fleet, shared_memory=True))
    else:
        makers += [
            functools.partial(make_fleet, shared_memory=False),
            functools.partial(make_fleet, shared_memory=False, is_async=True),
        ]
    for maker in makers:
        contender = maker(workers, envs, options)
        stack.callback(contender.close)
        yield contender


def _rate(contender: Contender, actions: Any, seconds: float) -> float:
    for index in range(WARM_UP_STEPS):
        contender.step(actions[index % len(actions)])
    count, start_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - start_s) < seconds:
        contender.step(actions[count % len(actions)])
        count += 1
    return count / took_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if --strict was given and a floor was missed."""
    parser = argparse.ArgumentParser(description="Measure a fleet on Ray against what one would write otherwise.")
    parser.add_argument("out", type=Path, help="folder for the figures")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a floor is missed")
    parser.add_argument("--where", nargs="+", default=list(WHERE), choices=list(WHERE), help="where the workers are")
    chosen = parser.parse_args(arguments)
    rounds, seconds = (3, 0.5) if chosen.quick else (7, 1.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, resources={"far": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        runs = [
            compare(where, size, WHERE[where][1], rounds, seconds) for where in chosen.where for size in WHERE[where][0]
        ]
    finally:
        ray.shutdown()
        cluster.shutdown()
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "ray.json").write_text(json.dumps([dataclasses.asdict(run) for run in runs], indent=1))
    met = [_show(run) for run in runs]
    return 1 if chosen.strict and not all(met) else 0


def _show(run: Run) -> bool:
    load = f"load {min(run.load):.1f} to {max(run.load):.1f}"
    print(f"\n{run.where}, {run.workers} workers × {run.envs} ({load})")
    for name, rates in run.rates.items():
        print(f"  {name:24} {statistics.median(rates):9,.0f} steps of all/s")
    met = True
    for ours in [name for name in run.rates if name not in ("plain calls", "pattern")]:
        for theirs in ("plain calls", "pattern"):
            ratio = run.ratio(ours, theirs)
            floor = FLOORS.get((ours, theirs, (run.workers, run.envs)))
            verdict = "" if floor is None else f"  (floor {floor:g}: {'met' if ratio >= floor else 'missed'})"
            met &= floor is None or ratio >= floor
            print(f"  {ours} against {theirs}: {ratio:.1f} ×{verdict}")
    return met


if __name__ == "__main__":
    sys.exit(main())
