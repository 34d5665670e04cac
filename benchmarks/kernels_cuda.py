"""Steps a second of kernels on a CUDA device and on the CPU, in turns; without a device it says so.

    python benchmarks/kernels_cuda.py [--kernel CartPole-v1] [--seconds 1.0]

Actions lie on the device, autoreset is on, and the clock stops once the device is through. `limit` is the device's rate
of copying the same number of bytes that a step must read and write, as steps a second.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels.cuda.availability import import_cuda, is_simulated, require_cuda

SIZES = (1, 8, 1024, 16_384, 131_072, 1_048_576)
ROUNDS = 3
BYTES_PER_STEP = {"CartPole-v1": 2 * 4 * 8 + 16 + 8 + 16 + 1 + 8 + 2}
"""State and counters read and written, observation, reward, flags, action; drawn resets left out."""


def measure(fleet: Any, actions: Any, wait: Callable[[], None], seconds: float) -> float:
    """Steps a second of all sub-environments together."""
    for _ in range(3):
        fleet.step(actions)
    wait()
    steps, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        for _ in range(10):
            fleet.step(actions)
        wait()
        steps += 10
    return float(steps * fleet.num_envs / (time.perf_counter() - start_s))


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
    if is_simulated():
        print("nothing measured: numba's CUDA simulator is on")
        return 0
    cuda = import_cuda()
    rate = copy_rate(cuda)
    print(f"{cuda.get_current_device().name.decode()}: copies {rate / 1e9:.0f} GB/s (read and written)")
    print(f"{'N':>9} {'cuda M/s':>10} {'us/step':>9} {'cpu M/s':>9} {'cuda/cpu':>9} {'limit M/s':>10}")
    for num_envs in SIZES:
        best = {"cpu": 0.0, "cuda": 0.0}
        with (
            envfleet.make(f"envfleet/{options.kernel}", num_envs=num_envs, backend="kernel") as cpu,
            envfleet.make(f"envfleet/{options.kernel}", num_envs=num_envs, backend="kernel", device="cuda") as fleet,
        ):
            cpu.reset(seed=0)
            fleet.reset(seed=0)
            cpu.action_space.seed(0)
            actions = cpu.action_space.sample()
            on_device = cuda.to_device(actions)
            for _ in range(ROUNDS):
                best["cpu"] = max(best["cpu"], measure(cpu, actions, lambda: None, options.seconds))
                best["cuda"] = max(best["cuda"], measure(fleet, on_device, cuda.synchronize, options.seconds))
        size = BYTES_PER_STEP.get(options.kernel)
        limit = f"{rate / size / 1e6:10.0f}" if size else f"{'-':>10}"
        print(
            f"{num_envs:>9} {best['cuda'] / 1e6:10.2f} {num_envs / best['cuda'] * 1e6:9.1f} {best['cpu'] / 1e6:9.2f} "
            f"{best['cuda'] / best['cpu']:9.1f} {limit}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
