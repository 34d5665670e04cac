"""Limits of a kernel on this machine: operations and bytes of a step, divided by what the machine does of each.

The machine's side is measured: memory by a triad (a = b + s * c) over as many bytes as a step of the fleet touches, so
that both use the same caches; arithmetic by a loop of products and sums, and one of divisions, compiled by the same
compiler.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from benchmarks.case import Record, Session
from benchmarks.kernels import kernel_fleet

from envfleet.envs.classic.cartpole import CartPole
from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.kernel import Kernel, read_kernel

CHAIN = 16


def count_work(kernel: type[Kernel], action: Any) -> dict[str, int]:
    """Count bytes, operations and divisions of one step, by running it on numbers that count.

    Args:
        kernel: Kernel with a `step` that draws nothing and computes with operators only.
        action: One of its actions.
    """
    spec = read_kernel(kernel)
    plan = BufferPlan(spec)
    size = sum(2 * buffer.dtype.itemsize for buffer in plan.state.buffers)
    size += sum(2 * b.dtype.itemsize for b in plan.episode if b.name in ("awaiting", "elapsed", "returns"))
    size += sum(buffer.dtype.itemsize * buffer.size for buffer in plan.outputs)
    size += spec.action.dtype.itemsize * spec.action.size
    work = {"bytes": size, "operations": 0, "divisions": 0}
    number = _counting(work)
    state = SimpleNamespace(**{name: number(0.01) for name in spec.state.names})
    params = SimpleNamespace(**{name: number(float(value)) for name, value in spec.params.defaults.items()})
    spec.step(state, action, None, params)
    return work


def _counting(work: dict[str, int]) -> type[float]:
    """Return a float type that counts its operations."""

    def counted(name: str, kind: str) -> Callable[..., Any]:
        plain = getattr(float, name)

        def operator(*operands: Any) -> Any:
            work[kind] += 1
            result = plain(*operands)
            return number(result) if type(result) is float else result

        return operator

    names = ["add", "radd", "sub", "rsub", "mul", "rmul", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne"]
    body: dict[str, Any] = {f"__{name}__": counted(f"__{name}__", "operations") for name in names}
    body |= {f"__{name}__": counted(f"__{name}__", "divisions") for name in ("truediv", "rtruediv")}
    number = type("Number", (float,), {**body, "__hash__": float.__hash__})
    return number


def measure_peak(
    loop: Callable[..., None], arrays: Callable[[], tuple[Any, ...]], amount: float, threads: int
) -> float:
    """Return how much of something all threads do per second, in the best of ten runs."""
    pieces = [arrays() for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:

        def run(count: int) -> float:
            start_s = time.perf_counter()
            list(pool.map(lambda piece: loop(*piece, count), pieces))
            return time.perf_counter() - start_s

        run(1)
        count = 1
        while min(run(count) for _ in range(3)) < 0.01:
            count *= 2
        return max(threads * amount * count / run(count) for _ in range(10))


@numba.njit(nogil=True, error_model="numpy")
def _triad(a: Any, b: Any, c: Any, count: int) -> None:
    for k in range(count):
        scale = 3.0 + k
        for i in range(a.size):
            a[i] = b[i] + scale * c[i]


@numba.njit(nogil=True, error_model="numpy")
def _products_and_sums(values: Any, count: int) -> None:
    for _ in range(count):
        for i in range(values.size):
            x = values[i]
            for _k in range(CHAIN):
                x = x * 0.999 + 0.001
            values[i] = x


@numba.njit(nogil=True, error_model="numpy")
def _divisions(values: Any, count: int) -> None:
    for _ in range(count):
        for i in range(values.size):
            x = values[i]
            for _k in range(CHAIN):
                x = 1.7 / x
            values[i] = x


def measure_limits(
    session: Session,
    *,
    sizes: tuple[int, ...] = (1, 8, 1024, 8192, 131_072, 1_048_576),
    threads: tuple[int, ...] = (1, 2),
) -> None:
    """Compare CartPole as a kernel with the limits of the machine: calls, arithmetic and memory."""
    work = count_work(CartPole, 1)
    values = functools.partial(np.linspace, 1.0, 2.0, 1024)
    with kernel_fleet("envfleet/CartPole-v1", 1, workers=1) as one:
        rate = one.rate(session.seconds)
        call_ns = min(1e9 / rate() for _ in range(session.rounds))
    for count in threads:
        operations = measure_peak(_products_and_sums, lambda: (values(),), 2 * CHAIN * 1024, count)
        divisions = measure_peak(_divisions, lambda: (values(),), CHAIN * 1024, count)
        for num_envs in sizes:
            if num_envs < count:
                continue
            length = max(64, work["bytes"] * num_envs // count // 24)
            arrays = functools.partial(
                lambda length: tuple(np.full(length, value) for value in (0.0, 1.0, 2.0)), length
            )
            with kernel_fleet("envfleet/CartPole-v1", num_envs, workers=count) as fleet:
                rate = fleet.rate(session.seconds)
                measured = [1e9 / rate() for _ in range(session.rounds)]
            bounds = {
                "call": call_ns / num_envs,
                "arithmetic": 1e9 * max(work["operations"] / operations, work["divisions"] / divisions),
                "memory": 1e9 * work["bytes"] / measure_peak(_triad, arrays, 24 * length, count),
            }
            notes = {name: f"{bound:.2f}" for name, bound in bounds.items()}
            binding = max(bounds, key=lambda name: bounds[name])
            notes["limit"] = f"{binding}, {bounds[binding] / min(measured):.0%}"
            session.add(Record(f"{num_envs:,}", f"workers={count}", measured, notes))
