"""RLlib at six figures: `vec`, the usual sketch of packed vectorization, and envfleet's, on compiled Pendulums.

    python benchmarks/rllib.py OUT                     # 1,000, 5,000 and 100,000 sub-environments: half an hour
    python benchmarks/rllib.py OUT --num-envs 1000     # five minutes

Writes OUT/rllib.json. Every contender trains PPO in a process of its own with batches of 100,000 samples, 5 epochs, one
minibatch; `sketch` is in `rllib_sketch.py`. Seconds per iteration are given as wall-clock and as CPU time of that
process: on a busy machine only CPU time compares. `network` is the part of sampling and connectors that the networks
take for actions and values, with fused dense layers in `packed_vec`. A first iteration is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTENDERS = ("vec", "sketch", "packed_vec")
FLOORS = {"sampling + connectors, vec / packed_vec": 15.0, "iteration, sketch / packed_vec": 1.3}


class Stopwatch:
    """Adds up wall-clock and CPU seconds of named methods, per iteration."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.process_time()
            result = function(*args, **kwargs)
            spent = self.seconds.setdefault(name, [0.0, 0.0])
            spent[0] += time.perf_counter() - wall
            spent[1] += time.process_time() - cpu
            return result

        return timed

    def lap(self) -> dict[str, list[float]]:
        seconds, self.seconds = self.seconds, {}
        return seconds


class TimedConnector:
    """Stands in for a learner connector, and times it, and what it asks the critic."""

    def __init__(self, connector: Any, module: Any, watch: Stopwatch) -> None:
        self._call, self._module, self._watch = watch.wrap("connectors", connector), module, watch

    def __call__(self, **kwargs: Any) -> Any:
        self._module.compute_values = self._watch.wrap("network", self._module.compute_values)
        try:
            return self._call(**kwargs)
        finally:
            del self._module.compute_values


def configure(contender: str, num_envs: int, batch_size: int) -> Any:
    """The contender's configuration, with the same PPO settings for all."""
    from ray.rllib.algorithms.ppo import PPOConfig

    from envfleet.rllib import PackedPPOConfig

    if contender == "sketch":
        from rllib_sketch import sketch_config

        config, size = sketch_config(num_envs), batch_size // num_envs
        config.env_runners(num_env_runners=0, num_envs_per_env_runner=1)
    else:
        config, size = (PackedPPOConfig() if contender == "packed_vec" else PPOConfig()), batch_size
        config.environment("envfleet/Pendulum-v1").env_runners(
            num_env_runners=0, num_envs_per_env_runner=num_envs, gym_env_vectorize_mode="vector_entry_point"
        )
    return config.training(
        train_batch_size=size, minibatch_size=batch_size, num_epochs=5, lr=3e-4, lambda_=0.95, gamma=0.95
    ).debugging(seed=0)


def measure(contender: str, num_envs: int, batch_size: int, iterations: int, threads: int) -> dict[str, Any]:
    """Train, and take the seconds of every part of an iteration."""
    import logging

    import ray
    import torch
    from ray.rllib.core import DEFAULT_MODULE_ID

    torch.set_num_threads(threads)
    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm = configure(contender, num_envs, batch_size).build_algo()
    watch = Stopwatch()
    runner, group = algorithm.env_runner, algorithm.learner_group
    runner.sample = watch.wrap("sampling", runner.sample)
    group.update = watch.wrap("update", group.update)
    runner.module._forward_exploration = watch.wrap("network", runner.module._forward_exploration)  # noqa: SLF001
    learner = group._learner  # noqa: SLF001
    critic = learner.module[DEFAULT_MODULE_ID].unwrapped()
    learner._learner_connector = TimedConnector(learner._learner_connector, critic, watch)  # noqa: SLF001
    train = watch.wrap("iteration", algorithm.train)
    laps = []
    for _ in range(iterations + 1):
        train()
        lap = watch.lap()
        lap["learner"] = [total - part for total, part in zip(lap.pop("update"), lap["connectors"], strict=True)]
        laps.append(lap)
    algorithm.stop()
    ray.shutdown()
    median = {
        name: [statistics.median(lap[name][kind] for lap in laps[1:]) for kind in (0, 1)] for name in sorted(laps[0])
    }
    return {"contender": contender, "num_envs": num_envs, "seconds": median, "load": os.getloadavg()[0]}


def ratios(results: list[dict[str, Any]]) -> dict[str, float]:
    """What the floors are about, in CPU time."""
    cpu = {result["contender"]: {name: pair[1] for name, pair in result["seconds"].items()} for result in results}
    found = {}
    if {"vec", "packed_vec"} <= cpu.keys():
        vec, packed = (cpu[name]["sampling"] + cpu[name]["connectors"] for name in ("vec", "packed_vec"))
        found["sampling + connectors, vec / packed_vec"] = vec / packed
        vec, packed = vec - cpu["vec"]["network"], packed - cpu["packed_vec"]["network"]
        found["the same without the network's own passes"] = vec / packed
        found["iteration, vec / packed_vec"] = cpu["vec"]["iteration"] / cpu["packed_vec"]["iteration"]
    if {"sketch", "packed_vec"} <= cpu.keys():
        found["iteration, sketch / packed_vec"] = cpu["sketch"]["iteration"] / cpu["packed_vec"]["iteration"]
        found["learner, sketch / packed_vec"] = cpu["sketch"]["learner"] / cpu["packed_vec"]["learner"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1000, 5000, 100_000])
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--batch-size", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in the process of one contender
    chosen = parser.parse_args()
    if chosen.one:
        (num_envs,), (contender,) = chosen.num_envs, chosen.contenders
        result = measure(contender, num_envs, chosen.batch_size, chosen.iterations, chosen.threads)
        chosen.out.write_text(json.dumps(result))
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    report = []
    for num_envs in chosen.num_envs:
        results = []
        for contender in chosen.contenders:
            if contender == "vec" and num_envs > 10_000:
                continue  # minutes of episode objects, one per sub-environment
            file = chosen.out / f"rllib-{contender}-{num_envs}.json"
            options = ["--batch-size", str(max(chosen.batch_size, num_envs)), "--iterations", str(chosen.iterations)]
            options += ["--threads", str(chosen.threads), "--num-envs", str(num_envs), "--contenders", contender]
            subprocess.run([sys.executable, "-W", "ignore", __file__, str(file), "--one", *options], check=True)
            results.append(json.loads(file.read_text()))
            file.unlink()
            seconds = {name: f"{cpu:.2f} ({wall:.2f})" for name, (wall, cpu) in results[-1]["seconds"].items()}
            print(f"{contender:10} {num_envs:7,}  CPU (wall) s per iteration: {seconds}", flush=True)
        found = ratios(results)
        for name, ratio in found.items():
            floor = f"  floor {FLOORS[name]}" if name in FLOORS else ""
            print(f"    {name}: {ratio:.1f}{floor}")
        report.append({"num_envs": num_envs, "results": results, "ratios": found})
    (chosen.out / "rllib.json").write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
