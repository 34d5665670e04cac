"""Choice of a backend: by the options, or by a short measurement of the candidates."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.errors import EnvfleetError, InvalidArgument, SubEnvError
from envfleet.fleet.engine import Engine
from envfleet.fleet.fleet import Fleet
from envfleet.machine import whole_cores
from envfleet.natives import UNKNOWN, Native, find_native
from envfleet.options import Options
from envfleet.physics.simulations import loading
from envfleet.physics.task import is_task
from envfleet.registry import BACKENDS, COMMON, resolve
from envfleet.sources import Blueprint, names_kernel

TRIAL_S = 0.04
"""How long one round of one candidate is stepped."""

ROUNDS = 3

POLICY_S = 500e-6
"""Pause between two steps of a trial: about as long as a small network of torch takes to act. Workers fall asleep
meanwhile, so that next to a trainer they gain less than when steps follow at once."""

CHEAP_STEP_S = 50e-6
"""A step of the whole fleet in one thread that takes less than this is not worth a trial of processes: asking them and
waiting for them costs about as much."""

SLOW_STEP_S = 0.1
"""A step of the whole fleet in one thread that takes longer than this goes to processes untried: a trial would keep the
caller waiting, and the overhead of processes is small in comparison."""

FIRST_STEP_S = 3 * SLOW_STEP_S
"""A first step may load or compile something: unless it takes longer than this, the steps after it are measured."""

MARGIN = 1.2
"""By how much workers must win: a trainer computes on the same cores, and workers cost memory and start-up."""

FEW_ENVS = 4
"""Sub-environments of the serial fleet that a native twin is compared with: building thousands would take minutes."""


def build_engine(blueprint: Blueprint, backend: str, reason: str) -> Engine:
    """Build the engine of a backend, with the reason for the choice in its plan."""
    options = dataclasses.replace(blueprint.options, backend=backend)
    engine: Engine = resolve(BACKENDS[backend].build)(dataclasses.replace(blueprint, options=options), reason)
    return engine


def refuse_meaningless(options: Options, name: str) -> None:
    """Raise an error for options that the backend of this name would ignore.

    Raises:
        InvalidArgument: There is such an option.
    """
    backend = BACKENDS[name]
    for option, value in options.non_default().items():
        if option in COMMON or option in backend.options or (option == "workers" and value == 1):
            continue
        users = [repr(one.name) for one in BACKENDS.values() if option in one.options]
        advice = f"pass backend={' or '.join(users)}, or leave it out" if len(users) < 3 else "leave it out"
        named = f"with backend={backend.name!r}, which steps sub-environments {backend.steps}"
        where = "here" if options.backend == "auto" else named  # `auto` tries backends that the user did not name
        raise InvalidArgument(f"{option}={value!r} means nothing {where}: {advice}")


def choose_engine(blueprint: Blueprint) -> Engine:
    """Build the engine of the best backend, by a short measurement if necessary."""
    passed = blueprint.options.non_default().keys() - COMMON
    unmeant = passed - {"max_restarts", "start_timeout_s"}
    if names_kernel(blueprint.source) and not unmeant - BACKENDS["kernel"].options:
        return build_engine(blueprint, "kernel", "auto: it is a kernel")
    native, unmeant = find_native(blueprint), unmeant - BACKENDS["native"].options
    is_equal = isinstance(native, Native) and native.is_equal
    if is_equal and not unmeant and (is_task(blueprint.source) or passed - BACKENDS["process"].options):
        return build_engine(blueprint, "native", f"auto: {native}")
    refuse_meaningless(blueprint.options, "process")
    needs = passed & (BACKENDS["process"].options - BACKENDS["thread"].options)
    if needs:
        return build_engine(blueprint, "process", f"auto: {min(needs)} needs processes")
    twin = native if isinstance(native, Native) and is_equal and not unmeant else None
    note = ""
    if isinstance(native, str) and native not in UNKNOWN:
        note = f"; the native task cannot be used: {native}"
    elif is_equal and twin is None:
        note = f"; the native task cannot be used: it does not have {min(unmeant)}"
    with loading() if twin is not None else contextlib.nullcontext():
        return _build_best(blueprint, twin, note)


def _build_best(blueprint: Blueprint, twin: Native | None, note: str) -> Engine:
    """Build the engine of the backend that a trial found to be best; `note` is added to the reason."""
    rates: dict[str, float] = {}
    backend = "serial"
    try:
        backend, reason = _try_all(blueprint, twin, rates)
        engine = build_engine(blueprint, backend, f"auto: {reason}{note}")
    except SubEnvError as error:
        if error.verb != "make" or backend == "process" or os.name != "posix" or blueprint.num_envs < 2:
            raise
        reason = f"not all could be built in one process: {str(error).splitlines()[0]}"
        engine = build_engine(blueprint, "process", f"auto: {reason}")
    plan = dataclasses.replace(engine.traits.plan, trials=tuple(rates.items()))
    engine.traits = dataclasses.replace(engine.traits, plan=plan)
    return engine


def _reason_against_workers(blueprint: Blueprint) -> str | None:
    if os.name != "posix":
        return "worker processes need POSIX"
    if blueprint.num_envs < 2:
        return "there is one sub-environment"
    if whole_cores() < 2:
        return "there is one usable core"
    each = blueprint.options.envs_per_worker or 1
    return "there is one worker" if blueprint.options.workers == 1 or each >= blueprint.num_envs else None


def _try_all(blueprint: Blueprint, twin: Native | None, rates: dict[str, float]) -> tuple[str, str]:
    """Measure and return the backend to use, and the reason; write the measurements to `rates`."""
    reason = _reason_against_workers(blueprint)
    if reason is not None and twin is None:
        return "serial", reason
    few = min(blueprint.num_envs, FEW_ENVS) if twin else blueprint.num_envs
    serial = Fleet(build_engine(dataclasses.replace(blueprint, num_envs=few), "serial", "a trial"))
    try:
        with serial:
            return _Trial(serial, blueprint, rates).run(twin, reason)
    except EnvfleetError as error:
        return "native" if twin else "serial", _describe_failure(error)


def _describe_failure(error: EnvfleetError) -> str:
    return f"the trial with random actions failed: {str(error).splitlines()[0]}"


class _Trial:
    """Comparison of backends with `serial`.

    Args:
        serial: Fleet of all sub-environments, or of a few where a native twin makes all too many.
        blueprint: Blueprint of the other fleets.
        rates: Receives sub-environment steps per second by fleet.
    """

    def __init__(self, serial: Fleet, blueprint: Blueprint, rates: dict[str, float]) -> None:
        self._serial, self._blueprint, self._rates = serial, blueprint, rates
        self._num_envs, self._scale = blueprint.num_envs, blueprint.num_envs / serial.num_envs

    def run(self, twin: Native | None, reason: str | None) -> tuple[str, str]:
        """Return the backend to use, and why.

        Args:
            twin: Native implementation that equals the environment in every bit.
            reason: Reason not to try workers.
        """
        serial_s = self._scale * _begin(self._serial)
        if serial_s <= FIRST_STEP_S:
            serial_s = self._scale * _step_s(self._serial)
        self._rates["serial"] = self._num_envs / serial_s
        best, gain, why = "serial", 1.0, ""
        if twin is not None:
            native_gain, name = self._measure("native")
            why = f"{twin}; {name} stepped {native_gain:.2f} × as fast as serial"
            if native_gain >= 1.0:
                best, gain = "native", native_gain
        if reason is None and serial_s > SLOW_STEP_S:
            if best == "native":
                return best, why
            return "process", f"one step of all takes {serial_s:.2g} s in one thread, too long to try both"
        if reason is None and serial_s < CHEAP_STEP_S:
            reason = f"one step of all takes {serial_s * 1e6:.0f} µs in one thread, too short for processes to help"
        if reason is not None:
            return best, why or reason
        # Workers step at most as many times as fast as one thread as there are cores.
        return (best, why) if gain >= whole_cores() else self._try_workers(best, gain, why)

    def _try_workers(self, best: str, gain: float, why: str) -> tuple[str, str]:
        """Return the best backend so far, or workers that step faster by `MARGIN`, and why."""
        failure, rivals = "", list[tuple[float, str]]()
        for backend in ("thread", "process"):
            try:
                rivals.append(self._measure(backend))
            except EnvfleetError as error:
                failure = _describe_failure(error)
                continue
            if rivals[-1][0] > MARGIN * gain:
                (gain, name), best = rivals[-1], backend
                why = f"{name} stepped {gain:.2f} × as fast as serial"
        most, name = max(rivals, default=(0.0, ""))
        return best, why or failure or f"{name} stepped {most:.2f} × as fast as serial, below the {MARGIN} × required"

    def _measure(self, backend: str) -> tuple[float, str]:
        """Return how many times as fast as serial a backend steps, measured in turn with it, and its name."""
        with Fleet(build_engine(self._blueprint, backend, "a trial")) as fleet:
            _begin(fleet)
            rounds = [(_step_s(fleet), self._scale * _step_s(self._serial)) for _ in range(ROUNDS)]
            name = fleet.plan.describe()
        seconds, serial_s = map(min, zip(*rounds, strict=True))
        self._rates.update({"serial": self._num_envs / serial_s, name: self._num_envs / seconds})
        return serial_s / seconds, name


def _begin(fleet: Fleet) -> float:
    """Begin episodes and take a first step, which may load or compile something; returns its seconds."""
    fleet.reset()  # without a seed: a trial must not make later episodes predictable
    actions = fleet.action_space.sample()
    start_s = time.perf_counter()
    _step(fleet, actions)
    return time.perf_counter() - start_s


def _step_s(fleet: Fleet) -> float:
    """Return the seconds per step of the whole fleet with random actions, from at least two steps."""
    actions = fleet.action_space.sample()
    steps, taken_s, end_s = 0, 0.0, time.perf_counter() + TRIAL_S
    while steps < 2 or time.perf_counter() < end_s:
        policy_end_s = time.perf_counter() + POLICY_S
        while (start_s := time.perf_counter()) < policy_end_s:
            pass
        _step(fleet, actions)
        taken_s += time.perf_counter() - start_s
        steps += 1
    return taken_s / steps


def _step(fleet: Fleet, actions: Any) -> None:
    fleet.step(actions)
    if fleet.autoreset_mode is AutoresetMode.DISABLED and fleet.terminated_indices:
        fleet.reset_envs(fleet.terminated_indices)
