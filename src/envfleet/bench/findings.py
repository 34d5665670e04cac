"""From the doctor's figures to what to change. Pure: no clock, no process.

Every check returns at most one finding. A finding's gain is an estimate from the model below and no promise: what one
vector step takes is the slowest worker's share of the sub-environments, resets included, plus signalling, plus copies,
plus the policy.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from envfleet.bench.doctor import Facts, Finding
from envfleet.bench.report import HOW_EQUAL, duration, size

_URGENT = frozenset({"fleet_failed", "memory", "one_core"})
_BIG_OBSERVATION_BYTES = 4_096  # below, moving an observation is nothing beside the call that moves it
_WORTH_SAYING = 1.1  # a gain below is within what measurements differ by


def diagnose(facts: Facts) -> list[Finding]:
    """List what was found: what keeps it from running at all, then the largest gain first.

    With a policy's latency given, gains are of the whole loop, in which the fleet is only a part.
    """
    found = [finding for check in _CHECKS if (finding := check(facts)) is not None]
    if facts.policy_s:
        found = [finding if finding.code == "policy" else _with_policy(finding, facts) for finding in found]
    return sorted(found, key=lambda finding: (finding.code not in _URGENT, -finding.gain))


def _with_policy(finding: Finding, facts: Facts) -> Finding:
    policy_s = facts.policy_s or 0.0
    step_s = vector_step_s(facts) if finding.base_s is None else finding.base_s
    gain = (policy_s + step_s) / (policy_s + step_s / finding.gain)
    return dataclasses.replace(finding, gain=gain, base_s=policy_s + step_s)


def reset_share(facts: Facts) -> float:
    """Return the share of a sub-environment's time that goes into resets."""
    env = facts.env_facts
    per_step = env.reset_s / env.episode_steps if env.is_episode_seen else 0.0
    return per_step / (per_step + env.step_s)


def step_with_resets_s(facts: Facts) -> float:
    """Return the mean time of one sub-environment's step, its share of the resets included."""
    return facts.env_facts.step_s / (1.0 - reset_share(facts))


def vector_step_s(facts: Facts) -> float:
    """Return the measured time of one step of the fastest fleet."""
    fleet = facts.fleet_facts
    return facts.num_envs / max(fleet.serial, fleet.process or 0.0, 1e-9)


def _backend(facts: Facts) -> Finding | None:
    """Compare worker processes with one process."""
    fleet, n, workers = facts.fleet_facts, facts.num_envs, facts.workers
    if fleet.process is None or fleet.serial <= 0:
        return None
    signal = f", handing it to {workers} workers and back {duration(fleet.signal_s)}" if fleet.signal_s else ""
    evidence = (
        f"A step takes {duration(step_with_resets_s(facts))}, its share of the resets included{signal}. {n} "
        f"sub-environments make {fleet.serial:,.0f} steps/s in this process (serial) and {fleet.process:,.0f} with "
        f"{workers} worker processes."
    )
    gain = fleet.process / fleet.serial
    if gain >= _WORTH_SAYING:
        title = f"Worker processes make it {gain:.1f}× as fast as one process"
        advice = f'backend="process", workers={workers} (backend="auto" finds that by itself).'
        return Finding("processes_pay", title, evidence, advice, gain, base_s=n / fleet.serial)
    if gain <= 1 / _WORTH_SAYING:
        title = "The environment is too cheap for worker processes"
        advice = 'backend="serial" (backend="auto" finds that by itself): a loop in this process is faster.'
        return Finding("too_cheap", title, evidence, advice, 1 / gain, base_s=n / fleet.process)
    advice = 'backend="serial" is simpler. envfleet tune finds whether other numbers of sub-environments change that.'
    return Finding("processes_even", "Worker processes neither help nor hurt", evidence, advice, 1.0)


def _kernel(facts: Facts) -> Finding | None:
    """Recommend compiled code, if there is some for this environment."""
    if facts.kernel is None:
        return None
    rate, is_twin = facts.fleet_facts.kernel, facts.kernel != facts.env
    speed = f"Compiled, {facts.num_envs} of them make {rate:,.0f} steps/s. " if rate else ""
    return Finding(
        "kernel",
        f"It has a compiled twin, {facts.kernel}" if is_twin else "It is a kernel, which can be compiled",
        (speed or "Compiling it needs the extra envfleet[kernels]. ") + (HOW_EQUAL if is_twin else ""),
        f'envfleet.make("{facts.kernel}", num_envs={facts.num_envs}, backend="kernel"); it is made for thousands.',
        max(1.0, (rate or 0.0) * vector_step_s(facts) / facts.num_envs),
    )


def _slow_reset(facts: Facts) -> Finding | None:
    env, share = facts.env_facts, reset_share(facts)
    if share < 0.15:
        return None
    return Finding(
        "slow_reset",
        f"Resets take {share:.0%} of an environment's time",
        f"A reset takes {duration(env.reset_s)}, a step {duration(env.step_s)}, and an episode lasts "
        f"{env.episode_steps:.0f} steps under random actions (a trained policy's may last longer).",
        "Make reset cheaper: load and build once in __init__, not in every reset. While one sub-environment resets, a "
        "synchronous step waits for it: with batch_size, send and recv the others step meanwhile.",
        1 / (1 - share),
    )


def _wrapper(facts: Facts) -> Finding | None:
    """Name the dearest wrapper, if it matters."""
    env = facts.env_facts
    dearest = max(env.wrappers, key=lambda wrapper: wrapper.step_s, default=None)
    if dearest is None or dearest.step_s < max(0.1 * env.step_s, 1e-6):
        return None
    share = min(0.99, dearest.step_s / env.step_s)
    others = ", ".join(f"{wrapper.name} {duration(wrapper.step_s)}" for wrapper in env.wrappers)
    advice = (
        "Look at what it does on every step; a vector wrapper, which does it for whole batches, is usually cheaper."
    )
    if dearest.name == "PassiveEnvChecker":
        advice = "Pass disable_env_checker=True once the environment works."
    return Finding(
        "dear_wrapper",
        f"The wrapper {dearest.name} takes {share:.0%} of a step",
        f"It adds {duration(dearest.step_s)} to a step of {duration(env.step_s)}. All wrappers: {others}.",
        advice,
        1 / (1 - share),
    )


def _shape(facts: Facts) -> Finding | None:
    if facts.env_facts.has_fixed_shape:
        return None
    return Finding(
        "object_observation",
        "Observations have no fixed shape, so they are pickled",
        "The observation space has parts other than Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple.",
        "Give those parts a fixed shape (pad to the longest, add a length or a mask): they then move through shared "
        "memory.",
        1.0,
    )


def _observation(facts: Facts) -> Finding | None:
    env, step_s = facts.env_facts, vector_step_s(facts)
    share = min(0.9, facts.num_envs * env.copy_s / step_s)
    if env.observation_bytes < _BIG_OBSERVATION_BYTES or share < 0.05:
        return None
    wide = [dtype for dtype in env.observation_dtypes if dtype in {"float32", "float64", "int64", "int32"}]
    narrower = f" It is {'/'.join(wide)}: pixels fit in uint8, most else in float32." if wide else ""
    return Finding(
        "big_observation",
        f"An observation is {size(env.observation_bytes)}: moving it takes {share:.0%} of a step",
        f"Copying one takes {duration(env.copy_s)}; {facts.num_envs} of them are copied on every step of "
        f"{duration(step_s)}.",
        f"Pass copy=False if you use an observation only until the next step but one.{narrower} Observe less, or "
        "shrink images inside the environment.",
        1 / (1 - share),
    )


def _infos(facts: Facts) -> Finding | None:
    env, fleet = facts.env_facts, facts.fleet_facts
    gain = (fleet.serial_without_infos or 0.0) / fleet.serial if fleet.serial else 0.0
    if gain < _WORTH_SAYING:
        return None
    return Finding(
        "many_infos",
        f"Infos cost {1 - 1 / gain:.0%} of the time",
        f"A step's info has {env.num_infos:.0f} values. With them the fleet makes {fleet.serial:,.0f} steps/s, without "
        f"{fleet.serial_without_infos:,.0f}.",
        "Return infos only where they say something new: at the end of an episode, or not at all.",
        gain,
        base_s=facts.num_envs / fleet.serial,
    )


def _one_core(facts: Facts) -> Finding | None:
    if facts.machine.usable_cores >= 1.5:
        return None
    return Finding(
        "one_core",
        "There is only one core to use",
        f"Of {facts.machine.cores} cores, the scheduler and the control group grant {facts.machine.usable_cores:g}. "
        "Worker processes would take turns on it.",
        'Give the container or job more cores (docker --cpus, Slurm --cpus-per-task), or stay with backend="serial".',
        1.0,
    )


def _busy(facts: Facts) -> Finding | None:
    usable = facts.machine.usable_cores
    if usable < 1.5 or facts.busy_cores < 0.5:
        return None
    # At least half: on a full machine the scheduler still gives a newcomer its share.
    left = min(usable, max(usable / 2, facts.machine.cores - facts.busy_cores))
    wanted = facts.workers if (facts.fleet_facts.process or 0.0) > facts.fleet_facts.serial else 1
    return Finding(
        "busy_machine",
        f"Others keep {facts.busy_cores:.1f} of {facts.machine.cores} cores busy",
        f"Measured before anything was started; {usable:g} cores are usable, about {left:.1f} of them free.",
        "Stop the other work, or count with fewer workers; figures here are lower than on an idle machine.",
        max(1.0, min(wanted, usable) / left),
    )


def _threads(facts: Facts) -> Finding | None:
    env = facts.env_facts
    if env.threads < 2 and env.cores_busy < 1.3:
        return None
    started = f"starts {env.threads} threads and " if env.threads else ""
    total = f"start {env.threads * facts.num_envs} threads" if env.threads else f"use {env.cores_busy:.1f} cores each"
    return Finding(
        "threads",
        f"One environment {started}uses {env.cores_busy:.1f} cores",
        f"{facts.num_envs} sub-environments would {total} on {facts.machine.usable_cores:g} usable cores; they take "
        "the cores from each other.",
        "Keep it to one thread each: OMP_NUM_THREADS=1, MKL_NUM_THREADS=1, torch.set_num_threads(1) inside the "
        "environment, or the library's own setting. Fewer threads with more workers is nearly always faster.",
        max(1.0, env.cores_busy),
    )


def _memory(facts: Facts) -> Finding | None:
    each, free = facts.env_facts.memory_bytes, facts.free_memory_bytes
    if each * facts.num_envs < 0.5 * free:
        return None
    return Finding(
        "memory",
        f"{facts.num_envs} sub-environments need {size(each * facts.num_envs)} of {size(free)} free memory",
        f"One adds {size(each)} to its process.",
        "Use fewer sub-environments; keep big read-only data in one array for all: make(…, shared={…}).",
        1.0,
    )


def _policy(facts: Facts) -> Finding | None:
    if not facts.policy_s:  # not given, or it takes no time
        return None
    step_s = vector_step_s(facts)
    share = facts.policy_s / (facts.policy_s + step_s)
    overlapped = (facts.policy_s + step_s) / max(facts.policy_s, step_s)
    more = " More sub-environments spread the policy's cost over more steps: batches are cheap for a network."
    return Finding(
        "policy",
        f"The policy takes {share:.0%} of the time",
        f"The policy takes {duration(facts.policy_s)} a batch, the fastest fleet {duration(step_s)} a step: the policy "
        f"is {share:.0%} of the time, and an infinitely fast fleet would give {1 / share:.2f}×.",
        "Let both work at once: send(actions, env_indices=half) steps one half while the policy looks at the other, "
        f"which recv(env_indices=…) waits for (at best {overlapped:.2f}×)." + (more if share > 0.5 else ""),
        overlapped,
    )


def straggler_loss(facts: Facts, draws: int = 200) -> float:
    """Estimate how much longer the slowest worker takes than the mean one, by drawing from the measured steps."""
    times, workers = facts.env_facts.step_times, facts.workers
    if workers < 2 or not times:
        return 1.0
    rng, per_worker = random.Random(0), max(1, facts.num_envs // workers)
    mean = sum(times) / len(times) * per_worker
    slowest = (max(sum(rng.choices(times, k=per_worker)) for _ in range(workers)) for _ in range(draws))
    return sum(slowest) / draws / mean


def _stragglers(facts: Facts) -> Finding | None:
    loss, times = straggler_loss(facts), facts.env_facts.step_times
    # Where steps are cheap or others use the cores, the spread is the machine's noise and not the environment's.
    if loss < 1.3 or facts.env_facts.step_s * facts.num_envs < 1e-3 or facts.busy_cores > 0.5:
        return None
    return Finding(
        "stragglers",
        f"Waiting for the slowest worker costs {1 - 1 / loss:.0%}",
        f"Steps take from {duration(min(times))} to {duration(max(times))}; in a synchronous step {facts.workers} "
        "workers wait for the slowest of them.",
        f"Act on whoever is ready: batch_size={max(1, facts.num_envs // 2)} with send and recv. More sub-environments "
        "per worker even it out, too.",
        loss,
    )


def _problems(facts: Facts) -> Finding | None:
    problems = facts.fleet_facts.problems
    advice = "Mend that first: see the error by making the fleet yourself, ENVFLEET_DEBUG=1 shows tracebacks."
    title = "A fleet of this environment failed"
    return Finding("fleet_failed", title, "; ".join(problems) + ".", advice, 1.0) if problems else None


_CHECKS: tuple[Callable[[Facts], Finding | None], ...] = (
    _problems, _backend, _kernel, _slow_reset, _wrapper, _shape, _observation, _infos, _one_core, _busy,
    _threads, _memory, _policy, _stragglers,
)  # fmt: skip
