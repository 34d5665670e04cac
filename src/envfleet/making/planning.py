"""Choose backend and workers: as told, or by measuring."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from envfleet.core.fleet import Fleet
from envfleet.core.stats import Plan
from envfleet.making.assembly import Blueprint, usable_cores
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
        count = min(workers or usable_cores(), num_envs)
        sizes = [num_envs // count + (index < num_envs % count) for index in range(count)]
    method = (start_method or default_start_method()) if backend == "process" else None
    return Plan(backend, len(sizes), tuple(sizes), reason, method)


def choose(blueprint: Blueprint, workers: int | None, envs_per_worker: int | None) -> Fleet:
    """Build the fastest fleet: step the candidates for a few milliseconds each and keep the best.

    One thread is tried first. Processes are tried if a step takes long enough for them to help and there is more than
    one usable core: with one worker per core (or as many as asked for), in alternating rounds with the serial fleet,
    and kept if they are faster by more than a tenth. `fleet.plan` holds what was measured.

    Args:
        blueprint: What to build.
        workers: As asked for, if it was.
        envs_per_worker: As asked for, if it was.
    """
    num_envs, method = len(blueprint.builders), blueprint.start_method
    serial = blueprint.build(fixed_plan("serial", num_envs, None, None, method, "measured"))
    try:
        serial_s = _step_s(serial, TRIAL_S)
    except BaseException:
        serial.close(terminate=True)
        raise
    cores = usable_cores()
    plan = fixed_plan("process", num_envs, workers, envs_per_worker, method, "measured")
    trials = [("serial", num_envs / serial_s)]
    if serial_s < CHEAP_STEP_S or plan.num_workers < 2 or cores < 2:
        why = f"one step of all takes {serial_s * 1e6:.0f} µs in one thread, too short for processes to help"
        if serial_s >= CHEAP_STEP_S:
            why = "there is one usable core" if cores < 2 else "there is nothing to spread over several workers"
        return _settle(serial, why, trials)
    try:
        process = blueprint.build(plan)
    except BaseException:
        serial.close(terminate=True)
        raise
    try:
        rounds = [(_step_s(process, TRIAL_S), _step_s(serial, TRIAL_S)) for _ in range(ROUNDS)]
    except BaseException:
        serial.close(terminate=True)
        process.close(terminate=True)
        raise
    process_s, serial_s = sorted(rounds, key=lambda times: times[1] / times[0])[ROUNDS // 2]
    ratio = serial_s / process_s
    trials = [("serial", num_envs / serial_s), (plan.describe(), num_envs / process_s)]
    winner, loser = (process, serial) if ratio > MARGIN else (serial, process)
    loser.close()
    return _settle(winner, f"{plan.describe()} stepped {ratio:.2f} × as fast as serial", trials)


def _step_s(fleet: Fleet, trial_s: float) -> float:
    """Seconds of one step of the whole fleet with random actions; at least two steps are taken."""
    fleet.reset()  # without a seed: a trial must not make later episodes predictable
    actions = fleet.action_space.sample()
    fleet.step(actions)
    steps, start_s = 0, time.perf_counter()
    while steps < 2 or time.perf_counter() - start_s < trial_s:
        _step(fleet, actions)
        steps += 1
    return (time.perf_counter() - start_s) / steps


def _step(fleet: Fleet, actions: Any) -> None:
    fleet.step(actions)
    if fleet.metadata["autoreset_mode"].name == "DISABLED" and fleet.terminated_indices:
        fleet.reset_envs(fleet.terminated_indices)


def _settle(fleet: Fleet, reason: str, trials: list[tuple[str, float]]) -> Fleet:
    plan = dataclasses.replace(fleet.plan, reason=f"auto: {reason}", trials=tuple(trials))
    return fleet.as_new(plan)
