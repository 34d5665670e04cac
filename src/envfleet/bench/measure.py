"""The measurements themselves. They run inside a child process (see `child`), on whatever is built there."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import time
from collections.abc import Hashable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from envfleet.bench.contenders import Contender, Runner
from envfleet.bench.workloads import Workload
from envfleet.errors import InvalidArgument

State = dict[Any, Any]
"""What a child process keeps between calls."""

_CPU_TIMES = ("user", "system", "children_user", "children_system")
_NUM_BATCHES = 64  # random actions are drawn before the clock runs and used over and over


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement of a steady state.

    Attributes:
        transitions: Environment steps made; rows that were only resets are not counted.
        vector_steps: Calls of `step`.
        seconds: Wall time.
        p50_us: Median wall time of one call of `step`, in microseconds.
        p99_us: Its 99th percentile.
        cpu_s: CPU time used by the process and all its descendants.
    """

    transitions: int
    vector_steps: int
    seconds: float
    p50_us: float
    p99_us: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Environment steps a second."""
        return self.transitions / self.seconds


def draw_actions(space: spaces.Space[Any], num_envs: int, count: int = _NUM_BATCHES) -> list[Any]:
    """Draw batches of random actions, the same for every contender."""
    batched = batch_space(copy.deepcopy(space), num_envs)
    batched.seed(0)
    return [batched.sample() for _ in range(count)]


def measure_steps(runner: Runner, actions: Sequence[Any], seconds: float, warm_up_s: float) -> Sample:
    """Step for a fixed time after a warm-up.

    Args:
        runner: Reset already.
        actions: Batches of actions, used in turn.
        seconds: How long to measure; at least one step is made.
        warm_up_s: How long to step before; at least one step is made.
    """
    step, clock, count = runner.step, time.perf_counter_ns, len(actions)
    end = clock() + int(warm_up_s * 1e9)
    index = 0
    while True:
        step(actions[index % count])
        index += 1
        if clock() >= end:
            break
    durations: list[int] = []
    transitions = 0
    cpu_before = tree_cpu_s()
    start = now = clock()
    end = start + int(seconds * 1e9)
    while now < end or not durations:
        transitions += step(actions[index % count])
        index += 1
        before, now = now, clock()
        durations.append(now - before)
    cpu_s = tree_cpu_s() - cpu_before
    p50, p99 = np.percentile(np.asarray(durations), [50, 99]) / 1e3
    return Sample(transitions, len(durations), (now - start) / 1e9, float(p50), float(p99), max(0.0, cpu_s))


def tree_cpu_s() -> float:
    """Sum the CPU time of this process, its living descendants and those they have waited for.

    This process's own is exact; the system counts the descendants' in ticks, usually of 10 ms.
    """
    return time.process_time() + sum(
        getattr(times, name, 0.0) for times in _read_tree("cpu_times", with_own=False) for name in _CPU_TIMES
    )


def tree_memory_bytes() -> int:
    """Sum the memory of this process and its descendants.

    Proportional set size where the system gives it, so that pages shared by forked processes and shared memory count
    once; elsewhere the resident set size, which counts them in every process.
    """
    return sum(getattr(held, "pss", 0) or held.rss for held in _read_tree("memory_full_info", with_own=True))


def _read_tree(method: str, *, with_own: bool) -> Iterator[Any]:
    psutil = require_psutil()
    own = psutil.Process()
    for process in [*([own] if with_own else []), *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):  # it has ended
            yield getattr(process, method)()


def import_modules(state: State, contender: Contender) -> None:
    """Import what a contender needs in this process, so that its start is measured without."""
    for module in contender.modules:
        importlib.import_module(module)


def open_runner(
    state: State, key: Hashable, contender: Contender, workload: Workload, num_envs: int, workers: int | None
) -> tuple[float, int]:
    """Build a contender's sub-environments in this process and keep them in `state` under `key`.

    Returns:
        Seconds from the call that builds them to the end of the first reset, imports not included; and by how many
            bytes the process tree grew (proportional set size where the system tells, else resident).
    """
    import_modules(state, contender)
    with contextlib.closing(workload.build()) as probe:
        actions = draw_actions(probe.action_space, num_envs)
    memory_before, start = tree_memory_bytes(), time.perf_counter()
    runner = contender.make(workload, num_envs, workers)
    state[key] = (runner, actions)
    runner.reset(seed=0)
    start_s = time.perf_counter() - start
    runner.step(actions[0])  # memory that only stepping needs is counted too
    return start_s, max(0, tree_memory_bytes() - memory_before)


def step_runner(state: State, key: Hashable, seconds: float, warm_up_s: float) -> Sample:
    """Measure what is kept under `key`."""
    runner, actions = state[key]
    return measure_steps(runner, actions, seconds, warm_up_s)


def idle_runner(state: State, seconds: float) -> float:
    """Wait, and return the CPU time that the process tree used meanwhile, in seconds of CPU a second."""
    before, start = tree_cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return max(0.0, tree_cpu_s() - before) / (time.perf_counter() - start)


def close_runner(state: State, key: Hashable) -> float:
    """Close what is kept under `key`; return how long that took in seconds."""
    runner, _ = state.pop(key)
    start = time.perf_counter()
    runner.close()
    return time.perf_counter() - start


def require_psutil() -> ModuleType:
    """Import psutil.

    Raises:
        InvalidArgument: It is not installed.
    """
    try:
        import psutil
    except ImportError as error:
        raise InvalidArgument(
            "measuring needs psutil, which is not installed: pip install 'envfleet[bench]' (or pip install psutil)."
        ) from error
    module: ModuleType = psutil
    return module
