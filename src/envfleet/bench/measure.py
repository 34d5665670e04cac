"""Measurements, executed in a child process (see `child`)."""

from __future__ import annotations

import contextlib
import copy
import importlib
import time
from collections.abc import Collection, Hashable, Sequence
from types import ModuleType
from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from envfleet.bench.child import State
from envfleet.bench.contenders import Contender, Runner
from envfleet.bench.workloads import Workload
from envfleet.extras import missing

_NUM_BATCHES = 64  # random actions are drawn before the measurement and repeated


def draw_actions(space: spaces.Space[Any], num_envs: int) -> list[Any]:
    """Return batches of random actions, the same for every contender."""
    batched = batch_space(copy.deepcopy(space), num_envs)
    batched.seed(0)
    return [batched.sample() for _ in range(_NUM_BATCHES)]


def measure_rate(runner: Runner, actions: Sequence[Any], seconds: float) -> float:
    """Step for a fixed time after a short warm-up; return transitions per second.

    Args:
        runner: The sub-environments.
        actions: Batches of actions.
        seconds: Duration; at least one step is measured.
    """
    step, clock, count = runner.step, time.perf_counter, len(actions)
    index = 0

    def step_for(duration: float) -> float:
        nonlocal index
        transitions, start = 0, clock()
        while True:
            transitions += step(actions[index % count])
            index += 1
            if (elapsed := clock() - start) >= duration:
                return transitions / elapsed

    step_for(min(0.2, seconds / 4))
    return step_for(seconds)


def tree_memory_bytes() -> int:
    """Return the memory of this process and its descendants.

    On Linux this is the proportional set size, which counts pages of shared memory once; elsewhere the resident set
    size, which counts them in every process.
    """
    psutil, total = require_psutil(), 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # the process has exited
            held = process.memory_full_info()
            total += getattr(held, "pss", 0) or held.rss
    return total


def tree_cpu_s() -> float:
    """Return the CPU time of this process and its living descendants, in seconds."""
    total = time.process_time()
    for process in require_psutil().Process().children(recursive=True):
        with contextlib.suppress(require_psutil().Error):  # the process has exited
            times = process.cpu_times()
            total += times.user + times.system
    return total


def build_one(state: State, workload: Workload) -> None:
    """Build and close one environment."""
    workload.build().close()


def import_module(state: State, contender: Contender) -> None:
    """Import the module of a contender, so that its start is measured without imports."""
    importlib.import_module(contender.module)


def open_runner(
    state: State, key: Hashable, contender: Contender, workload: Workload, num_envs: int, workers: int | None
) -> tuple[float, int]:
    """Build a contender's sub-environments and keep them in `state` under `key`, unless they exist.

    Returns:
        Seconds from the call that builds them to the end of the first reset, without imports, and the growth of the
            process tree in bytes. Both are 0 if they exist.
    """
    if key in state:
        return 0.0, 0
    import_module(state, contender)
    with contextlib.closing(workload.build()) as probe:
        actions = draw_actions(probe.action_space, num_envs)
    memory_before, start = tree_memory_bytes(), time.perf_counter()
    runner = contender.make(workload, num_envs, workers)
    start_s = time.perf_counter() - start
    state[key] = (runner, actions)
    runner.step(actions[0])  # include memory that is allocated by the first step
    return start_s, max(0, tree_memory_bytes() - memory_before)


def step_runner(state: State, key: Hashable, seconds: float) -> tuple[float, float]:
    """Return transitions per second and CPU seconds per transition of the sub-environments under `key`.

    The CPU time is that of this process and its descendants, including the warm-up.
    """
    runner, actions = state[key]
    cpu_before_s, start = tree_cpu_s(), time.perf_counter()
    rate = measure_rate(runner, actions, seconds)
    wall_s = time.perf_counter() - start
    return rate, (tree_cpu_s() - cpu_before_s) / (rate * wall_s)


def close_others(state: State, kept: Collection[Hashable]) -> None:
    """Close all sub-environments except those under the given keys."""
    for key in set(state).difference(kept):
        state.pop(key)[0].close()


def require_psutil() -> ModuleType:
    """Import psutil.

    Raises:
        MissingDependency: psutil is not installed.
    """
    try:
        import psutil
    except ImportError as error:
        raise missing("measuring", error) from error
    module: ModuleType = psutil
    return module
