"""`envfleet doctor`: why is there no speed-up?

`examine` measures; `diagnose` (in `findings`) turns the figures into what to change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

from envfleet.bench.child import Child
from envfleet.bench.fleets import EnvFleet, kernel_of
from envfleet.bench.machine import Machine, describe_machine, require_psutil
from envfleet.bench.peers import BareLoop, Contender
from envfleet.bench.probes import EnvFacts, probe_env
from envfleet.bench.results import Run, Settings
from envfleet.bench.rounds import Case, run_case
from envfleet.bench.workloads import Workload, synthetic
from envfleet.core.cores import affinity_cores, cgroup_cores, whole_cores

_ENV_TIMEOUT_S = 120.0
_BUSY_S = 0.5
BIG_OBSERVATION_BYTES = 4_096  # below, moving an observation is nothing beside the call that moves it


@dataclasses.dataclass(frozen=True)
class FleetFacts:
    """The environment in fleets of `num_envs`, in environment steps a second, measured in turns.

    Attributes:
        loop: A bare Python loop.
        serial: `backend="serial"`.
        serial_without_infos: The same with every info dropped; `None` where there are none.
        serial_without_copy: The same with `copy=False`; `None` where observations are small.
        process: `backend="process"` with `workers` workers; `None` where it failed.
        kernel: `backend="kernel"`, of the environment itself or of its compiled twin; `None` where there is none or it
            failed.
        signal_s: Time of one step of a process fleet of the same size whose environments cost nothing.
        problems: What failed, in words.
    """

    loop: float
    serial: float
    serial_without_infos: float | None
    serial_without_copy: float | None
    process: float | None
    kernel: float | None
    signal_s: float | None
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything the doctor looked at.

    Attributes:
        env: The environment's id.
        kernel: Id of the kernel: the environment's own, or that of its compiled twin; `None` where there is none.
        num_envs: Number of sub-environments asked about.
        workers: Workers of the process fleet.
        policy_s: Time the policy takes for one batch of actions; `None` if not given.
        machine: What it ran on.
        affinity: Cores the scheduler may use.
        quota: Cores' worth of time of the control group; `None` without a limit.
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
    affinity: int
    quota: float | None
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
    body = {"facts": dataclasses.asdict(facts), "findings": [dataclasses.asdict(finding) for finding in findings]}
    return json.dumps({"kind": "envfleet.doctor", "schema_version": 1, **body}, indent=1) + "\n"


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
    psutil = require_psutil()
    busy_cores = psutil.cpu_percent(interval=_BUSY_S) / 100 * (psutil.cpu_count() or 1)
    free_memory_bytes = int(psutil.virtual_memory().available)
    progress(f"one {workload.spec.id} by itself", 0.05)
    with Child(f"one {workload.spec.id} by itself") as child:
        env_facts = child.call(probe_env, _ENV_TIMEOUT_S, workload, seconds)
    workers = min(workers or whole_cores(), num_envs)
    kernel = kernel_of(workload)
    fleet_facts = _examine_fleets(workload, num_envs, workers, env_facts, seconds, progress)
    return Facts(
        env=workload.spec.id,
        kernel=None if kernel is None else kernel.id,
        num_envs=num_envs,
        workers=workers,
        policy_s=policy_s,
        machine=describe_machine(),
        affinity=affinity_cores(),
        quota=cgroup_cores(),
        busy_cores=busy_cores,
        free_memory_bytes=free_memory_bytes,
        env_facts=env_facts,
        fleet_facts=fleet_facts,
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
    if env_facts.observation_bytes >= BIG_OBSERVATION_BYTES:
        contenders.append(EnvFleet("serial", (("copy", False),), tag="no-copy"))
    compiled = EnvFleet("kernel", (("workers", None),))  # its threads are not those workers
    if compiled.absence(workload) is None:
        contenders.append(compiled)
    main = run(workload, contenders, 0.3, 0.7)
    null = synthetic("NullEnv", observation_bytes=max(4, env_facts.observation_bytes))
    signal = run(null, [EnvFleet("process")], 0.7, 0.85).find("envfleet-process")
    bare = None
    if env_facts.num_infos > 0:
        bare = run(workload.wrapped("WithoutInfos"), [EnvFleet("serial")], 0.85, 1.0).find("envfleet-serial")
    progress("done", 1.0)
    names = ("loop", "envfleet-serial", "envfleet-serial-no-copy", "envfleet-process", "envfleet-kernel")
    loop, serial, no_copy, process, kernel = (main.find(name) for name in names)
    return FleetFacts(
        loop=loop.rate if loop else 0.0,
        serial=serial.rate if serial else 0.0,
        serial_without_infos=bare.rate if bare else None,
        serial_without_copy=no_copy.rate if no_copy else None,
        process=process.rate if process else None,
        kernel=kernel.rate if kernel else None,
        signal_s=min(sample.p50_us for sample in signal.samples) / 1e6 if signal else None,
        problems=tuple(f"{entry.label}: {entry.reason}" for entry in main.entries if entry.status != "ok"),
    )
