"""A serial fleet against the bare loop, in one process by turns of a few thousand steps: how close to its limit it is.

    python benchmarks/serial.py [--num-envs 8] [--turns 80]

Prints the median ratio of the two in CPU time of this thread, which does not count what other programs take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from envfleet.bench.contenders import BareLoop, EnvFleet
from envfleet.bench.measure import draw_actions
from envfleet.bench.workloads import resolve

STEPS = 256
"""Of the whole fleet in a turn."""


def turn(runner: Any, actions: Any, steps: int = STEPS) -> float:
    """Nanoseconds of this thread per transition."""
    transitions, start_ns = 0, time.thread_time_ns()
    for index in range(steps):
        transitions += runner.step(actions[index % len(actions)])
    return (time.thread_time_ns() - start_ns) / transitions


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--turns", type=int, default=80)
    args = parser.parse_args()
    workload = resolve("cheap", {})
    actions = draw_actions(workload.build().action_space, args.num_envs)
    runners = [way.make(workload, args.num_envs, None) for way in (BareLoop(), EnvFleet("serial"))]
    for runner in runners:
        turn(runner, actions, 2000)
    turns = [[turn(runner, actions) for runner in runners] for _ in range(args.turns)]
    loop_ns, fleet_ns = (statistics.median(times) for times in zip(*turns, strict=True))
    ratio = statistics.median(loop / fleet for loop, fleet in turns)
    print(
        f"{args.num_envs} x CartPole, ns a transition: bare loop {loop_ns:,.0f}, serial {fleet_ns:,.0f}: {ratio:.3f} x"
    )


if __name__ == "__main__":
    main()
