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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.cluster_utils import Cluster

import envfleet

LITTLE = 0.01
WARM_UP_STEPS = 20


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is compared: where, the environment, how many workers with how many each, and what each asks of Ray."""

    where: str
    env: str
    workers: int
    envs: int
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.where}, {self.env}, {self.workers} workers × {self.envs}"


NEAR, FAR = {"num_cpus": LITTLE}, {"num_cpus": LITTLE, "resources": {"far": LITTLE}}
SETTINGS = (
    *(Setting("one node", "CartPole", *size, NEAR) for size in ((2, 1), (2, 4), (2, 64), (4, 2))),
    *(Setting("another node", "CartPole", *size, FAR) for size in ((2, 4), (2, 64))),
    Setting("another node", "uneven simulator", 4, 2, FAR),
)
PLACES = ("one node", "another node")
FLOORS = {
    ("shared memory", "pattern", SETTINGS[1].name): 10.0,
    ("shared memory", "pattern", SETTINGS[2].name): 4.0,
    ("shared memory", "plain calls", SETTINGS[1].name): 10.0,
    ("shared memory", "process", SETTINGS[1].name): 0.9,
    ("shared memory", "process", SETTINGS[2].name): 0.9,
    ("TCP", "plain calls", SETTINGS[4].name): 7.0,
    ("TCP", "plain calls", SETTINGS[5].name): 3.0,
    ("TCP, in flight", "plain calls", SETTINGS[6].name): 1.2,
}


class Simulator(gym.Env[Any, Any]):
    """Waits, now long, now short, as a simulator does that lives in another program: 4 ms on average."""

    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(self.np_random.exponential(0.004))
        return np.zeros(4, np.float32), 0.0, False, False, {}


MAKERS: dict[str, Callable[[], gym.Env[Any, Any]]] = {
    "CartPole": functools.partial(gym.make, "CartPole-v1"),
    "uneven simulator": Simulator,
}


class PlainWorker:
    """What one writes first: a list of environments in an actor, arrays back from each call."""

    def __init__(self, make_env: Callable[[], Any], num_envs: int) -> None:
        self._envs = [make_env() for _ in range(num_envs)]

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

    def __init__(self, make_env: Callable[[], Any], num_envs: int) -> None:
        from stable_baselines3.common.vec_env import DummyVecEnv

        self._envs = DummyVecEnv([make_env] * num_envs)

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


def make_plain(setting: Setting) -> Contender:
    actors = _actors(PlainWorker, setting)

    def step(actions: Any) -> object:
        parts = np.split(actions, setting.workers)
        results = ray.get([actor.step.remote(part) for actor, part in zip(actors, parts, strict=True)])
        return [np.concatenate(column) for column in zip(*results, strict=True)]

    return Contender("plain calls", step, functools.partial(_kill, actors))


def make_pattern(setting: Setting) -> Contender:
    """`ray.wait` for whoever is ready, `ray.get` of each, results put back in order."""
    actors = _actors(DummyWorker, setting)

    def step(actions: Any) -> object:
        parts = np.split(actions, setting.workers)
        order = {actor.step.remote(part): index for index, (actor, part) in enumerate(zip(actors, parts, strict=True))}
        results: list[Any] = [None] * setting.workers
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


def make_fleet(setting: Setting, *, shared_memory: bool, batch_size: int | None = None) -> Any:
    fleet = envfleet.make(
        MAKERS[setting.env],
        backend="ray",
        workers=setting.workers,
        envs_per_worker=setting.envs,
        batch_size=batch_size,
        ray_options={**setting.options, "shared_memory": shared_memory},
    )
    fleet.reset(seed=0)
    return fleet


def make_stepped(setting: Setting, *, shared_memory: bool) -> Contender:
    fleet = make_fleet(setting, shared_memory=shared_memory)
    return Contender("shared memory" if shared_memory else "TCP", fleet.step, fleet.close)


def make_process(setting: Setting) -> Contender:
    """The same fleet in worker processes, without Ray."""
    fleet = envfleet.make(MAKERS[setting.env], backend="process", workers=setting.workers, envs_per_worker=setting.envs)
    fleet.reset(seed=0)
    return Contender("process", fleet.step, fleet.close)


def make_in_flight(setting: Setting) -> Contender:
    """Whoever is ready, a worker at a time; as many rows a step as there are sub-environments."""
    fleet = make_fleet(setting, shared_memory=False, batch_size=setting.envs)
    fleet.send(np.zeros(setting.workers * setting.envs, np.int64))

    def step(actions: Any) -> object:
        batches = []
        for _ in range(setting.workers):
            batches.append(batch := fleet.recv())
            fleet.send(actions[batch.env_indices], batch.env_indices)
        return batches

    return Contender("TCP, in flight", step, fleet.close)


def _actors(kind: type, setting: Setting) -> list[Any]:
    actor_class: Any = ray.remote(kind)
    make_env = MAKERS[setting.env]
    actors = [actor_class.options(**setting.options).remote(make_env, setting.envs) for _ in range(setting.workers)]
    ray.get([actor.reset.remote(index * setting.envs) for index, actor in enumerate(actors)])
    return actors


def _kill(actors: Sequence[Any]) -> None:
    for actor in actors:
        ray.kill(actor)


@dataclasses.dataclass(frozen=True)
class Run:
    """One comparison: for every contender its steps of all sub-environments per second, one figure per round."""

    setting: Setting
    rates: dict[str, list[float]]
    load: list[float]

    def ratio(self, ours: str, theirs: str) -> float:
        pairs = zip(self.rates[ours], self.rates[theirs], strict=True)
        return statistics.median(one / other for one, other in pairs)


def compare(setting: Setting, rounds: int, seconds: float) -> Run:
    rng = np.random.default_rng(0)
    actions = rng.integers(2, size=(64, setting.workers * setting.envs))
    makers: list[Callable[[Setting], Contender]] = [make_plain, make_pattern]
    if setting.where == "one node":
        makers += [functools.partial(make_stepped, shared_memory=True), make_process]
    else:
        makers += [functools.partial(make_stepped, shared_memory=False), make_in_flight]
    with contextlib.ExitStack() as stack:
        contenders = []
        for maker in makers:
            contenders.append(contender := maker(setting))
            stack.callback(contender.close)
        rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
        load = []
        for _ in range(rounds):
            load.append(os.getloadavg()[0])
            for contender in random.sample(contenders, len(contenders)):
                rates[contender.name].append(_rate(contender, actions, seconds))
    return Run(setting, rates, load)


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
    parser.add_argument("--where", nargs="+", default=PLACES, choices=PLACES, help="where the workers are")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    rounds, seconds = (3, 0.5) if chosen.quick else (7, 1.0)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, resources={"far": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        runs = [compare(setting, rounds, seconds) for setting in SETTINGS if setting.where in chosen.where]
    finally:
        ray.shutdown()
        cluster.shutdown()
    (chosen.out / "ray.json").write_text(json.dumps([dataclasses.asdict(run) for run in runs], indent=1))
    met = [_show(run) for run in runs]
    return 1 if chosen.strict and not all(met) else 0


def _show(run: Run) -> bool:
    load = f"load {min(run.load):.1f} to {max(run.load):.1f}"
    print(f"\n{run.setting.name} ({load})")
    for name, rates in run.rates.items():
        print(f"  {name:24} {statistics.median(rates):9,.0f} steps of all/s")
    met = True
    others = [name for name in ("plain calls", "pattern", "process") if name in run.rates]
    for ours in [name for name in run.rates if name not in others]:
        for theirs in others:
            ratio = run.ratio(ours, theirs)
            floor = FLOORS.get((ours, theirs, run.setting.name))
            verdict = "" if floor is None else f"  (floor {floor:g}: {'met' if ratio >= floor else 'missed'})"
            met &= floor is None or ratio >= floor
            print(f"  {ours} against {theirs}: {ratio:.3g} ×{verdict}")
    return met


if __name__ == "__main__":
    sys.exit(main())
