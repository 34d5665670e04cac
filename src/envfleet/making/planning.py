"""Choose backend and workers: as told, or by measuring."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.core.cores import whole_cores
from envfleet.core.fleet import Fleet
from envfleet.core.stats import Plan
from envfleet.making.assembly import Blueprint
from envfleet.transports.launch import StartMethod, default_start_method

TRIAL_S = 0.03
"""How long one round of one candidate is stepped."""

ROUNDS = 3

CHEAP_STEP_S = 150e-6
"""A step of the whole fleet in one thread that takes less than this is not worth a trial of processes: waking them and
waiting for them costs about as much."""

MARGIN = 1.1
"""By how much processes must win, since they also cost memory and start-up."""


def fixed_plan(
    backend: str,
    num_envs: int,
    workers: int | None,
    envs_per_worker: int | None,
    start_method: StartMethod | None,
    reason: str,
) -> Plan:
    """The plan that the arguments ask for; workers default to one per usable core."""
    if backend == "serial":
        return Plan("serial", 1, (num_envs,), reason)
    if envs_per_worker is not None:
        sizes = [envs_per_worker] * (num_envs // envs_per_worker)
        if num_envs % envs_per_worker:
            sizes.append(num_envs % envs_per_worker)
    else:
        count = min(workers or whole_cores(), num_envs)
        sizes = [num_envs // count + (index < num_envs % count) for index in range(count)]
    method = (start_method or default_start_method()) if backend == "process" else None
    return Plan(backend, len(sizes), tuple(sizes), reason, method)


def choose(blueprint: Blueprint, workers: int | None, envs_per_worker: int | None) -> Fleet:
    """Build the fastest fleet: step the candidates for a few milliseconds each, and build the best of them anew.

    One thread is tried first. Processes are tried if a step takes long enough for them to help and there is more than
    one usable core: with one worker per core (or as many as asked for), in alternating rounds with the serial fleet,
    and chosen if they are faster by more than a tenth. `fleet.plan` holds what was measured.

    Args:
        blueprint: What to build.
        workers: As asked for, if it was.
        envs_per_worker: As asked for, if it was.
    """
    num_envs, method = len(blueprint.builders), blueprint.start_method
    with blueprint.build(fixed_plan("serial", num_envs, None, None, method, "a trial")) as serial:
        serial_s = _step_s(serial, TRIAL_S)
        trials = [("serial", num_envs / serial_s)]
        reason = _reason_against_processes(serial_s, num_envs, workers)
        backend = "serial"
        if reason is None:
            plan = fixed_plan("process", num_envs, workers, envs_per_worker, method, "a trial")
            with blueprint.build(plan) as process:
                rounds = [(_step_s(process, TRIAL_S), _step_s(serial, TRIAL_S)) for _ in range(ROUNDS)]
            process_s, serial_s = sorted(rounds, key=lambda times: times[1] / times[0])[ROUNDS // 2]
            trials = [("serial", num_envs / serial_s), (plan.describe(), num_envs / process_s)]
            reason = f"{plan.describe()} stepped {serial_s / process_s:.2f} × as fast as serial"
            backend = "process" if serial_s / process_s > MARGIN else "serial"
    chosen = fixed_plan(backend, num_envs, workers, envs_per_worker, method, f"auto: {reason}")
    return blueprint.build(dataclasses.replace(chosen, trials=tuple(trials)))


def _reason_against_processes(serial_s: float, num_envs: int, workers: int | None) -> str | None:
    """Why processes need not even be tried, or `None`."""
    if os.name != "posix":
        return "worker processes need POSIX"
    if min(workers or whole_cores(), num_envs) < 2:
        return "there is one sub-environment" if num_envs < 2 else "there is one worker"
    if whole_cores() < 2:
        return "there is one usable core"
    if serial_s < CHEAP_STEP_S:
        return f"one step of all takes {serial_s * 1e6:.0f} µs in one thread, too short for processes to help"
    return None


def _step_s(fleet: Fleet, trial_s: float) -> float:
    """Seconds of one step of the whole fleet with random actions; at least two steps are taken."""
    fleet.reset()  # without a seed: a trial must not make later episodes predictable
    actions = fleet.action_space.sample()
    _step(fleet, actions)
    steps, start_s = 0, time.perf_counter()
    while steps < 2 or time.perf_counter() - start_s < trial_s:
        _step(fleet, actions)
        steps += 1
    return (time.perf_counter() - start_s) / steps


def _step(fleet: Fleet, actions: Any) -> None:
    fleet.step(actions)
    if fleet.metadata["autoreset_mode"] is AutoresetMode.DISABLED and fleet.terminated_indices:
        fleet.reset_envs(fleet.terminated_indices)
