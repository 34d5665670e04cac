"""The table of cases."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.case import Case, Floor

from envfleet.machine import whole_cores

_FLEETS = (
    *(("serial", peer) for peer in ("loop", "gymnasium-sync", "sb3-dummy")),
    *(("process", peer) for peer in ("gymnasium-async", "sb3-subproc", "envpool", "loop")),
)
_FLEET_FLOORS = (
    Floor("8 × cheap", "serial", "loop", 0.75),
    Floor("8 × cheap", "serial", "gymnasium-sync", 1.0),
    Floor("8 × cheap", "process", "gymnasium-async", 6.0),
    Floor("8 × cheap", "process", "sb3-subproc", 7.0),
    Floor("8 × cheap", "process", "envpool", 1.0),
    Floor("64 × cheap", "process", "gymnasium-async", 15.0),
    Floor("64 × cheap", "process", "sb3-subproc", 15.0),
    Floor("64 × hockey", "process", "loop", 0.9 * whole_cores()),
    Floor("64 × lunar", "process", "loop", 0.9 * whole_cores()),
)
_BENCHMARKS = "docs/benchmarks.md"

_CASES = (
    Case(
        "fleet",
        "fleets:compare_fleets",
        "Fleets against a bare loop, Gymnasium, Stable-Baselines3 and EnvPool (20 minutes)",
        rounds=3,
        pairs=_FLEETS,
        floors=_FLEET_FLOORS,
        page=_BENCHMARKS,
    ),
    Case(
        "busy",
        "fleets:compare_busy",
        "First steps of 8 CartPoles next to busy loops, against AsyncVectorEnv",
        pairs=(("AsyncFleet", "AsyncVectorEnv"),),
        floors=tuple(
            Floor(f"first {steps} steps, {loops} busy loops", "AsyncFleet", "AsyncVectorEnv", 0.8)
            for steps in (50, 500)
            for loops in (0, 8, 24)
        ),
        page=_BENCHMARKS,
    ),
    Case(
        "serial",
        "fleets:compare_serial",
        "A serial fleet of 8 CartPoles against the bare loop, in CPU time",
        unit="ns per transition",
        is_cost=True,
        rounds=80,
        pairs=(("serial", "loop"),),
    ),
    Case(
        "policy",
        "fleets:compare_policy",
        "A policy that uses all cores, between the steps of a process fleet and alone",
        unit="ms",
        is_cost=True,
        rounds=20,
        pairs=(("between steps", "alone"),),
    ),
    Case(
        "end-to-end",
        "fleets:compare_end_to_end",
        "Stable-Baselines3's PPO with our vector environment and with its own",
        unit="transitions/s",
        rounds=3,
        pairs=(("FleetVecEnv", None),),
    ),
    Case(
        "kernels",
        "kernels:compare_cartpole",
        "CartPole as a kernel against EnvPool, CartPoleVectorEnv and the bare loop",
        seconds=0.2,
        pairs=tuple(("kernel", peer) for peer in ("EnvPool", "EnvPool, 1 thread", "CartPoleVectorEnv", "loop")),
        floors=(
            Floor("8", "kernel", "EnvPool", 15.0),
            Floor("1,024", "kernel", "EnvPool", 80.0),
            Floor("131,072", "kernel", "EnvPool", 150.0),
        ),
        page=_BENCHMARKS,
    ),
    Case(
        "limits",
        "roofline:measure_limits",
        "CartPole as a kernel against the limits of the machine",
        unit="ns per transition",
        page="docs/kernels.md",
    ),
    Case(
        "games",
        "kernels:compare_games",
        "Every kernel against its original, EnvPool, gymnax and pgx (8 minutes)",
        seconds=0.2,
        pairs=(("kernel", None),),
        page=_BENCHMARKS,
    ),
    Case(
        "hockey",
        "kernels:compare_hockey",
        "Compiled hockey against Box2D, in CPU time",
        rounds=3,
        pairs=(("4,096 compiled", "Box2D"), ("256 compiled", "Box2D"), ("1 compiled", "Box2D")),
    ),
    Case(
        "compiling",
        "kernels:measure_compiling",
        "First use of kernels and of agents' updates, with an empty and a full cache",
        unit="CPU s",
        is_cost=True,
        pairs=(("full cache", "empty cache"),),
    ),
    Case(
        "cuda",
        "cuda:compare_cuda",
        "CartPole as a kernel on a GPU, against gymnax and the CPU",
        rounds=3,
        pairs=(
            ("step", "gymnax step"),
            ("step", "CPU"),
            ("graph", None),
            ("random", None),
            ("network", "gymnax network"),
        ),
        page=_BENCHMARKS,
    ),
    Case(
        "rollout",
        "rollouts:compare_loops",
        "Fused rollouts against Python loops of steps",
        rounds=12,
        seconds=0.1,
        pairs=(("fused", None),),
    ),
    Case(
        "gymnax",
        "rollouts:compare_gymnax",
        "Fused rollouts of a network against gymnax, one core each",
        rounds=12,
        seconds=0.1,
        pairs=(("envfleet", "gymnax"),),
    ),
    Case(
        "ppo",
        "rollouts:compare_ppo",
        "PPO on a kernel, learning included, against PPO in JAX, one core each",
        unit="samples/s",
        rounds=7,
        seconds=3.0,
        pairs=(("agent", "JAX"), ("tutorial", "JAX")),
    ),
    Case(
        "updates",
        "updates:compare_updates",
        "Gradient updates against torch, Stable-Baselines3 and the first edition (4 minutes)",
        unit="ms",
        is_cost=True,
        rounds=25,
        pairs=(("compiled", None),),
        page="docs/training.md",
    ),
    Case(
        "training",
        "training:compare_training",
        "Training of hockey with more sub-environments, and next to the first edition (4 minutes)",
        unit="transitions/s",
        rounds=3,
        seconds=3.0,
        pairs=(
            *((str(count), "1") for count in (2, 4, 8, 16)),
            *((str(count), f"first edition, {count}") for count in (2, 4, 8, 16)),
        ),
        page="docs/training.md",
    ),
    Case(
        "agents",
        "learning:compare_agents",
        "Agents on Pendulum and CartPole next to Stable-Baselines3's (15 CPU minutes)",
        unit="return",
        rounds=3,
        page="docs/agents.md",
    ),
    Case(
        "curves",
        "learning:compare_curves",
        "Training returns on four tasks next to Stable-Baselines3's (an hour of CPU)",
        unit="return",
        rounds=3,
        page=_BENCHMARKS,
    ),
    Case(
        "masks",
        "learning:compare_masks",
        "PPO at 2048 with the mask of allowed actions, and without (6 minutes)",
        unit="return",
        rounds=3,
    ),
    Case(
        "strength",
        "strength:measure_strength",
        "Games of hockey won after some minutes of training (40 minutes)",
        unit="% won",
        rounds=3,
        page="docs/strength.md",
    ),
    Case(
        "equal-strength",
        "strength:compare_counts",
        "Strength after equally many transitions with 1 and 8 sub-environments (15 CPU minutes)",
        unit="% won",
        rounds=3,
        page="docs/training.md",
    ),
    Case(
        "turbofan",
        "strength:compare_turbofan",
        "PPO against the turbofan's threshold policy (a minute)",
        unit="return",
        page="docs/turbofan.md",
    ),
    Case(
        "ray",
        "ray_fleets:compare_ray",
        "Fleets on Ray against plain actor calls and RayEnvWrapper's scheme (5 minutes)",
        unit="steps of all/s",
        rounds=7,
        seconds=1.0,
        pairs=tuple(
            (ours, theirs)
            for ours in ("shared memory", "TCP", "TCP, in flight", "wrapper")
            for theirs in ("plain calls", "original", "process")
            if "TCP" not in ours or theirs != "process"
        ),
        floors=(
            Floor("CartPole, near, 2 × 4", "shared memory", "original", 10.0),
            Floor("CartPole, near, 2 × 64", "shared memory", "original", 4.0),
            Floor("CartPole, near, 2 × 4", "shared memory", "plain calls", 10.0),
            Floor("CartPole, near, 2 × 4", "shared memory", "process", 0.9),
            Floor("CartPole, near, 2 × 64", "shared memory", "process", 0.9),
            Floor("CartPole, near, 2 × 4", "wrapper", "original", 15.0),
            Floor("CartPole, near, 2 × 64", "wrapper", "original", 3.5),
            Floor("CartPole, far, 2 × 4", "TCP", "plain calls", 6.5),
            Floor("CartPole, far, 2 × 64", "TCP", "plain calls", 3.0),
            Floor("simulator, far, 4 × 2", "TCP, in flight", "plain calls", 1.2),
        ),
        page=_BENCHMARKS,
    ),
    Case(
        "rllib",
        "rllib:compare_rllib",
        "Packed batches in RLlib against its own `vec` (half an hour)",
        unit="CPU s",
        is_cost=True,
        rounds=3,
        pairs=(("packed_vec", None),),
        floors=(
            Floor("1,000, iteration", "packed_vec", "vec", 2.8),
            Floor("1,000, sampling and connectors", "packed_vec", "vec", 12.0),
        ),
        page="docs/guides/rllib.md",
    ),
    Case(
        "rllib-learning",
        "rllib:compare_learning",
        "PPO by RLlib, by packed batches and by our agent (15 minutes)",
        unit="return",
        rounds=3,
        page="docs/guides/rllib.md",
    ),
    Case(
        "remote",
        "remote:compare_protocols",
        "Fleets of a service against the episode protocol, in CPU time of both ends (2 minutes)",
        unit="CPU ms per step of all",
        is_cost=True,
        rounds=3,
        seconds=2.0,
        pairs=(("fleet protocol", "episode protocol"),),
        floors=(
            Floor("64 engines", "fleet protocol", "episode protocol", 8.0),
            Floor("1,024 engines", "fleet protocol", "episode protocol", 20.0),
        ),
        page="docs/guides/remote.md",
    ),
    Case(
        "soak",
        "soak:run_soak",
        "A service under bad clients, and with 10,000 sessions (minutes)",
        unit="figure",
        seconds=60.0,
    ),
    Case(
        "third-party",
        "third_party:compare_environments",
        "Environments of other packages, in the environment of `make thirdparty` (15 minutes)",
        page="docs/concepts/third-party.md",
    ),
)
CASES: Mapping[str, Case] = {case.name: case for case in _CASES}
"""Cases by name."""
