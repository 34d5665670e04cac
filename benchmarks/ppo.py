"""PPO on a kernel, as docs/tutorials/ppo.py has it, against PPO wholly in JAX on gymnax, in turns; a core each.

    python benchmarks/ppo.py PYTHON     # an interpreter that has gymnax and JAX; two minutes

Both train the same networks on CartPole by the same hyperparameters. Prints samples a second, learning included
(medians of the turns), and the mean length of the episodes of the last turn, which says that both learn.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import envfleet

SIZES = ((64, 64), (1024, 64))
TURN_S, ROUNDS = 3.0, 7


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    print(f"{'num_envs':>8} {'envfleet + torch':>17} {'gymnax + JAX':>13} {'ratio':>6}   mean lengths")
    for num_envs, num_steps in SIZES:
        ours, theirs = _compare(num_envs, num_steps)
        rates = [statistics.median(rate for rate, _ in turns) for turns in (ours, theirs)]
        ratio = statistics.median(mine / other for (mine, _), (other, _) in zip(ours, theirs, strict=True))
        lengths = f"{ours[-1][1]:.0f}, {theirs[-1][1]:.0f}"
        print(f"{num_envs:>8} {rates[0]:>15,.0f}/s {rates[1]:>11,.0f}/s {ratio:>6.2f}   {lengths}", flush=True)


def _compare(num_envs: int, num_steps: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Rate and mean length of episodes in every turn, of both."""
    command = [sys.argv[1], str(Path(__file__).with_name("gymnax_ppo.py")), str(num_envs), str(num_steps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        question: Any = program.stdin
        answer: Any = program.stdout
        ours, theirs = _Ours(num_envs, num_steps), []
        if answer.readline() != "ready\n":
            raise SystemExit(f"{' '.join(command)} did not begin: see above")
        mine = []
        for _ in range(ROUNDS):
            mine.append(ours.train(TURN_S))
            question.write(f"{TURN_S}\n")
            rate, length = answer.readline().split()
            theirs.append((float(rate), float(length)))
        question.close()
    return mine, theirs


class _Ours:
    """The tutorial's PPO."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        path = Path(__file__).parents[1] / "docs" / "tutorials" / "ppo.py"
        spec: Any = importlib.util.spec_from_file_location("ppo_tutorial", path)
        self._ppo: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._ppo)
        self._ppo.NUM_ENVS, self._ppo.NUM_STEPS = num_envs, num_steps
        self._size = num_envs * num_steps
        self._fleet = envfleet.make(
            "envfleet/CartPole-v1", num_envs, backend="kernel", workers=1, autoreset_mode="SAME_STEP"
        )
        self._fleet.reset(seed=0)
        torch.manual_seed(0)
        self._networks = self._ppo.network(2), self._ppo.network(1)
        parameters = [one for network in self._networks for one in network.parameters()]
        self._optimizer = torch.optim.Adam(parameters, self._ppo.LEARNING_RATE, eps=1e-5)
        self._rollout: Any = None
        self.train(0.0)  # compiles

    def train(self, seconds: float) -> tuple[float, float]:
        """Train for so many seconds; returns samples a second, and the mean length of episodes."""
        count, num_ended, start_s = 0, 0, time.perf_counter()
        while count == 0 or time.perf_counter() - start_s < seconds:
            self._rollout, batch = self._ppo.collect(self._fleet, *self._networks, self._rollout)
            self._ppo.learn(*self._networks, self._optimizer, batch)
            count, num_ended = count + 1, num_ended + len(self._rollout.episodes)
        samples = self._size * count
        return samples / (time.perf_counter() - start_s), samples / max(1, num_ended)


if __name__ == "__main__":
    main()
