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
from envfleet.errors import EnvfleetError
from envfleet.making.assembly import Blueprint
from envfleet.transports.launch import StartMethod, default_start_method

TRIAL_S = 0.03
"""How long one round of one candidate is stepped."""

ROUNDS = 3

CHEAP_STEP_S = 150e-6
"""A step of the whole fleet in one thread that takes less than this is not worth a trial of processes: waking them and
waiting for them costs about as much."""

SLOW_STEP_S = 0.1
"""A step of the whole fleet in one thread that takes longer than this is divided among processes untried: a trial would
keep the caller waiting, and what processes cost is small beside it."""

NOT_REPEATED_S = 1.0
"""A first step that takes longer than this is taken for a usual one, though part of it may be loading or compiling."""

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
    """Build the faster fleet: step one of each kind for a few milliseconds, and build the better one anew.

    One thread is tried first. Processes are tried if a step takes long enough for them to help and there is more than
    one usable core: with one worker per core (or as many as asked for), in alternating rounds with the serial fleet,
    and chosen if they are faster by more than a tenth. Where one step in one thread takes long, they are chosen
    untried. An environment that fails meanwhile is left in one thread. `fleet.plan` says what was measured, and why.

    Args:
        blueprint: What to build.
        workers: As asked for, if it was.
        envs_per_worker: As asked for, if it was.
    """
    num_envs, method = len(blueprint.builders), blueprint.start_method
    candidate = fixed_plan("process", num_envs, workers, envs_per_worker, method, "a trial")
    backend, reason, rates = "serial", _reason_against_trials(candidate), dict[str, float]()
    if reason is None:
        with blueprint.build(fixed_plan("serial", num_envs, None, None, method, "a trial")) as serial:
            try:
                backend, reason = _compare(serial, blueprint, candidate, rates)
            except EnvfleetError as error:
                reason = f"the trial with random actions failed: {str(error).splitlines()[0]}"
    chosen = fixed_plan(backend, num_envs, workers, envs_per_worker, method, f"auto: {reason}")
    return blueprint.build(dataclasses.replace(chosen, trials=tuple(rates.items())))


def _reason_against_trials(candidate: Plan) -> str | None:
    """Why nothing needs to be tried, or `None`."""
    if os.name != "posix":
        return "worker processes need POSIX"
    if sum(candidate.envs_per_worker) < 2:
        return "there is one sub-environment"
    if whole_cores() < 2:
        return "there is one usable core"
    return "there is one worker" if candidate.num_workers < 2 else None


def _compare(serial: Fleet, blueprint: Blueprint, candidate: Plan, rates: dict[str, float]) -> tuple[str, str]:
    """Say which backend to use, and why; write into `rates` what was measured, in sub-environment steps per second."""
    num_envs, serial_s = serial.num_envs, _begin(serial)
    if serial_s < NOT_REPEATED_S:
        serial_s = _step_s(serial)
    rates["serial"] = num_envs / serial_s
    if serial_s > SLOW_STEP_S:
        return "process", f"one step of all takes {serial_s:.2g} s in one thread, too long to try both"
    if serial_s < CHEAP_STEP_S:
        micros = f"{serial_s * 1e6:.0f} µs"
        return "serial", f"one step of all takes {micros} in one thread, too short for processes to help"
    with blueprint.build(candidate) as process:
        _begin(process)
        rounds = [(_step_s(process), _step_s(serial)) for _ in range(ROUNDS)]
    process_s, serial_s = sorted(rounds, key=lambda times: times[1] / times[0])[ROUNDS // 2]
    rates.update({"serial": num_envs / serial_s, candidate.describe(): num_envs / process_s})
    gain = serial_s / process_s
    reason = f"{candidate.describe()} stepped {gain:.2f} × as fast as serial"
    return ("process" if gain > MARGIN else "serial"), reason


def _begin(fleet: Fleet) -> float:
    """Begin episodes and take a first step, which may load or compile something; returns its seconds."""
    fleet.reset()  # without a seed: a trial must not make later episodes predictable
    actions = fleet.action_space.sample()
    start_s = time.perf_counter()
    _step(fleet, actions)
    return time.perf_counter() - start_s


def _step_s(fleet: Fleet) -> float:
    """Seconds of one step of the whole fleet with random actions; at least two steps are taken."""
    actions = fleet.action_space.sample()
    steps, start_s = 0, time.perf_counter()
    while steps < 2 or time.perf_counter() - start_s < TRIAL_S:
        _step(fleet, actions)
        steps += 1
    return (time.perf_counter() - start_s) / steps


def _step(fleet: Fleet, actions: Any) -> None:
    fleet.step(actions)
    if fleet.metadata["autoreset_mode"] is AutoresetMode.DISABLED and fleet.terminated_indices:
        fleet.reset_envs(fleet.terminated_indices)
