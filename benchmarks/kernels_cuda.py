"""Steps a second of kernels on a CUDA device, on the CPU and in gymnax, in turns; without a device it says so.

    python benchmarks/kernels_cuda.py [--kernel CartPole-v1] [--num-envs 1024 131072] [--seconds 0.3]
    python benchmarks/kernels_cuda.py --gymnax PYTHON    # where that interpreter has gymnax, and JAX for the device

Actions lie on the device, autoreset is on, and the clock stops once the device is through: for `step` and gymnax's
after a number of steps in a row, each a call from Python. `graph` replays a step that torch captured. `random` and
`network` are rollouts of 32 steps in one call, of which nobody looks at the episodes; the network has 2 × 64, as
gymnax's rollout has. `limit` is the device's rate of copying the bytes that a step must read and write, as steps a
second. All figures are million steps a second, the best of the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from elsewhere import rate_in
from rollout import make_layers

import envfleet
from envfleet.errors import InvalidArgument
from envfleet.kernels import MLP
from envfleet.kernels.cuda.availability import import_cuda, require_cuda

SIZES = (1, 1024, 16_384, 131_072, 1_048_576)
ROUNDS = 3
STEPS_IN_A_ROW = 50
ROLLOUT_STEPS = 32
BYTES_PER_STEP = {"CartPole-v1": 2 * 4 * 8 + 16 + 8 + 16 + 1 + 8 + 2}
"""State and counters read and written, observation, reward, flags, action; drawn resets left out."""
IN_GYMNAX = {
    "CartPole-v1": "CartPole-v1",
    "Acrobot-v1": "Acrobot-v1",
    "MountainCar-v0": "MountainCar-v0",
    "MinAtar-Asterix-v1": "Asterix-MinAtar",
    "MinAtar-Breakout-v1": "Breakout-MinAtar",
    "MinAtar-Freeway-v1": "Freeway-MinAtar",
    "MinAtar-SpaceInvaders-v1": "SpaceInvaders-MinAtar",
}
COLUMNS = ("N", "step", "graph", "gymnax", "ratio", "CPU", "random", "network", "gymnax", "ratio", "limit")

Rate = Callable[[float], float]
"""Steps for so many seconds; returns steps per second."""


def rate_of(step: Callable[[], Any], wait: Callable[[], Any], num_steps: int, calls_in_a_row: int = 1) -> Rate:
    """Time calls, each so many steps."""

    def rate(seconds: float) -> float:
        calls, start_s = 0, time.perf_counter()
        while time.perf_counter() - start_s < seconds:
            for _ in range(calls_in_a_row):
                step()
            wait()
            calls += calls_in_a_row
        return calls * num_steps / (time.perf_counter() - start_s)

    return rate


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


def captured(fleet: Any, stream: Any, actions: Any) -> Callable[[], Any]:
    """Return what replays a step of a fleet on a stream of torch's."""
    import torch

    with torch.cuda.stream(stream):
        actions = torch.as_tensor(actions, device="cuda")
        fleet.reset(seed=0)
        fleet.step(actions)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            fleet.step(actions)

    def replay(kept: Any = actions) -> None:
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def contenders(stack: contextlib.ExitStack, kernel: str, num_envs: int, gymnax: str | None) -> dict[str, Rate]:
    """Make all that can be measured here ready."""
    cuda = import_cuda()
    make = partial(envfleet.make, f"envfleet/{kernel}", num_envs, backend="kernel")
    cpu, fleet = (stack.enter_context(make(device=device)) for device in ("cpu", "cuda"))
    cpu.reset(seed=0)
    fleet.reset(seed=0)
    cpu.action_space.seed(0)
    actions = cpu.action_space.sample()
    many, sync = ROLLOUT_STEPS * num_envs, cuda.synchronize
    rates = dict[str, Rate]()
    if gymnax and kernel in IN_GYMNAX:
        rates["gymnax"] = rate_in(stack, gymnax, "jax_games.py", "gymnax", IN_GYMNAX[kernel], num_envs)
    if gymnax and kernel == "CartPole-v1":
        rates["gymnax network"] = rate_in(stack, gymnax, "gymnax_rollout.py", num_envs, ROLLOUT_STEPS)
    rates |= {
        "step": rate_of(partial(fleet.step, cuda.to_device(actions)), sync, num_envs, STEPS_IN_A_ROW),
        "CPU": rate_of(partial(cpu.step, actions), int, num_envs),
    }
    policies: dict[str, Any] = {"random": "random"}
    if kernel == "CartPole-v1":
        policies["network"] = MLP(make_layers(4, 64, 64, 2), head="categorical")
    for name, policy in policies.items():
        memory = fleet.rollout(policy, ROLLOUT_STEPS, seed=0)
        rates[name] = rate_of(partial(fleet.rollout, policy, ROLLOUT_STEPS, seed=0, out=memory), sync, many)
    with contextlib.suppress(ImportError):
        import torch

        if torch.cuda.is_available():
            stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            own = stack.enter_context(make(device="cuda", stream=stream.cuda_stream, copy=False))
            rates["graph"] = rate_of(captured(own, stream, actions), stream.synchronize, num_envs, STEPS_IN_A_ROW)
    for rate in rates.values():
        rate(0.05)
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--gymnax", metavar="PYTHON", help="an interpreter that has gymnax and JAX for the device")
    options = parser.parse_args()
    try:
        require_cuda()
    except InvalidArgument as error:
        print(f"nothing measured: {error}")
        return 0
    cuda = import_cuda()
    copied = copy_rate(cuda)
    print(f"{options.kernel} on {cuda.get_current_device().name}: copies {copied / 1e9:.0f} GB/s (read and written)")
    print(" ".join(f"{column:>9}" for column in COLUMNS))
    for num_envs in options.num_envs:
        with contextlib.ExitStack() as stack:
            rates = contenders(stack, options.kernel, num_envs, options.gymnax)
            best = dict.fromkeys(rates, 0.0)
            for _ in range(ROUNDS):
                for name, rate in rates.items():
                    best[name] = max(best[name], rate(options.seconds) / 1e6)
        if options.kernel in BYTES_PER_STEP:
            best["limit"] = copied / BYTES_PER_STEP[options.kernel] / 1e6
        for ratio, ours, theirs in (("steps", "step", "gymnax"), ("networks", "network", "gymnax network")):
            if theirs in best:
                best[ratio] = best[ours] / best[theirs]
        names = (
            "step", "graph", "gymnax", "steps", "CPU", "random", "network", "gymnax network", "networks", "limit"
        )  # fmt: skip
        cells = (f"{best[name]:9.2f}" if name in best else f"{'-':>9}" for name in names)
        print(f"{num_envs:9}", *cells, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
