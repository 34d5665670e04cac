"""A policy that uses all cores, alone and between the steps of a process fleet: do waiting workers slow it?

    python benchmarks/busy_policy.py [--num-envs 8] [--milliseconds 0.1,1,5] [--turns 40]

A worker that waits awake takes a core. It may do so only while waits are short, so a policy that takes longer than a
step must run as fast between steps as alone. Prints, for each duration of the policy, the median of its time between
steps over its time alone.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import numpy as np

import envfleet
from envfleet.machine import whole_cores

STEPS = 50
"""Calls of the policy in a turn."""


class Policy:
    """Multiplies matrices in as many threads as there are cores.

    Args:
        milliseconds: About how long a call takes on an idle machine.
    """

    def __init__(self, milliseconds: float) -> None:
        self._matrices = [np.random.default_rng(k).random((96, 96)) for k in range(whole_cores())]
        self._repeats = 1
        start_s = time.perf_counter()
        for _ in range(50):
            self._work(self._matrices[0])
        self._repeats = max(1, round(milliseconds / 1e3 / (time.perf_counter() - start_s) * 50))

    def _work(self, matrix: np.ndarray) -> None:
        for _ in range(self._repeats):
            matrix @ matrix

    def __call__(self) -> float:
        """Return the seconds it took."""
        start_s = time.perf_counter()
        threads = [threading.Thread(target=self._work, args=(matrix,)) for matrix in self._matrices[1:]]
        for thread in threads:
            thread.start()
        self._work(self._matrices[0])
        for thread in threads:
            thread.join()
        return time.perf_counter() - start_s


def turn(policy: Policy, step: Callable[[], object]) -> float:
    """Return the median seconds of the policy with a step after each call."""
    times = []
    for _ in range(STEPS):
        times.append(policy())
        step()
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--milliseconds", default="0.1,1,5")
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args()
    with envfleet.make("CartPole-v1", args.num_envs, backend="process") as fleet:
        fleet.reset(seed=0)
        actions = fleet.action_space.sample()
        for milliseconds in map(float, args.milliseconds.split(",")):
            policy = Policy(milliseconds)
            for _ in range(3):  # the workers learn how long they wait
                turn(policy, lambda: fleet.step(actions))
            rounds = []
            for _ in range(args.turns):
                alone = turn(policy, lambda: None)
                rounds.append((turn(policy, lambda: fleet.step(actions)), alone))
            between, alone = (1e3 * statistics.median(times) for times in zip(*rounds, strict=True))
            ratio = statistics.median(one / other for one, other in rounds)
            print(f"policy of {alone:5.2f} ms alone, {between:5.2f} ms between steps: {ratio:.2f} x", flush=True)


if __name__ == "__main__":
    main()
