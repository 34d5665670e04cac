"""Kernels against EnvPool, Gymnasium's native vector environment, the bare loop, and what the machine can do.

    python benchmarks/kernels.py OUT            # everything, about six minutes
    python benchmarks/kernels.py OUT --quick    # a subset, about a minute

Writes OUT/kernels.json (raw figures of every round), OUT/kernels.txt (the tables) and OUT/kernels.png. What is
compared, and how: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import gc
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kernel_seats as seats
import numpy as np
from kernel_compile import Compiling, measure_compiling
from kernel_limits import Peak, Work, count_work, measure_peak
from kernel_report import plot, report

from envfleet.bench.results import describe_machine
from envfleet.envs.classic.cartpole import CartPole

SIZES = (1, 8, 64, 1024, 8192, 32_768, 131_072, 1_048_576)
QUICK_SIZES = (1, 8, 1024, 131_072)
_RING = 64
_WARM_UP_STEPS, _WARM_UP_S = 40, 3.0  # so many random steps spread the ends of CartPole's episodes
_COUNTED_ROWS = 20_000  # some 900 resets of CartPole: a share known to 0.2 % of all rows


@dataclasses.dataclass
class Samples:
    """What one contender did with one number of sub-environments.

    Attributes:
        contender: Its name.
        num_envs: Sub-environments.
        call_s: Wall time of one step of all of them, per round.
        reset_share: Rows that were resets rather than transitions, with random actions.
    """

    contender: str
    num_envs: int
    call_s: list[float] = dataclasses.field(default_factory=list)
    reset_share: float = 0.0

    @property
    def rates(self) -> list[float]:
        """Transitions a second, per round."""
        return [self.num_envs * (1.0 - self.reset_share) / one for one in self.call_s]

    @property
    def rate(self) -> float:
        """Their median."""
        return statistics.median(self.rates)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if --strict was given and a floor was missed."""
    options = _parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    started_at = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    work = count_work(CartPole, 1)
    sizes = QUICK_SIZES if options.quick else SIZES
    peaks: dict[int, Peak] = {}

    def save(compiling: list[Compiling]) -> None:  # after every case, so that one that is stopped keeps its figures
        _save(options.out / "kernels.json", started_at, samples, work, peaks, compiling)

    samples: list[Samples] = []
    for num_envs in sizes:
        samples += _compare(num_envs, seats.cartpole(num_envs, is_quick=options.quick), options)
        save([])
    _tell("what the machine can do")
    peaks |= {count: measure_peak(count, [work.bytes * size for size in sizes]) for count in (1, 2)}
    _tell("compiling")
    compiling = measure_compiling(seats.kernel_ids()[: 1 if options.quick else None])
    save(compiling)
    lines, has_missed = report(samples, work, peaks, compiling)
    text = "\n".join(lines)
    (options.out / "kernels.txt").write_text(text + "\n", encoding="utf-8")
    print(text)
    plot(samples, work, peaks, options.out / "kernels.png")
    return 1 if options.strict and has_missed else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure kernels.")
    parser.add_argument("out", type=Path, help="folder for figures, tables and the plot")
    parser.add_argument("--quick", action="store_true", help="a subset in about a minute")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a floor is missed")
    parser.add_argument("--seconds", type=float, help="length of one measurement; 0.2, or 0.1 with --quick")
    parser.add_argument("--rounds", type=int, help="measurements per contender; 5, or 3 with --quick")
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or (0.1 if options.quick else 0.2)
    options.rounds = options.rounds or (3 if options.quick else 5)
    return options


def _compare(num_envs: int, contenders: Sequence[seats.Seat], options: argparse.Namespace) -> list[Samples]:
    """Measure some contenders in rounds, each of which has all of them in a new order."""
    order = random.Random(0)
    with contextlib.ExitStack() as stack:
        running = []
        for seat in contenders:
            _tell(f"{num_envs:,} × CartPole: {seat.label}")
            vector = seat.make(num_envs)
            stack.callback(vector.close)
            ring = random_actions(vector, num_envs)
            warm_up(vector.step, ring)
            running.append((Samples(seat.name, num_envs), vector, ring))
        for _ in range(options.rounds):
            for sample, vector, ring in order.sample(running, len(running)):
                with without_collector():
                    sample.call_s.append(time_step(vector.step, ring, options.seconds) / vector.steps_per_call)
        for sample, vector, ring in running:
            sample.reset_share = reset_share(vector, num_envs, ring)
    return [sample for sample, _, _ in running]


def random_actions(vector: Any, num_envs: int) -> Iterator[Any]:
    """Random actions without end: views of one array, each shifted by one from the last."""
    vector.action_space.seed(0)
    drawn = vector.action_space.sample()
    pool = drawn[np.random.default_rng(0).integers(num_envs, size=num_envs + _RING)]
    return itertools.cycle([pool[first : first + num_envs] for first in range(_RING)])


def warm_up(step: Callable[[Any], Any], ring: Iterator[Any]) -> None:
    end_s = time.perf_counter() + _WARM_UP_S
    for _ in range(_WARM_UP_STEPS):
        step(next(ring))
        if time.perf_counter() > end_s:
            break


def time_step(step: Callable[[Any], Any], ring: Iterator[Any], seconds: float) -> float:
    """Mean wall time of a step; results are held until the next, as a caller does."""
    clock = time.perf_counter
    start_s = clock()
    result = step(next(ring))
    chunk = max(1, int(seconds / 10 / (clock() - start_s)))
    count, start_s = 0, clock()
    while True:
        for actions in itertools.islice(ring, chunk):
            result = step(actions)
        count += chunk
        elapsed_s = clock() - start_s
        if elapsed_s > seconds:
            del result
            return elapsed_s / count


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def reset_share(vector: Any, num_envs: int, ring: Iterator[Any]) -> float:
    """The share of rows that are resets: with next-step autoreset there is one for every episode that ends."""
    calls = max(4, _COUNTED_ROWS // num_envs)
    return statistics.fmean(vector.count_resets(actions) for actions in itertools.islice(ring, calls))


def _save(
    path: Path,
    started_at: str,
    samples: Sequence[Samples],
    work: Work,
    peaks: dict[int, Peak],
    compiling: list[Compiling],
) -> None:
    found = {
        "kind": "envfleet.kernels",
        "schema_version": 1,
        "started_at": started_at,
        "machine": dataclasses.asdict(describe_machine(["envpool", "numba", "llvmlite"])),
        "samples": [dataclasses.asdict(sample) for sample in samples],
        "work_of_a_cartpole_step": dataclasses.asdict(work),
        "peaks_by_threads": {count: dataclasses.asdict(peak) for count, peak in peaks.items()},
        "compiling": [dataclasses.asdict(one) for one in compiling],
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _tell(text: str) -> None:
    sys.stderr.write(f"\r\033[K{text}" if sys.stderr.isatty() else f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
