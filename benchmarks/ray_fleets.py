"""Fleets on Ray against plain actor calls, the scheme of RayEnvWrapper, and worker processes.

A cluster of two nodes runs on this machine. `plain calls` has an actor per worker with a list of environments, and
`ray.get` of all. `original` is the scheme of RayEnvWrapper: an actor per worker with a `DummyVecEnv`, `ray.wait` and
`ray.get` for each, results put in order. Both do less than a fleet: no episode statistics, no restarts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import ray
from benchmarks.case import Session, rate_of
from ray.cluster_utils import Cluster

import envfleet

LITTLE = 0.01
Step = Callable[[Any], object]


class Setting(NamedTuple):
    """Environment, node of the workers (`near` or `far`), numbers of workers and of sub-environments of each."""

    env: str
    node: str
    workers: int
    envs: int

    @property
    def options(self) -> dict[str, Any]:
        """Options of an actor."""
        return {"num_cpus": LITTLE, **({"resources": {"far": LITTLE}} if self.node == "far" else {})}


SETTINGS = (
    *(Setting("CartPole", "near", *size) for size in ((2, 1), (2, 4), (2, 64), (4, 2))),
    *(Setting("CartPole", "far", *size) for size in ((2, 4), (2, 64))),
    Setting("simulator", "far", 4, 2),
)


class Simulator(gym.Env[Any, Any]):
    """Waits 4 ms per step on average, exponentially distributed, as a program outside of Python does."""

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
    "simulator": Simulator,
}


class PlainWorker:
    """List of environments in an actor; each call returns arrays."""

    def __init__(self, make_env: Callable[[], Any], num_envs: int) -> None:
        self._envs = [make_env() for _ in range(num_envs)]

    def reset(self, seed: int) -> Any:
        return np.stack([env.reset(seed=seed + index)[0] for index, env in enumerate(self._envs)])

    def step(self, actions: Any) -> Any:
        rows = []
        for env, action in zip(self._envs, actions, strict=True):
            observation, reward, terminated, truncated, _ = env.step(int(action))
            if terminated or truncated:
                observation = env.reset()[0]
            rows.append((observation, reward, terminated, truncated))
        return tuple(map(np.stack, zip(*rows, strict=True)))


class DummyWorker:
    """`DummyVecEnv` in an actor."""

    def __init__(self, make_env: Callable[[], Any], num_envs: int) -> None:
        from stable_baselines3.common.vec_env import DummyVecEnv

        self._envs = DummyVecEnv([make_env] * num_envs)

    def reset(self, seed: int) -> Any:
        self._envs.seed(seed)
        return self._envs.reset()

    def step(self, actions: Any) -> Any:
        return self._envs.step(actions)


@contextlib.contextmanager
def _actors(kind: type, setting: Setting) -> Iterator[list[Any]]:
    actor_class: Any = ray.remote(kind).options(**setting.options)
    actors = [actor_class.remote(MAKERS[setting.env], setting.envs) for _ in range(setting.workers)]
    ray.get([actor.reset.remote(index * setting.envs) for index, actor in enumerate(actors)])
    yield actors
    for actor in actors:
        ray.kill(actor)


@contextlib.contextmanager
def plain_calls(setting: Setting) -> Iterator[Step]:
    """Yield the step of plain actor calls."""
    with _actors(PlainWorker, setting) as actors:

        def step(actions: Any) -> object:
            parts = np.split(actions, setting.workers)
            results = ray.get([actor.step.remote(part) for actor, part in zip(actors, parts, strict=True)])
            return [np.concatenate(column) for column in zip(*results, strict=True)]

        yield step


@contextlib.contextmanager
def original(setting: Setting) -> Iterator[Step]:
    """Yield the step of RayEnvWrapper's scheme."""
    with _actors(DummyWorker, setting) as actors:

        def step(actions: Any) -> object:
            parts = np.split(actions, setting.workers)
            order = {actor.step.remote(part): k for k, (actor, part) in enumerate(zip(actors, parts, strict=True))}
            results: list[Any] = [None] * setting.workers
            left = list(order)
            while left:
                (ref, *_), left = ray.wait(left, num_returns=1)
                results[order[ref]] = ray.get(ref)
            *columns, infos = zip(*results, strict=True)
            return [*map(np.concatenate, columns), [info for part in infos for info in part]]

        yield step


@contextlib.contextmanager
def wrapper(setting: Setting) -> Iterator[Step]:
    """Yield the step of our `RayEnvWrapper`, on Ray."""
    from RayEnvWrapper import WrapperRayVecEnv

    def make_env(seed: int) -> Any:
        env = MAKERS[setting.env]()
        env.reset(seed=seed)
        return env

    with contextlib.closing(
        WrapperRayVecEnv(make_env, setting.workers, setting.envs, ray_options=setting.options)
    ) as envs:
        envs.reset()
        yield envs.step


@contextlib.contextmanager
def fleet(setting: Setting, *, in_flight: bool = False, **options: Any) -> Iterator[Step]:
    """Yield the step of a fleet; in flight, a worker that is ready is received and sent its next step."""
    batch_size = setting.envs if in_flight else None
    counts: dict[str, Any] = {"workers": setting.workers, "envs_per_worker": setting.envs, "batch_size": batch_size}
    with envfleet.make(MAKERS[setting.env], **counts, **options) as envs:
        envs.reset(seed=0)
        if not in_flight:
            yield envs.step
            return
        envs.send(np.zeros(setting.workers * setting.envs, np.int64))

        def step(actions: Any) -> object:
            batches = []
            for _ in range(setting.workers):
                batches.append(batch := envs.recv())
                envs.send(actions[batch.env_indices], batch.env_indices)
            return batches

        yield step


def compare_ray(session: Session, *, nodes: tuple[str, ...] = ("near", "far")) -> None:
    """Compare fleets on Ray with plain actor calls and RayEnvWrapper's scheme.

    `far` workers are on the other node and are reached by TCP.
    """
    config = {"worker_niceness": 0}  # with 15, Ray's default, figures depend on other programs
    head = {"num_cpus": 2, "include_dashboard": False, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, resources={"far": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        for setting in SETTINGS:
            if setting.node in nodes:
                _compare(session, setting)
    finally:
        ray.shutdown()
        cluster.shutdown()


def _compare(session: Session, setting: Setting) -> None:
    actions = itertools.cycle(np.random.default_rng(0).integers(2, size=(64, setting.workers * setting.envs)))
    contenders = {"plain calls": plain_calls(setting), "original": original(setting), "wrapper": wrapper(setting)}
    options = {**setting.options, "shared_memory": setting.node == "near"}
    on_ray = functools.partial(fleet, setting, backend="ray", ray_options=options)
    if setting.node == "near":
        contenders |= {"shared memory": on_ray(), "process": fleet(setting, backend="process")}
    else:
        contenders |= {"TCP": on_ray(), "TCP, in flight": on_ray(in_flight=True)}
    with contextlib.ExitStack() as stack:
        rates = {}
        for name, one in contenders.items():
            step = stack.enter_context(one)
            next_step = functools.partial(_step_next, step, actions)
            for _ in range(20):
                next_step()
            rates[name] = rate_of(next_step, 1.0, session.seconds)
        session.compare(f"{setting.env}, {setting.node}, {setting.workers} × {setting.envs}", rates)


def _step_next(step: Step, actions: Iterator[Any]) -> None:
    step(next(actions))
