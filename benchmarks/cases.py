"""The table of cases, the contenders that they compare, and the smallest acceptable ratios."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.case import Case

from envfleet.machine import whole_cores

_TABLE = """
name           | function                     | unit              | better | rounds | seconds | page
fleet          | fleets:compare_fleets        | steps/s           | more   | 3      | 0.3     | benchmarks.md
native         | fleets:compare_native        | steps/s           | more   | 3      | 0.3     | benchmarks.md
busy           | fleets:compare_busy          | steps/s           | more   | 5      | 0.3     | benchmarks.md
end-to-end     | end_to_end:compare_ppo       | transitions/s     | more   | 3      | 0.3     | benchmarks.md
kernels        | kernels:compare_cartpole     | steps/s           | more   | 5      | 0.2     | benchmarks.md
games          | kernels:compare_games        | steps/s           | more   | 5      | 0.2     | benchmarks.md
hockey         | kernels:compare_hockey       | steps per CPU s   | more   | 3      | 0.3     |
compiling      | kernels:measure_compiling    | CPU s             | less   | 1      | 0.3     |
cuda           | cuda:compare_cuda            | steps/s           | more   | 3      | 0.3     | benchmarks.md
rollout        | rollouts:compare_loops       | steps/s           | more   | 12     | 0.1     |
gymnax         | rollouts:compare_gymnax      | steps/s           | more   | 12     | 0.1     |
ppo            | rollouts:compare_ppo         | samples/s         | more   | 7      | 3.0     |
updates        | updates:compare_updates      | ms                | less   | 25     | 0.3     | training.md
training       | training:compare_training    | transitions/s     | more   | 3      | 3.0     | training.md
agents         | learning:compare_agents      | return            | more   | 3      | 0.3     | agents.md
curves         | learning:compare_curves      | return            | more   | 3      | 0.3     | benchmarks.md
strength       | strength:measure_strength    | % won             | more   | 3      | 0.3     | strength.md
equal-strength | strength:compare_counts      | % won             | more   | 3      | 0.3     | training.md
turbofan       | strength:compare_turbofan    | return            | more   | 1      | 0.3     | turbofan.md
ray            | ray_fleets:compare_ray       | steps of all/s    | more   | 7      | 1.0     | benchmarks.md
rllib          | rllib:compare_rllib          | CPU s             | less   | 3      | 0.3     | guides/rllib.md
rllib-learning | rllib:compare_learning       | return            | more   | 3      | 0.3     | guides/rllib.md
remote         | remote:compare_protocols     | CPU ms per step   | less   | 3      | 2.0     | guides/remote.md
soak           | soak:run_soak                | figure            | less   | 1      | 60.0    |
pressure       | pressure:measure_pressure    | p50 ms            | less   | 1      | 10.0    |
third-party    | third_party:compare_packages |                   | more   | 1      | 0.3     | concepts/third-party.md
installs       | installs:measure_installs    | MB                | less   | 1      | 0.3     | installation.md
"""

_COUNTS = ("2", "4", "8", "16")
_PAIRS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "fleet": {
        "serial": ("loop", "gymnasium-sync", "sb3-dummy"),
        "process": ("gymnasium-async", "sb3-subproc", "envpool", "loop"),
    },
    "native": {
        "native": (
            *("gymnasium-sync", "gymnasium-async", "sb3-subproc", "process", "thread", "envpool"),
            *("gymnasium-vector_entry_point", "native-1-threads", "native-2-threads", "native-3-threads"),
        )
    },
    "busy": {"AsyncFleet": ("AsyncVectorEnv",)},
    "end-to-end": {"envfleet": ("Dummy / Sync", "Subproc / Async")},
    "kernels": {"kernel": ("EnvPool", "EnvPool, 1 thread", "CartPoleVectorEnv", "loop")},
    "games": {"kernel": ("loop", "EnvPool", "JAX")},
    "hockey": {"4,096 compiled": ("Box2D",), "256 compiled": ("Box2D",), "1 compiled": ("Box2D",)},
    "compiling": {"full cache": ("empty cache",)},
    "cuda": {"step": ("gymnax step", "CPU"), "graph": (), "random": (), "network": ("gymnax network",), "limit": ()},
    "rollout": {"fused": ("loop, numpy", "loop, torch")},
    "gymnax": {"envfleet": ("gymnax",)},
    "ppo": {"agent": ("JAX",), "tutorial": ("JAX",)},
    "updates": {"compiled": ("torch", "sb3", "plain", "first")},
    "training": {count: ("1", f"first edition, {count}") for count in _COUNTS},
    "ray": {
        "shared memory": ("plain calls", "original", "process"),
        "TCP": ("plain calls", "original"),
        "TCP, in flight": ("plain calls", "original"),
        "wrapper": ("original",),
    },
    "rllib": {"packed_vec": ("vec",)},
    "remote": {"fleet protocol": ("episode protocol", "OpenEnv")},
}
"""By case, our contenders and those that they are compared with; cases without an entry list all figures."""

_CORES = 0.9 * whole_cores()  # a worker per core, against one core of the bare loop
_FLOORS: Mapping[str, Mapping[tuple[str, str], Mapping[str, float]]] = {
    "fleet": {
        ("serial", "loop"): {"8 × cheap": 0.75},
        ("serial", "gymnasium-sync"): {"8 × cheap": 1.0},
        ("process", "gymnasium-async"): {"8 × cheap": 6.0, "64 × cheap": 15.0},
        ("process", "sb3-subproc"): {"8 × cheap": 7.0, "64 × cheap": 15.0},
        ("process", "envpool"): {"8 × cheap": 1.0},
        ("process", "loop"): {"64 × hockey": _CORES, "64 × lunar": _CORES},
    },
    "native": {
        ("native", "gymnasium-async"): {
            "8 × HalfCheetah-v5": 7.0,
            "32 × HalfCheetah-v5": 10.0,
            "8 × breakout": 1.8,
            "32 × breakout": 1.8,
            **{f"{n} × {task}-v5": 2.5 for n in (8, 32) for task in ("Ant", "Humanoid")},
            **{f"{n} × {task}-v5": 3.0 for n in (8, 32) for task in ("Hopper", "Walker2d")},
        },
        ("native", "envpool"): {
            "8 × HalfCheetah-v5": 1.5,
            "32 × HalfCheetah-v5": 1.25,
            **{f"{n} × {task}-v5": 1.1 for n in (8, 32) for task in ("Ant", "Humanoid", "Hopper", "Walker2d")},
        },
        ("native", "gymnasium-vector_entry_point"): {"8 × breakout": 0.95, "32 × breakout": 0.95},
    },
    "busy": {
        ("AsyncFleet", "AsyncVectorEnv"): {
            f"first {steps} steps, {loops} busy loops": 0.8 for steps in (50, 500) for loops in (0, 8, 24)
        },
    },
    "kernels": {("kernel", "EnvPool"): {"8": 15.0, "1,024": 80.0, "131,072": 150.0}},
    "ray": {
        ("shared memory", "plain calls"): {"CartPole, near, 2 × 4": 10.0},
        ("shared memory", "original"): {"CartPole, near, 2 × 4": 10.0, "CartPole, near, 2 × 64": 4.0},
        ("shared memory", "process"): {"CartPole, near, 2 × 4": 0.9, "CartPole, near, 2 × 64": 0.9},
        ("wrapper", "original"): {"CartPole, near, 2 × 4": 15.0, "CartPole, near, 2 × 64": 3.5},
        ("TCP", "plain calls"): {"CartPole, far, 2 × 4": 6.5, "CartPole, far, 2 × 64": 3.0},
        ("TCP, in flight", "plain calls"): {"simulator, far, 4 × 2": 1.2},
    },
    "rllib": {("packed_vec", "vec"): {"1,000, iteration": 2.8, "1,000, sampling and connectors": 12.0}},
    "remote": {("fleet protocol", "episode protocol"): {"64 engines": 8.0, "1,024 engines": 20.0}},
}
"""By case and pair, the smallest acceptable ratio in a setting."""


def _case(line: str) -> Case:
    name, entry, unit, better, rounds, seconds, page = (cell.strip() for cell in line.split("|"))
    is_cost, path = better == "less", f"docs/{page}" if page else ""
    pairs, floors = _PAIRS.get(name, {}), _FLOORS.get(name, {})
    return Case(name, entry, unit, is_cost, int(rounds), float(seconds), path, pairs, floors)


CASES: Mapping[str, Case] = {case.name: case for case in map(_case, _TABLE.strip().splitlines()[1:])}
"""Cases by name."""
