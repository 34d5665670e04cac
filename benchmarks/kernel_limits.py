"""How fast a kernel could be on this machine: what one step moves and computes, over what the machine can do of each.

The machine's side is measured, not looked up: memory by a triad (a = b + s * c) over as many bytes as the kernel's step
touches, so that both live in the same caches; arithmetic by a loop of products and sums, and one of divisions, that the
same compiler turns into vector code.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np

from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.kernel import Kernel, read_kernel

_CHAIN = 16
_REPEATS = 10
_SAMPLE_S = 0.01


@dataclasses.dataclass(frozen=True)
class Work:
    """What one step of one sub-environment costs at least.

    Attributes:
        bytes: Read and written: state, episode, action, results.
        arithmetic: Sums, products, comparisons and signs in `step`.
        divisions: Divisions in `step`.
    """

    bytes: int
    arithmetic: int
    divisions: int


@dataclasses.dataclass(frozen=True)
class Peak:
    """What the machine can do, with so many threads.

    Attributes:
        bytes_per_s: Memory moved, by number of bytes that the loop touches.
        arithmetic_per_s: Sums and products.
        divisions_per_s: Divisions.
    """

    bytes_per_s: dict[int, float]
    arithmetic_per_s: float
    divisions_per_s: float


# --- The kernel's side -----------------------------------------------------------------------------------------------


def count_work(kernel: type[Kernel], action: Any) -> Work:
    """Count what one step needs, by the arrays it touches and by running it on numbers that count.

    Args:
        kernel: Its step does not draw, and computes with operators alone.
        action: One of its actions.
    """
    spec = read_kernel(kernel)
    plan = BufferPlan(spec)
    read_and_written = sum(buffer.dtype.itemsize for buffer in plan.state.buffers)
    read_and_written += sum(b.dtype.itemsize for b in plan.episode if b.name in ("awaiting", "elapsed", "returns"))
    written = sum(buffer.dtype.itemsize * buffer.size for buffer in plan.outputs)
    read = spec.action.dtype.itemsize * spec.action.size
    tally = {"arithmetic": 0, "divisions": 0}
    number = _counting(tally)
    state = SimpleNamespace(**{name: number(0.01) for name in spec.state.names})
    params = SimpleNamespace(**{name: number(float(value)) for name, value in spec.params.defaults.items()})
    spec.step(state, action, None, params)
    return Work(2 * read_and_written + written + read, **tally)


def _counting(tally: dict[str, int]) -> type[float]:
    """A float that counts what is done with it."""

    def counted(name: str, kind: str) -> Callable[..., Any]:
        plain = getattr(float, name)

        def operator(*operands: Any) -> Any:
            tally[kind] += 1
            result = plain(*operands)
            return Number(result) if type(result) is float else result

        return operator

    names = ("add", "radd", "sub", "rsub", "mul", "rmul", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne")
    body: dict[str, Any] = {f"__{name}__": counted(f"__{name}__", "arithmetic") for name in names}
    body |= {f"__{name}__": counted(f"__{name}__", "divisions") for name in ("truediv", "rtruediv")}
    Number = type("Number", (float,), {**body, "__hash__": float.__hash__})  # noqa: N806  # a class
    return Number


# --- The machine's side ----------------------------------------------------------------------------------------------


def measure_peak(num_threads: int, sizes_bytes: list[int]) -> Peak:
    """Measure what `num_threads` threads can do together; `sizes_bytes` are those of memory to try."""
    with ThreadPoolExecutor(num_threads) as pool:
        memory = {size: _best(pool, num_threads, _triad_work(size // num_threads)) for size in sizes_bytes}
        arithmetic = _best(pool, num_threads, _chain_work(_products_and_sums, 2 * _CHAIN))
        divisions = _best(pool, num_threads, _chain_work(_divisions, _CHAIN))
    return Peak(memory, arithmetic, divisions)


_Work = Callable[[], tuple[Callable[[int], None], int]]
"""Makes a thread's own piece of work: a function of how often, and how much one time is."""


def _best(pool: ThreadPoolExecutor, num_threads: int, make: _Work) -> float:
    """How much a second all threads do together, in the best of a few runs."""
    pieces = [make() for _ in range(num_threads)]
    amount = sum(piece[1] for piece in pieces)
    count = 1
    while min(_run(pool, pieces, count) for _ in range(3)) < _SAMPLE_S:  # one alone may only have waited for a core
        count *= 2
    return max(amount * count / _run(pool, pieces, count) for _ in range(_REPEATS))


def _run(pool: ThreadPoolExecutor, pieces: list[tuple[Callable[[int], None], int]], count: int) -> float:
    start_s = time.perf_counter()
    for running in [pool.submit(piece[0], count) for piece in pieces]:
        running.result()
    return time.perf_counter() - start_s


def _triad_work(size_bytes: int) -> _Work:
    def make() -> tuple[Callable[[int], None], int]:
        length = max(64, size_bytes // 24)
        a, b, c = (np.full(length, value) for value in (0.0, 1.0, 2.0))
        _triad(a, b, c, 1)
        return lambda count: _triad(a, b, c, count), 24 * length

    return make


def _chain_work(loop: Callable[[Any, int], None], amount: int) -> _Work:
    def make() -> tuple[Callable[[int], None], int]:
        values = np.linspace(1.0, 2.0, 1024)
        loop(values, 1)
        return lambda count: loop(values, count), amount * len(values)

    return make


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
            for _k in range(_CHAIN):
                x = x * 0.999 + 0.001
            values[i] = x


@numba.njit(nogil=True, error_model="numpy")
def _divisions(values: Any, count: int) -> None:
    for _ in range(count):
        for i in range(values.size):
            x = values[i]
            for _k in range(_CHAIN):
                x = 1.7 / x
            values[i] = x
