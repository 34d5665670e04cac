"""Measurements of `envfleet doctor`, which explains a missing speed-up.

`examine` measures; `diagnose` (in `findings`) derives recommendations.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from envfleet.bench.child import Child, State
from envfleet.bench.contenders import BareLoop, Contender, EnvFleet, kernel_of
from envfleet.bench.measure import require_psutil
from envfleet.bench.results import Machine, Run, describe_machine
from envfleet.bench.rounds import Contest, run_contest
from envfleet.bench.workloads import Workload
from envfleet.fleet.evaluating import Progress
from envfleet.fleet.layout import SpaceLayout
from envfleet.machine import whole_cores

_ENV_TIMEOUT_S = 120.0
_BUSY_S = 0.5
_ROUNDS = 3
_MAX_SAMPLES = 20_000


@dataclasses.dataclass(frozen=True)
class EnvFacts:
    """Measurements of one environment that is stepped with random actions in one process.

    Attributes:
        step_s: Mean time of a step, including the wrappers of `gymnasium.make`.
        step_times: Times of single steps, a sample.
        reset_s: Mean time of a reset without seed.
        episode_steps: Mean length of an ended episode under random actions; `None` if no episode ended.
        observation_bytes: Size of an observation; `None` if its space lacks a fixed shape, so that it is pickled.
        copy_s: Time to copy an observation.
        num_infos: Number of values in the info of a step, including nested ones.
        wrappers: Seconds per step of each wrapper, by class, outermost first.
        threads: Number of threads that one environment starts.
        cores_busy: CPU seconds per second while one environment is stepped.
    """

    step_s: float
    step_times: tuple[float, ...]
    reset_s: float
    episode_steps: float | None
    observation_bytes: int | None
    copy_s: float
    num_infos: float
    wrappers: dict[str, float]
    threads: int
    cores_busy: float

    @property
    def reset_share(self) -> float:
        """Share of resets in a sub-environment's time."""
        per_step = self.reset_s / self.episode_steps if self.episode_steps else 0.0
        return per_step / (per_step + self.step_s)

    @property
    def step_with_resets_s(self) -> float:
        """Mean time of a step, including its share of resets."""
        return self.step_s / (1.0 - self.reset_share)


@dataclasses.dataclass(frozen=True)
class Facts:
    """All measurements of the doctor.

    Attributes:
        env: Measurements of a single environment.
        run: Rates of a bare loop and of fleets: serial, process, and kernel if there is one.
        workers: Number of workers of the process fleet.
        kernel: Id of the environment if it is a kernel, or of its compiled twin; `None` without one.
        policy_s: Time of the policy per batch of actions; 0 if not given.
        machine: Machine that it ran on.
        busy_cores: Cores that other processes used before the measurement.
        ray_niceness: Highest niceness of the workers of a Ray cluster that runs on this machine; 0 without one.
    """

    env: EnvFacts
    run: Run
    workers: int
    kernel: str | None
    policy_s: float
    machine: Machine
    busy_cores: float
    ray_niceness: int = 0

    def step_s(self, backend: str) -> float | None:
        """Return the time of a step of a whole fleet; `None` if it was not measured."""
        entry = self.run.find(f"envfleet-{backend}")
        return None if entry is None else self.run.num_envs / entry.rate

    @property
    def fastest_s(self) -> float:
        """Time of a step of the faster of both Python fleets, or of a plain loop if both failed."""
        times = [step_s for backend in ("serial", "process") if (step_s := self.step_s(backend)) is not None]
        return min(times, default=self.run.num_envs * self.env.step_with_resets_s)

    def gain(self, before_s: float, after_s: float) -> float:
        """Return the speed-up of the whole loop, including the policy."""
        return (self.policy_s + before_s) / (self.policy_s + after_s)


def examine(
    workload: Workload,
    num_envs: int,
    workers: int | None = None,
    *,
    policy_s: float = 0.0,
    seconds: float = 0.5,
    progress: Progress,
) -> Facts:
    """Measure an environment and fleets of it.

    Args:
        workload: The environment.
        num_envs: Number of sub-environments of the fleets.
        workers: Number of workers of the process fleet; by default the number of usable cores.
        policy_s: Time of the policy per batch of actions, if known.
        seconds: Approximate duration of one measurement.
        progress: Called with the current work and the finished fraction.

    Raises:
        ChildFailed: A single environment could not be built and stepped.
    """
    progress("looking at the machine", 0.0)
    psutil, kernel, workers = require_psutil(), kernel_of(workload), min(workers or whole_cores(), num_envs)
    busy_cores = psutil.cpu_percent(interval=_BUSY_S) / 100 * (psutil.cpu_count() or 1)
    alone = f"one {workload.spec.id} by itself"
    progress(alone, 0.05)
    with Child(alone) as child:
        env_facts = child.call(probe_env, _ENV_TIMEOUT_S, workload, seconds)
    contenders: list[Contender] = [BareLoop(), EnvFleet("serial"), EnvFleet("process")]
    compiled = EnvFleet("kernel", {"workers": None})  # it chooses its number of threads
    if compiled.absence(workload) is None:
        contenders.append(compiled)
    contest = Contest(workload, num_envs, workers, contenders)
    run = run_contest(contest, seconds, _ROUNDS, lambda text, fraction: progress(text, 0.3 + 0.7 * fraction))
    kernel_id = None if kernel is None else kernel.id
    return Facts(env_facts, run, workers, kernel_id, policy_s, describe_machine(), busy_cores, find_ray_niceness())


def find_ray_niceness() -> int:
    """Return the highest niceness of the workers of a Ray cluster on this machine; 0 without one."""
    processes = require_psutil().process_iter(["cmdline", "nice"])
    values = [one.info["nice"] for one in processes if "".join(one.info["cmdline"] or ()).startswith("ray::")]
    return max((niceness for niceness in values if niceness is not None), default=0)


def probe_env(state: State, workload: Workload, seconds: float) -> EnvFacts:
    """Measure one environment; runs in a child process.

    Args:
        state: State of the child process; unused.
        workload: Environment to build.
        seconds: Approximate duration of stepping.
    """
    process = require_psutil().Process()
    threads_before = process.num_threads()
    with contextlib.closing(workload.build()) as env:
        stepping = _time_steps(env, seconds)
        threads = max(0, process.num_threads() - threads_before)
        reset_s = statistics.fmean(_time_calls(env.reset, seconds / 4))
        observation, layout = env.reset(seed=0)[0], SpaceLayout(env.observation_space)
        leaves = [] if layout.num_objects else list(map(np.asarray, layout.apart(observation)))
        wrappers = _time_wrappers(env, seconds)
    return EnvFacts(
        **stepping,
        reset_s=reset_s,
        observation_bytes=None if layout.num_objects else sum(leaf.nbytes for leaf in leaves),
        copy_s=statistics.median(_time_calls(lambda: [leaf.copy() for leaf in leaves], 0.02)),
        wrappers=wrappers,
        threads=threads,
    )


def _time_steps(env: gymnasium.Env[Any, Any], seconds: float) -> dict[str, Any]:
    """Step for the given time; return the attributes of `EnvFacts` that result."""
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(256)]
    env.reset(seed=0)
    env.step(actions[0])  # the first step may compile, allocate or load
    env.reset(seed=0)
    infos = episodes = ended_steps = 0
    times: list[float] = []
    cpu_before, start = time.process_time(), time.perf_counter()
    while (time.perf_counter() - start < seconds or not times) and len(times) < _MAX_SAMPLES:
        before = time.perf_counter()
        _, _, terminated, truncated, info = env.step(actions[len(times) % 256])
        times.append(time.perf_counter() - before)
        infos += _count_values(info)
        if terminated or truncated:
            episodes += 1
            ended_steps = len(times)
            env.reset()
    return {
        "cores_busy": (time.process_time() - cpu_before) / (time.perf_counter() - start),
        "step_s": statistics.fmean(times),
        "step_times": tuple(times[:: max(1, len(times) // 500)]),
        "episode_steps": ended_steps / episodes if episodes else None,
        "num_infos": infos / len(times),
    }


def _time_calls(function: Callable[[], object], seconds: float) -> list[float]:
    """Call for the given time, at least three times; return the times of the calls."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < seconds and len(times) < _MAX_SAMPLES):
        before = time.perf_counter()
        function()
        times.append(time.perf_counter() - before)
    return times


def _time_wrappers(env: gymnasium.Env[Any, Any], seconds: float) -> dict[str, float]:
    """Step the environment at every layer; the cost of a wrapper is the difference of two medians."""
    layers: list[gymnasium.Env[Any, Any]] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    medians = list[float]()
    for layer in layers:
        # Wrappers may change the action space, so each layer gets an action of its space. It is drawn once, so that
        # all steps of a layer cost the same.
        action = layer.action_space.sample()

        def step(layer: gymnasium.Env[Any, Any] = layer, action: Any = action) -> None:
            _, _, terminated, truncated, _ = layer.step(action)
            if terminated or truncated:  # too rare to change the median
                env.reset()

        env.reset(seed=0)
        medians.append(statistics.median(_time_calls(step, seconds / len(layers))))
    costs: dict[str, float] = {}
    for layer, outer, inner in zip(layers, medians, medians[1:], strict=False):
        name = type(layer).__name__
        costs[name] = costs.get(name, 0.0) + max(0.0, outer - inner)
    return costs


def _count_values(info: Mapping[str, Any]) -> int:
    return sum(_count_values(value) if isinstance(value, Mapping) else 1 for value in info.values())
