"""Fleets of Python environments against a bare loop, Gymnasium's, Stable-Baselines3's and EnvPool's."""

from __future__ import annotations

import contextlib
import functools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
from benchmarks.case import Record, Session
from benchmarks.report import number
from gymnasium.vector import AsyncVectorEnv

from envfleet.adapters.gymnasium import AsyncFleet
from envfleet.bench.child import ChildFailed
from envfleet.bench.contenders import CONTENDERS, PEER_NAMES, EnvFleet, GymnasiumVector
from envfleet.bench.results import Run
from envfleet.bench.rounds import Contest, require_buildable, run_contest
from envfleet.bench.workloads import BUILT_IN, resolve
from envfleet.machine import whole_cores

SIZES = {"hockey": (64,), "breakout": (8, 32), "halfcheetah": (8, 32), "minigrid": (8, 32)}
"""Workloads that are measured with some numbers of sub-environments only."""


def compare_fleets(
    session: Session,
    *,
    workloads: tuple[str, ...] = tuple(BUILT_IN),
    sizes: tuple[int, ...] = (1, 8, 64, 256),
    backends: tuple[str, ...] = ("serial", "thread", "process", "auto"),
    loops: tuple[int, ...] = (0,),
    threads: tuple[int, ...] = (0,),
) -> None:
    """Compare fleets with a bare loop, Gymnasium, Stable-Baselines3 and EnvPool.

    Args:
        session: Session of the case.
        workloads: Built-in workloads, or ids of environments.
        sizes: Numbers of sub-environments of workloads that are not in `SIZES`.
        backends: Backends of envfleet.
        loops: Numbers of busy loops that run next to the contenders.
        threads: Numbers of threads of more native fleets; 0 for none.
    """
    for name in workloads:
        workload = resolve(name)
        try:
            require_buildable(workload)
        except ChildFailed as error:
            session.progress(f"left out: {error}\n")
            continue
        for num_envs in SIZES.get(name, sizes):
            contenders = [*(CONTENDERS[peer] for peer in PEER_NAMES), *map(EnvFleet, backends)]
            contenders += [EnvFleet("native", {"workers": count}, f"{count}-threads") for count in threads if count]
            if workload.spec.vector_entry_point is not None:
                contenders.append(GymnasiumVector("vector_entry_point"))
            contest = Contest(workload, num_envs, whole_cores(), contenders)
            for count in loops:
                setting = f"{num_envs} × {name}" + (f", {count} busy loops" if count else "")
                with busy_loops(count):
                    run = run_contest(contest, session.seconds, session.rounds, lambda text, _: session.progress(text))
                _record(session, setting, run)


def compare_native(
    session: Session,
    *,
    workloads: tuple[str, ...] = (
        *("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5", "Humanoid-v5"),
        "breakout",
    ),
    sizes: tuple[int, ...] = (8, 32),
    loops: tuple[int, ...] = (0,),
    threads: tuple[int, ...] = (0,),
) -> None:
    """Compare native MuJoCo tasks and Atari with all other ways to step them; `loops` and `threads` as of `fleet`."""
    backends = "process", "thread", "native"
    compare_fleets(session, workloads=workloads, sizes=sizes, backends=backends, loops=loops, threads=threads)


def _record(session: Session, setting: str, run: Run) -> None:
    for entry in run.entries:
        if entry.rates:
            notes = {"µs of CPU per transition": number(1e6 * statistics.median(entry.cpu_s))}
            session.add(Record(setting, entry.contender.removeprefix("envfleet-"), entry.rates, notes))
        elif "rewritten in C++" not in entry.problem:
            session.progress(f"{setting}, {entry.label}: {entry.problem}\n")


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that never sleep."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        if count:
            time.sleep(2.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def compare_busy(
    session: Session,
    *,
    loops: tuple[int, ...] = (0, 8, 24),
    steps: tuple[int, ...] = (50, 500),
    num_envs: int = 8,
    env: str = "CartPole-v1",
) -> None:
    """Compare the first steps of a new fleet with those of AsyncVectorEnv, next to busy loops."""
    make_envs = [functools.partial(gymnasium.make, env)] * num_envs

    def measure(kind: Callable[[Any], Any], num_steps: int) -> float:
        with contextlib.closing(kind(make_envs)) as envs:
            envs.reset(seed=0)
            actions = envs.action_space.sample()
            start_s = time.perf_counter()
            for _ in range(num_steps):
                envs.step(actions)
            return num_steps * num_envs / (time.perf_counter() - start_s)

    for count in loops:
        with busy_loops(count):
            for num_steps in steps:
                setting = f"first {num_steps} steps, {count} busy loops"
                kinds = {"AsyncFleet": AsyncFleet, "AsyncVectorEnv": AsyncVectorEnv}
                session.compare(
                    setting, {name: functools.partial(measure, kind, num_steps) for name, kind in kinds.items()}
                )
