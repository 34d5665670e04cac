"""Steps a second of kernels on a CUDA device and on the CPU, in turns; without a device it says so.

    python benchmarks/kernels_cuda.py [--kernel CartPole-v1] [--seconds 1.0]

Actions lie on the device, autoreset is on, and the clock stops once the device is through. `rollout` is what rollouts
of 32 random steps do on the device, with the episodes brought to the host. `limit` is the device's rate
of copying the same number of bytes that a step must read and write, as steps a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import import_cuda, require_cuda

SIZES = (1, 8, 1024, 16_384, 131_072, 1_048_576)
ROUNDS = 3
ROLLOUT_STEPS = 32
BYTES_PER_STEP = {"CartPole-v1": 2 * 4 * 8 + 16 + 8 + 16 + 1 + 8 + 2}
"""State and counters read and written, observation, reward, flags, action; drawn resets left out."""


def measure(step: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """Calls a second."""
    for _ in range(3):
        step()
    wait()
    calls, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        for _ in range(10):
            step()
        wait()
        calls += 10
    return calls / (time.perf_counter() - start_s)


def copy_rate(cuda: Any) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    size_bytes = 1 << 30
    source, target = (cuda.device_array(size_bytes, np.uint8) for _ in range(2))
    target.copy_to_device(source)
    cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(10):
        target.copy_to_device(source)
    cuda.synchronize()
    return 10 * 2 * size_bytes / (time.perf_counter() - start_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", default="CartPole-v1")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    try:
        require_cuda()
    except InvalidArgument as error:
        print(f"nothing measured: {error}")
        return 0
    if numba.config.ENABLE_CUDASIM:
        print("nothing measured: numba's CUDA simulator is on")
        return 0
    cuda = import_cuda()
    rate = copy_rate(cuda)
    print(f"{cuda.get_current_device().name.decode()}: copies {rate / 1e9:.0f} GB/s (read and written)")
    print(
        f"{'N':>9} {'cuda M/s':>10} {'us/step':>9} {'cpu M/s':>9} {'cuda/cpu':>9} {'limit M/s':>10} {'rollout M/s':>12}"
    )
    for num_envs in SIZES:
        best = {"cpu": 0.0, "cuda": 0.0, "rollout": 0.0}
        with (
            envfleet.make(f"envfleet/{options.kernel}", num_envs=num_envs, backend="kernel") as cpu,
            envfleet.make(f"envfleet/{options.kernel}", num_envs=num_envs, backend="kernel", device="cuda") as fleet,
        ):
            cpu.reset(seed=0)
            fleet.reset(seed=0)
            cpu.action_space.seed(0)
            actions = cpu.action_space.sample()
            on_device = cuda.to_device(actions)
            memory = fleet.rollout("random", ROLLOUT_STEPS, seed=0)
            steps: dict[str, tuple[Callable[[], Any], Callable[[], None], int]] = {
                "cpu": (partial(cpu.step, actions), lambda: None, 1),
                "cuda": (partial(fleet.step, on_device), cuda.synchronize, 1),
                "rollout": (
                    partial(fleet.rollout, "random", ROLLOUT_STEPS, seed=0, out=memory),
                    cuda.synchronize,
                    ROLLOUT_STEPS,
                ),
            }
            for _ in range(ROUNDS):
                for name, (step, wait, num_steps) in steps.items():
                    rate_now = measure(step, wait, options.seconds) * num_steps * num_envs
                    best[name] = max(best[name], rate_now)
        size = BYTES_PER_STEP.get(options.kernel)
        limit = f"{rate / size / 1e6:10.0f}" if size else f"{'-':>10}"
        print(
            f"{num_envs:>9} {best['cuda'] / 1e6:10.2f} {num_envs / best['cuda'] * 1e6:9.1f} {best['cpu'] / 1e6:9.2f} "
            f"{best['cuda'] / best['cpu']:9.1f} {limit} {best['rollout'] / 1e6:12.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
