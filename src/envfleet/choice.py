"""The choice of a backend: by what is asked for, or by a short trial of those that could be fastest."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.errors import EnvfleetError, InvalidArgument, SubEnvError
from envfleet.fleet.engine import Engine
from envfleet.fleet.fleet import Fleet
from envfleet.machine import whole_cores
from envfleet.natives import Native, find_native
from envfleet.options import Options
from envfleet.registry import BACKENDS, COMMON, resolve
from envfleet.sources import Blueprint, names_kernel

TRIAL_S = 0.03
"""How long one round of one candidate is stepped."""

ROUNDS = 3

CHEAP_STEP_S = 50e-6
"""A step of the whole fleet in one thread that takes less than this is not worth a trial of processes: asking them and
waiting for them costs about as much."""

SLOW_STEP_S = 0.1
"""A step of the whole fleet in one thread that takes longer than this goes to processes untried: a trial would keep the
caller waiting, and the overhead of processes is small in comparison."""

FIRST_STEP_S = 3 * SLOW_STEP_S
"""A first step may load or compile something: unless it takes longer than this, the steps after it are measured."""

MARGIN = 1.05
"""By how much processes must win, since they also cost memory and start-up."""


def build_engine(blueprint: Blueprint, backend: str, reason: str) -> Engine:
    """Build the engine of a backend, and note why it was chosen."""
    options = dataclasses.replace(blueprint.options, backend=backend)
    engine: Engine = resolve(BACKENDS[backend].build)(dataclasses.replace(blueprint, options=options), reason)
    return engine


def refuse_meaningless(options: Options, name: str) -> None:
    """Refuse options that the backend of this name could only ignore.

    Raises:
        InvalidArgument: There is one.
    """
    backend = BACKENDS[name]
    for option, value in options.given().items():
        if option in COMMON or option in backend.options or (option == "workers" and value == 1):
            continue
        users = [repr(one.name) for one in BACKENDS.values() if option in one.options]
        advice = f"pass backend={' or '.join(users)}, or leave it out" if len(users) < 3 else "leave it out"
        named = f"with backend={backend.name!r}, which steps sub-environments {backend.steps}"
        where = "here" if options.backend == "auto" else named  # `auto` tries backends that the user did not name
        raise InvalidArgument(f"{option}={value!r} means nothing {where}: {advice}")


def choose_engine(blueprint: Blueprint) -> Engine:
    """Build the engine that suits best, or that a short trial finds faster."""
    given = blueprint.options.given().keys() - COMMON
    if names_kernel(blueprint.source) and not given - BACKENDS["kernel"].options - {"max_restarts", "start_timeout_s"}:
        return build_engine(blueprint, "kernel", "auto: it is a kernel")
    native = find_native(blueprint)
    has_twin = isinstance(native, Native) and native.is_equal
    if has_twin and not given - BACKENDS["native"].options - {"max_restarts", "start_timeout_s"}:
        return build_engine(blueprint, "native", f"auto: {native}")
    refuse_meaningless(blueprint.options, "process")
    needs = given & (BACKENDS["process"].options - BACKENDS["thread"].options)
    if needs:
        return build_engine(blueprint, "process", f"auto: {min(needs)} needs processes")
    reason = _reason_against_trials(blueprint)
    backend, rates = "serial", dict[str, float]()
    try:
        if reason is None:
            backend, reason = _try_both(blueprint, rates)
        engine = build_engine(blueprint, backend, f"auto: {reason}")
    except SubEnvError as error:
        if error.verb != "make" or backend == "process" or os.name != "posix" or blueprint.num_envs < 2:
            raise
        reason = f"not all could be built in one process: {str(error).splitlines()[0]}"
        engine = build_engine(blueprint, "process", f"auto: {reason}")
    plan = dataclasses.replace(engine.traits.plan, trials=tuple(rates.items()))
    engine.traits = dataclasses.replace(engine.traits, plan=plan)
    return engine


def _reason_against_trials(blueprint: Blueprint) -> str | None:
    if os.name != "posix":
        return "worker processes need POSIX"
    if blueprint.num_envs < 2:
        return "there is one sub-environment"
    if whole_cores() < 2:
        return "there is one usable core"
    each = blueprint.options.envs_per_worker or 1
    return "there is one worker" if blueprint.options.workers == 1 or each >= blueprint.num_envs else None


def _try_both(blueprint: Blueprint, rates: dict[str, float]) -> tuple[str, str]:
    """Return the backend to use after a trial, and why; write into `rates` what was measured."""
    serial = Fleet(build_engine(blueprint, "serial", "a trial"))
    try:
        with serial:
            return _compare(serial, blueprint, rates)
    except EnvfleetError as error:
        return "serial", f"the trial with random actions failed: {str(error).splitlines()[0]}"


def _compare(serial: Fleet, blueprint: Blueprint, rates: dict[str, float]) -> tuple[str, str]:
    """Return the backend to use, and why; write into `rates` what was measured, in sub-environment steps per second."""
    num_envs, serial_s = serial.num_envs, _begin(serial)
    if serial_s <= FIRST_STEP_S:
        serial_s = _step_s(serial)
    rates["serial"] = num_envs / serial_s
    if serial_s > SLOW_STEP_S:
        return "process", f"one step of all takes {serial_s:.2g} s in one thread, too long to try both"
    if serial_s < CHEAP_STEP_S:
        micros = f"{serial_s * 1e6:.0f} µs"
        return "serial", f"one step of all takes {micros} in one thread, too short for processes to help"
    with Fleet(build_engine(blueprint, "process", "a trial")) as process:
        _begin(process)
        rounds = [(_step_s(process), _step_s(serial)) for _ in range(ROUNDS)]
        name = process.plan.describe()
    process_s, serial_s = map(min, zip(*rounds, strict=True))
    rates.update({"serial": num_envs / serial_s, name: num_envs / process_s})
    gain = serial_s / process_s
    reason = f"{name} stepped {gain:.2f} × as fast as serial"
    return ("process", reason) if gain > MARGIN else ("serial", f"{reason}, below the {MARGIN} × required")


def _begin(fleet: Fleet) -> float:
    """Begin episodes and take a first step, which may load or compile something; returns its seconds."""
    fleet.reset()  # without a seed: a trial must not make later episodes predictable
    actions = fleet.action_space.sample()
    start_s = time.perf_counter()
    _step(fleet, actions)
    return time.perf_counter() - start_s


def _step_s(fleet: Fleet) -> float:
    """Return the seconds of one step of the whole fleet with random actions; at least two steps are taken."""
    actions = fleet.action_space.sample()
    steps, start_s = 0, time.perf_counter()
    while steps < 2 or time.perf_counter() - start_s < TRIAL_S:
        _step(fleet, actions)
        steps += 1
    return (time.perf_counter() - start_s) / steps


def _step(fleet: Fleet, actions: Any) -> None:
    fleet.step(actions)
    if fleet.autoreset_mode is AutoresetMode.DISABLED and fleet.terminated_indices:
        fleet.reset_envs(fleet.terminated_indices)
