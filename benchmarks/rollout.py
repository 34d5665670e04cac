"""Fused rollouts against a Python loop of steps with the same policy, in the same run.

    python benchmarks/rollout.py                        # N = 8, 1024 and 131072, a few minutes
    python benchmarks/rollout.py --num-envs 1024 --workers 1
    python benchmarks/rollout.py --gymnax PYTHON        # against gymnax, where that interpreter has it; one core each

The contenders take turns of equal time, and the best turn of each counts, in million steps per second. The
loop keeps what a rollout keeps: observations, actions, rewards and flags, in slabs of its own that it writes again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from elsewhere import rate_in
from numpy.typing import NDArray

import envfleet
from envfleet.kernels import MLP

STEPS_PER_ROLLOUT = 500_000
TURN_S = 0.1
ROUNDS = 12

Layers = list[tuple[NDArray[Any], NDArray[Any]]]
Choose = Callable[[NDArray[Any]], NDArray[Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 1024, 131_072])
    parser.add_argument("--workers", type=int, default=None, help="threads; by default as the fleet chooses")
    parser.add_argument("--gymnax", metavar="PYTHON", help="an interpreter that has gymnax and JAX")
    options = parser.parse_args(arguments)
    if options.gymnax:
        compare_with_gymnax(options.gymnax)
        return
    layers = make_layers(4, 64, 64, 2)
    print(f"{'num_envs':>9} {'policy':>8} {'contender':>12} {'M steps/s':>10} {'fused is':>9}")
    for num_envs in options.num_envs:
        for policy, fused, loops in (
            ("random", "random", {"loop, numpy": random_choice(num_envs)}),
            ("MLP", MLP(layers), network_choices(layers)),
        ):
            rates = measure(num_envs, options.workers, fused, loops)
            for name, rate in rates.items():
                ratio = f"{rates['fused'] / rate:8.1f}x"
                print(f"{num_envs:9} {policy:>8} {name:>12} {rate / 1e6:10.2f} {ratio}", flush=True)


def make_layers(*sizes: int) -> Layers:
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(sizes)
    return [(rng.normal(size=(o, i)).astype(np.float32) / i**0.5, np.zeros(o, np.float32)) for i, o in pairs]


def random_choice(num_envs: int) -> Choose:
    rng = np.random.default_rng(0)
    return lambda _: rng.integers(0, 2, num_envs)


def network_choices(layers: Layers) -> dict[str, Choose]:
    def with_numpy(observations: NDArray[Any]) -> NDArray[Any]:
        x = observations
        for w, b in layers[:-1]:
            x = np.tanh(x @ w.T + b)
        return (x @ layers[-1][0].T + layers[-1][1]).argmax(1)

    choices: dict[str, Choose] = {"loop, numpy": with_numpy}
    try:
        import torch
    except ImportError:
        return choices
    tensors = [(torch.from_numpy(w), torch.from_numpy(b)) for w, b in layers]

    @torch.inference_mode()
    def with_torch(observations: NDArray[Any]) -> NDArray[Any]:
        x = torch.from_numpy(observations)
        for w, b in tensors[:-1]:
            x = torch.tanh(torch.nn.functional.linear(x, w, b))
        chosen: NDArray[Any] = torch.nn.functional.linear(x, *tensors[-1]).argmax(1).numpy()
        return chosen

    return choices | {"loop, torch": with_torch}


def measure(num_envs: int, workers: int | None, policy: Any, loops: dict[str, Choose]) -> dict[str, float]:
    """Steps per second of every contender."""
    num_steps = max(32, STEPS_PER_ROLLOUT // num_envs)
    loop_steps = max(8, num_steps // 50)
    best: dict[str, float] = {}
    with envfleet.make("envfleet/CartPole-v1", num_envs=num_envs, backend="kernel", workers=workers) as fleet:
        fleet.reset(seed=0)
        slabs = make_slabs(fleet, loop_steps)
        kept = fleet.rollout(policy, num_steps, seed=0)
        contenders: dict[str, tuple[int, Callable[[], Any]]] = {
            "fused": (num_steps, functools.partial(fleet.rollout, policy, num_steps, seed=1, out=kept))
        }
        for name, choose in loops.items():
            contenders[name] = (loop_steps, functools.partial(loop, fleet, choose, slabs))
        for _ in range(ROUNDS):
            for name, (steps, run) in contenders.items():
                best[name] = max(best.get(name, 0.0), num_envs * steps * runs_per_second(run))
    return best


def compare_with_gymnax(python: str) -> None:
    """Draw actions from the same network of 2 × 64 in turns with gymnax, beside what the core can do."""
    layers, flops = make_layers(4, 64, 64, 2), 2 * (4 * 64 + 64 * 64 + 64 * 2)
    peak = measure_peak()
    print(f"One core makes {peak:.0f} G float32 products and sums a second.")
    print(f"{'num_envs':>9} {'envfleet':>12} {'gymnax':>12} {'ratio':>6}")
    for num_envs in (1024, 16_384):
        num_steps = STEPS_PER_ROLLOUT // num_envs
        with (
            contextlib.ExitStack() as stack,
            envfleet.make(
                "envfleet/CartPole-v1", num_envs, backend="kernel", workers=1, autoreset_mode="SAME_STEP"
            ) as fleet,
        ):
            theirs = rate_in(stack, python, "gymnax_rollout.py", num_envs, num_steps)
            fleet.reset(seed=0)
            policy = MLP(layers, head="categorical")
            run = functools.partial(fleet.rollout, policy, num_steps, seed=1, out=fleet.rollout(policy, num_steps))
            rates = [(num_envs * num_steps * runs_per_second(run), theirs(TURN_S)) for _ in range(ROUNDS)]
        best = [max(column) for column in zip(*rates, strict=True)]
        share = best[0] * flops / 1e9 / peak
        costs = "".join(f"{1e9 / rate:9.1f} ns" for rate in best)
        print(f"{num_envs:9} {costs} {best[0] / best[1]:6.2f}   {flops / 1e3:.1f} kFLOP a sample: {share:.0%} of that")


def measure_peak() -> float:
    """GFLOP/s of a product of float32 matrices on one core: torch's, or the agents', as torch may not know AVX-512."""
    import torch

    from envfleet.native import products
    from envfleet.native.compiling import compile_function

    @compile_function
    def multiply(left: products.F32, right: products.F32, result: products.F32) -> None:
        products.multiply(left, right, result, False, False)

    torch.set_num_threads(1)
    large, small = torch.ones((1024, 1024)), np.ones((3, 256, 256), np.float32)
    ways: dict[int, Callable[[], Any]] = {
        2 * 1024**3: lambda: large @ large,
        2 * 256**3: lambda: multiply(*small),
    }
    return max(flops * runs_per_second(run) for _ in range(ROUNDS) for flops, run in ways.items()) / 1e9


def runs_per_second(run: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    count = 0
    while time.perf_counter() - start_s < TURN_S:
        run()
        count += 1
    return count / (time.perf_counter() - start_s)


def make_slabs(fleet: Any, num_steps: int) -> list[NDArray[Any]]:
    num_envs = fleet.num_envs
    shapes = [((4,), np.float32), ((), np.int64), ((), np.float64), ((), np.bool_), ((), np.bool_)]
    return [np.zeros((num_steps, num_envs, *shape), dtype) for shape, dtype in shapes]


def loop(fleet: Any, choose: Choose, slabs: list[NDArray[Any]]) -> None:
    observations = slabs[0][-1].copy()  # of the round before, which is near enough for a clock
    for rows in zip(*slabs, strict=True):
        actions = choose(observations)
        rows[0][...] = observations
        observations, rewards, terminated, truncated, _ = fleet.step(actions)
        for row, values in zip(rows[1:], (actions, rewards, terminated, truncated), strict=True):
            row[...] = values


if __name__ == "__main__":
    main()
