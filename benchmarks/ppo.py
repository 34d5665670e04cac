"""PPO on a kernel against PPO wholly in JAX on gymnax, in turns; a core each.

    python benchmarks/ppo.py PYTHON     # an interpreter that has gymnax and JAX; three minutes

All train the same networks on CartPole by the same hyperparameters: the agent PPO, docs/tutorials/ppo.py, whose updates
are plain torch, and a PPO in JAX. Prints samples a second, learning included (medians of the turns), and the mean
length of the episodes of the last turn, which says that all learn.
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
from envfleet.agents import PPO, Collector, PPOConfig

SIZES = ((64, 64), (1024, 64))
TURN_S, ROUNDS = 3.0, 7


def main() -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    for num_envs, num_steps in SIZES:
        turns = _compare(num_envs, num_steps)
        for name, mine in turns.items():
            rate = statistics.median(rate for rate, _ in mine)
            pairs = zip(mine, turns["JAX"], strict=True)
            ratio = statistics.median(one / other for (one, _), (other, _) in pairs)
            figures = f"{rate:>11,.0f}/s {ratio:>6.2f} × JAX, mean length {mine[-1][1]:.0f}"
            print(f"{num_envs:>6} × {num_steps} {name:>10} {figures}", flush=True)


def _compare(num_envs: int, num_steps: int) -> dict[str, list[tuple[float, float]]]:
    """Rate and mean length of episodes in every turn, of all."""
    command = [sys.argv[1], str(Path(__file__).with_name("gymnax_ppo.py"))]
    command += [str(num_envs), str(num_steps)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        question: Any = program.stdin
        answer: Any = program.stdout
        ours = {"agent": _Agent(num_envs, num_steps), "tutorial": _Tutorial(num_envs, num_steps)}
        if answer.readline() != "ready\n":
            raise SystemExit(f"{' '.join(command)} did not begin: see above")
        turns: dict[str, list[tuple[float, float]]] = {name: [] for name in (*ours, "JAX")}
        for _ in range(ROUNDS):
            for name, one in ours.items():
                turns[name].append(_train(one, TURN_S))
            question.write(f"{TURN_S}\n")
            rate, length = answer.readline().split()
            turns["JAX"].append((float(rate), float(length)))
        question.close()
    return turns


def _train(one: _Agent | _Tutorial, seconds: float) -> tuple[float, float]:
    """Train for so many seconds; returns samples a second, and the mean length of episodes."""
    samples, num_ended, start_s = 0, 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        num_ended += one.train()
        samples += one.num_samples
    return samples / (time.perf_counter() - start_s), samples / max(1, num_ended)


def _make(num_envs: int) -> envfleet.Fleet:
    return envfleet.make("envfleet/CartPole-v1", num_envs, backend="kernel", workers=1, autoreset_mode="SAME_STEP")


class _Agent:
    """The agent PPO."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        self.num_samples, self._fleet = num_envs * num_steps, _make(num_envs)
        config = PPOConfig(hidden=(64, 64), activation="tanh", learning_rate=1e-3, entropy_weight=0.01)
        spaces = self._fleet.single_observation_space, self._fleet.single_action_space
        self._agent = PPO(*spaces, config, num_envs=num_envs, seed=0)
        self._collector = Collector(self._fleet, num_steps, seed=0)
        self.train()  # compiles

    def train(self) -> int:
        """Play and learn once; returns the number of episodes that ended."""
        slab = self._collector.collect(self._agent)
        self._agent.update(slab)
        return len(slab.ended_steps)


class _Tutorial:
    """The tutorial's PPO."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        path = Path(__file__).parents[1] / "docs" / "tutorials" / "ppo.py"
        spec: Any = importlib.util.spec_from_file_location("ppo_tutorial", path)
        self._ppo: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._ppo)
        self._ppo.NUM_ENVS, self._ppo.NUM_STEPS = num_envs, num_steps
        self.num_samples, self._fleet = num_envs * num_steps, _make(num_envs)
        self._fleet.reset(seed=0)
        torch.manual_seed(0)
        self._networks = self._ppo.network(2), self._ppo.network(1)
        parameters = [one for network in self._networks for one in network.parameters()]
        self._optimizer = torch.optim.Adam(parameters, self._ppo.LEARNING_RATE, eps=1e-5)
        self._rollout: Any = None
        self.train()  # compiles

    def train(self) -> int:
        """Play and learn once; returns the number of episodes that ended."""
        self._rollout, batch = self._ppo.collect(self._fleet, *self._networks, self._rollout)
        self._ppo.learn(*self._networks, self._optimizer, batch)
        return len(self._rollout.episodes)


if __name__ == "__main__":
    main()
