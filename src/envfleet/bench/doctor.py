"""`envfleet doctor`: why is there no speed-up?

`examine` measures; `diagnose` (in `findings`) turns the figures into what to change.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envfleet.bench.child import Child
from envfleet.bench.contenders import BareLoop, Contender, EnvFleet, kernel_of
from envfleet.bench.measure import require_psutil, tree_cpu_s, tree_memory_bytes
from envfleet.bench.results import Machine, Run, Settings, describe_machine, figures_json
from envfleet.bench.rounds import Case, run_case
from envfleet.bench.workloads import Workload, synthetic
from envfleet.fleet.layout import SpaceLayout
from envfleet.machine import whole_cores

_ENV_TIMEOUT_S = 120.0
_BUSY_S = 0.5
_MAX_SAMPLES = 20_000
_MEMORY_ENVS = 4
_WRAPPER_TURNS = 5


@dataclasses.dataclass(frozen=True)
class WrapperCost:
    """Cost of one wrapper.

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
        step_s: Mean time of a step, as `gymnasium.make` wraps it.
        step_times: Single steps' times, a sample of them.
        reset_s: Mean time of a reset without a seed.
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

    step_s: float
    step_times: tuple[float, ...]
    reset_s: float
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


@dataclasses.dataclass(frozen=True)
class FleetFacts:
    """The environment in fleets of `num_envs`, in environment steps a second, measured in turns.

    Attributes:
        loop: A bare Python loop.
        serial: `backend="serial"`.
        serial_without_infos: The same with every info dropped; `None` where there are none.
        process: `backend="process"` with `workers` workers; `None` where it failed.
        kernel: `backend="kernel"`, of the environment itself or of its compiled twin; `None` where there is none or it
            failed.
        signal_s: Time of one step of a process fleet of the same size whose environments cost nothing.
        problems: What failed, in words.
    """

    loop: float
    serial: float
    serial_without_infos: float | None
    process: float | None
    kernel: float | None
    signal_s: float | None
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything the doctor measured.

    Attributes:
        env: The environment's id.
        kernel: Id of the kernel: the environment's own, or that of its compiled twin; `None` where there is none.
        num_envs: Number of sub-environments asked about.
        workers: Workers of the process fleet.
        policy_s: Time the policy takes for one batch of actions; `None` if not given.
        machine: What it ran on.
        busy_cores: Cores that others kept busy before anything was measured.
        free_memory_bytes: Memory that was free then.
        env_facts: A single environment.
        fleet_facts: Fleets of it.
    """

    env: str
    kernel: str | None
    num_envs: int
    workers: int
    policy_s: float | None
    machine: Machine
    busy_cores: float
    free_memory_bytes: int
    env_facts: EnvFacts
    fleet_facts: FleetFacts


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was found.

    Attributes:
        code: A stable name, such as `"slow_reset"`.
        title: What it is, in a line.
        evidence: The figures.
        advice: What to do.
        gain: About how many times faster the fleet gets by doing it, other things equal; 1 for plain facts.
        base_s: Seconds of the step that gets faster by `gain`: that of all sub-environments in the fleet that the
            finding is about, with the policy's if that is known; `None` for the fastest fleet's.
    """

    code: str
    title: str
    evidence: str
    advice: str
    gain: float
    base_s: float | None = None


def examination_json(facts: Facts, findings: list[Finding]) -> str:
    """Write an examination as JSON: `{"kind": "envfleet.doctor", "schema_version": 1, "facts": …, "findings": […]}`."""
    told = [dataclasses.asdict(finding) for finding in findings]
    return figures_json("doctor", {"facts": dataclasses.asdict(facts), "findings": told})


def examine(
    workload: Workload,
    num_envs: int,
    workers: int | None = None,
    *,
    policy_s: float | None = None,
    seconds: float = 0.5,
    progress: Callable[[str, float], None],
) -> Facts:
    """Measure an environment and fleets of it.

    Args:
        workload: The environment.
        num_envs: Number of sub-environments of the fleets.
        workers: Workers of the process fleet; as many as there are usable cores if not given.
        policy_s: Time the policy takes for one batch of actions, if known.
        seconds: About how long each single measurement takes.
        progress: Told what goes on and which fraction is done.

    Raises:
        ChildFailed: One environment by itself could not be built and stepped.
    """
    progress("looking at the machine", 0.0)
    psutil, kernel, workers = require_psutil(), kernel_of(workload), min(workers or whole_cores(), num_envs)
    busy_cores = psutil.cpu_percent(interval=_BUSY_S) / 100 * (psutil.cpu_count() or 1)
    free_memory_bytes = int(psutil.virtual_memory().available)
    alone = f"one {workload.spec.id} by itself"
    progress(alone, 0.05)
    with Child(alone) as child:
        env_facts = child.call(probe_env, _ENV_TIMEOUT_S, workload, seconds)
    return Facts(
        env=workload.spec.id,
        kernel=None if kernel is None else kernel.id,
        num_envs=num_envs,
        workers=workers,
        policy_s=policy_s,
        machine=describe_machine(),
        busy_cores=busy_cores,
        free_memory_bytes=free_memory_bytes,
        env_facts=env_facts,
        fleet_facts=_examine_fleets(workload, num_envs, workers, env_facts, seconds, progress),
    )


def _examine_fleets(
    workload: Workload,
    num_envs: int,
    workers: int,
    env_facts: EnvFacts,
    seconds: float,
    progress: Callable[[str, float], None],
) -> FleetFacts:
    settings = Settings(seconds=seconds, rounds=3, warm_up_s=0.1, start_timeout_s=120.0, idle_s=0.0)

    def run(target: Workload, contenders: Sequence[Contender], start: float, end: float) -> Run:
        case = Case(target, num_envs, workers, contenders)
        return run_case(case, settings, lambda text, fraction: progress(text, start + (end - start) * fraction))

    workload = workload.staggered()
    contenders: list[Contender] = [BareLoop(), EnvFleet("serial"), EnvFleet("process")]
    compiled = EnvFleet("kernel", {"workers": None})  # its threads are not those workers
    if compiled.absence(workload) is None:
        contenders.append(compiled)
    main = run(workload, contenders, 0.3, 0.7)
    null = synthetic("NullEnv", observation_bytes=max(4, env_facts.observation_bytes))
    signal = run(null, [EnvFleet("process")], 0.7, 0.85).find("envfleet-process")
    bare = run(workload.wrapped("WithoutInfos"), [EnvFleet("serial")], 0.85, 1.0) if env_facts.num_infos else None
    progress("done", 1.0)

    def rate(found: Run | None, name: str) -> float | None:
        entry = None if found is None else found.find(name)
        return None if entry is None else entry.rate

    return FleetFacts(
        loop=rate(main, "loop") or 0.0,
        serial=rate(main, "envfleet-serial") or 0.0,
        serial_without_infos=rate(bare, "envfleet-serial"),
        process=rate(main, "envfleet-process"),
        kernel=rate(main, "envfleet-kernel"),
        signal_s=min(sample.p50_us for sample in signal.samples) / 1e6 if signal else None,
        problems=tuple(f"{entry.label}: {entry.reason}" for entry in main.entries if entry.status != "ok"),
    )


# ------------------------------------------------------------------------------- one environment, in a child process


def probe_env(state: dict[str, Any], workload: Workload, seconds: float) -> EnvFacts:
    """Measure one environment.

    Args:
        state: The child's; unused.
        workload: What to build.
        seconds: About how long to step and to reset, each.
    """
    process = require_psutil().Process()
    threads_before = process.num_threads()
    with contextlib.closing(workload.build()) as env:
        stepping = _time_steps(env, seconds)
        threads = max(0, process.num_threads() - threads_before)
        reset_s = statistics.fmean(_time_calls(lambda index: env.reset(), seconds / 4))
        observation, layout = env.reset(seed=0)[0], SpaceLayout(env.observation_space)
        leaves = [] if layout.num_objects else list(map(np.asarray, layout.apart(observation)))
        wrappers = _time_wrappers(env, seconds)
    return EnvFacts(
        **stepping,
        reset_s=reset_s,
        observation_bytes=sum(leaf.nbytes for leaf in leaves),
        observation_dtypes=tuple(sorted({str(leaf.dtype) for leaf in leaves})),
        copy_s=statistics.median(_time_calls(lambda index: [leaf.copy() for leaf in leaves], 0.02)),
        has_fixed_shape=not layout.num_objects,
        wrappers=wrappers,
        threads=threads,
        memory_bytes=_measure_memory(workload),
    )


def _time_steps(env: gymnasium.Env[Any, Any], seconds: float) -> dict[str, Any]:
    """Step for a time; returns what `EnvFacts` has of it, by name."""
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
        times.append(clock() - before)
        infos += _count_values(info)
        if terminated or truncated:
            episodes += 1
            env.reset()
    return {
        "cores_busy": (tree_cpu_s() - cpu_before) / (clock() - start),
        "step_s": statistics.fmean(times),
        "step_times": tuple(times[:: max(1, len(times) // 500)]),
        "episode_steps": len(times) / max(1, episodes),
        "is_episode_seen": episodes > 0,
        "num_infos": infos / len(times),
    }


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

    def step(index: int) -> None:
        _, _, terminated, truncated, _ = layer.step(action)
        if terminated or truncated:  # too seldom to change the median
            env.reset()

    env.reset(seed=0)
    return statistics.median(_time_calls(step, seconds))


def _measure_memory(workload: Workload) -> int:
    """Build a few more environments, take one step in each; return the bytes of one."""
    before = tree_memory_bytes()
    with contextlib.ExitStack() as stack:
        for _ in range(_MEMORY_ENVS):
            env = stack.enter_context(contextlib.closing(workload.build()))
            env.reset(seed=0)
            env.step(env.action_space.sample())
        return max(0, tree_memory_bytes() - before) // _MEMORY_ENVS


def _count_values(info: Mapping[str, Any]) -> int:
    return sum(_count_values(value) if isinstance(value, Mapping) else 1 for value in info.values())
