"""What the doctor measures on a single environment. Runs in a child process, see `child`."""

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
from gymnasium import spaces

from envfleet.bench.machine import require_psutil
from envfleet.bench.measure import tree_cpu_s, tree_memory_bytes
from envfleet.bench.workloads import Workload

_MAX_SAMPLES = 20_000
_MEMORY_ENVS = 4
_WRAPPER_TURNS = 5


@dataclasses.dataclass(frozen=True)
class WrapperCost:
    """What one wrapper adds to a step.

    Attributes:
        name: The wrapper's class.
        step_s: Seconds it adds to every step.
    """

    name: str
    step_s: float


@dataclasses.dataclass(frozen=True)
class EnvFacts:
    """One environment, stepped with random actions in one process.

    Attributes:
        build_s: Time to build the second one; the first also imports.
        step_s: Mean time of a step, as `gymnasium.make` wraps it.
        step_times: Single steps' times, a sample of them.
        reset_s: Mean time of a reset without a seed.
        seeded_reset_s: Mean time of a reset with a new seed.
        episode_steps: Mean length of an episode under random actions; capped by the time measured.
        is_episode_seen: Whether an episode ended at all while it was measured.
        observation_bytes: Size of one observation; 0 where its space has no fixed shape.
        observation_dtypes: Types of its leaves.
        copy_s: Time to copy one observation.
        has_fixed_shape: Whether all of the observation can live in shared arrays.
        num_infos: Values in the info of a step, counting nested ones.
        wrappers: What each wrapper adds to a step, outermost first.
        threads: Threads of the operating system that one environment starts.
        cores_busy: CPU seconds that stepping one environment uses a second.
        memory_bytes: What one more environment adds to a process.
    """

    build_s: float
    step_s: float
    step_times: tuple[float, ...]
    reset_s: float
    seeded_reset_s: float
    episode_steps: float
    is_episode_seen: bool
    observation_bytes: int
    observation_dtypes: tuple[str, ...]
    copy_s: float
    has_fixed_shape: bool
    num_infos: float
    wrappers: tuple[WrapperCost, ...]
    threads: int
    cores_busy: float
    memory_bytes: int


def probe_env(state: dict[str, Any], workload: Workload, seconds: float) -> EnvFacts:
    """Measure one environment.

    Args:
        state: The child's; unused.
        workload: What to build.
        seconds: About how long to step and to reset, each.
    """
    del state
    process = require_psutil().Process()
    threads_before = process.num_threads()
    with contextlib.closing(workload.build()) as env:
        stepping = _time_steps(env, seconds)
        threads = max(0, process.num_threads() - threads_before)
        reset_s = statistics.fmean(_time_calls(lambda index: env.reset(), seconds / 4))
        seeded_reset_s = statistics.fmean(_time_calls(lambda index: env.reset(seed=index), seconds / 4))
        observation, _ = env.reset(seed=0)
        fixed = is_fixed_shape(env.observation_space)
        leaves = _leaves(observation) if fixed else []
        wrappers = _time_wrappers(env, seconds)
        build_s, memory_bytes = _measure_more(workload)
    return EnvFacts(
        build_s=build_s,
        step_s=stepping.mean_s,
        step_times=stepping.times,
        reset_s=reset_s,
        seeded_reset_s=seeded_reset_s,
        episode_steps=stepping.count / max(1, stepping.episodes),
        is_episode_seen=stepping.episodes > 0,
        observation_bytes=sum(leaf.nbytes for leaf in leaves),
        observation_dtypes=tuple(sorted({str(leaf.dtype) for leaf in leaves})),
        copy_s=statistics.median(_time_calls(lambda index: [leaf.copy() for leaf in leaves], 0.02)),
        has_fixed_shape=fixed,
        num_infos=stepping.num_infos,
        wrappers=wrappers,
        threads=threads,
        cores_busy=stepping.cores_busy,
        memory_bytes=memory_bytes,
    )


def is_fixed_shape(space: spaces.Space[Any]) -> bool:
    """Tell whether a space's values can live in arrays of one shape."""
    if isinstance(space, spaces.Dict):
        return all(is_fixed_shape(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return all(is_fixed_shape(part) for part in space.spaces)
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)


@dataclasses.dataclass(frozen=True)
class _Stepping:
    mean_s: float
    times: tuple[float, ...]
    count: int
    episodes: int
    num_infos: float
    cores_busy: float


def _time_steps(env: gymnasium.Env[Any, Any], seconds: float) -> _Stepping:
    space = copy.deepcopy(env.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(256)]
    env.reset(seed=0)
    env.step(actions[0])  # the first step may compile, allocate or load
    env.reset(seed=0)
    clock = time.perf_counter
    times: list[float] = []
    infos = episodes = 0
    cpu_before, start = tree_cpu_s(), clock()
    while (clock() - start < seconds or not times) and len(times) < _MAX_SAMPLES:
        before = clock()
        _, _, terminated, truncated, info = env.step(actions[len(times) % 256])
        after = clock()
        times.append(after - before)
        infos += _count_values(info)
        if terminated or truncated:
            episodes += 1
            env.reset()
    wall_s = clock() - start
    cores_busy = (tree_cpu_s() - cpu_before) / wall_s
    kept = tuple(times[:: max(1, len(times) // 500)])
    return _Stepping(statistics.fmean(times), kept, len(times), episodes, infos / len(times), cores_busy)


def _time_calls(function: Callable[[int], Any], seconds: float) -> list[float]:
    """Call for a time, at least three times; return each call's time."""
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < seconds and len(times) < _MAX_SAMPLES):
        before = time.perf_counter()
        function(len(times))
        times.append(time.perf_counter() - before)
    return times


def _time_wrappers(env: gymnasium.Env[Any, Any], seconds: float) -> tuple[WrapperCost, ...]:
    """Step the environment at every layer in turns; a wrapper's cost is its layer's median less the next one's."""
    layers: list[gymnasium.Env[Any, Any]] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    slice_s = seconds / (_WRAPPER_TURNS * len(layers))
    medians: list[list[float]] = [[] for _ in layers]
    for _ in range(_WRAPPER_TURNS):
        for layer, found in zip(layers, medians, strict=True):
            found.append(_median_step(env, layer, slice_s))
    costs = [min(found) for found in medians]
    return tuple(
        WrapperCost(type(layer).__name__, max(0.0, outer - inner))
        for layer, outer, inner in zip(layers, costs, costs[1:], strict=False)
    )


def _median_step(env: gymnasium.Env[Any, Any], layer: gymnasium.Env[Any, Any], seconds: float) -> float:
    # The action is the layer's own, as wrappers may change the action space. It is drawn once: some layers change the
    # space's random state, and none may cost differently for it.
    action = layer.action_space.sample()
    env.reset(seed=0)
    step, clock = layer.step, time.perf_counter
    times: list[float] = []
    start = clock()
    while clock() - start < seconds or not times:
        before = clock()
        _, _, terminated, truncated, _ = step(action)
        times.append(clock() - before)
        if terminated or truncated:
            env.reset()
    return statistics.median(times)


def _measure_more(workload: Workload) -> tuple[float, int]:
    """Build a few more environments, take one step in each; return seconds and bytes of one."""
    before, start = tree_memory_bytes(), time.perf_counter()
    with contextlib.ExitStack() as stack:
        envs = [stack.enter_context(contextlib.closing(workload.build())) for _ in range(_MEMORY_ENVS)]
        build_s = (time.perf_counter() - start) / _MEMORY_ENVS
        for env in envs:
            env.reset(seed=0)
            env.step(env.action_space.sample())
        grown = max(0, tree_memory_bytes() - before)
    return build_s, grown // _MEMORY_ENVS


def _leaves(value: Any) -> list[np.ndarray[Any, np.dtype[Any]]]:
    if isinstance(value, Mapping):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _leaves(part)]
    return [np.asarray(value)]


def _count_values(info: Mapping[str, Any]) -> int:
    return sum(_count_values(value) if isinstance(value, Mapping) else 1 for value in info.values())
