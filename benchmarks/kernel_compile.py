"""How long kernels and updates of agents take to compile: with an empty cache, then with what that left.

python benchmarks/kernel_compile.py [ID | AGENT ...]    # CartPole, hockey, SAC and PPO by default: two minutes
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_KERNEL = """
import sys, time
import envfleet
import numba
start_s = time.process_time()
envfleet.make(sys.argv[1], 8, backend="kernel").reset(seed=0)
print(time.process_time() - start_s)
"""
_AGENT = """
import sys, time
import gymnasium as gym
import numpy as np
import torch
from envfleet import adopt
from envfleet.agents import Collector, SlabAgent, Transitions
from envfleet.agents.loading import find_agent
torch.set_num_threads(1)
kind = find_agent(sys.argv[1], "agent")
env = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1" if sys.argv[1] == "DDDQN" else "Pendulum-v1")])
start_s = time.process_time()
agent = kind(env.single_observation_space, env.single_action_space, kind.config_class(), seed=0)
if issubclass(kind, SlabAgent):
    agent.update(Collector(adopt(env), 64, seed=0).collect(agent))
else:
    seen, never = env.reset(seed=0)[0], np.zeros(1, bool)
    for _ in range(agent.config.batch_size):
        agent.remember(Transitions(seen, agent.act_batch(seen), np.ones(1), never, never, seen, np.zeros(1, int)))
    agent.update()
print(time.process_time() - start_s)
"""


@dataclasses.dataclass(frozen=True)
class Compiling:
    """CPU time that a first `make` and `reset` took, or a first update; imports are not included.

    Attributes:
        name: The environment's id, or the agent's.
        cold_s: With nothing compiled.
        cached_s: In another process afterwards.
    """

    name: str
    cold_s: float
    cached_s: float


def measure_compiling(names: Sequence[str]) -> list[Compiling]:
    """Measure some kernels and agents."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found.append(Compiling(name, _measure(name, folder), _measure(name, folder)))
    return found


def _measure(name: str, folder: str) -> float:
    ran = subprocess.run(
        [sys.executable, "-c", _KERNEL if "/" in name else _AGENT, name],
        env={**os.environ, "ENVFLEET_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"{name} could not be made:\n{ran.stderr}")
    return float(ran.stdout)


if __name__ == "__main__":
    print("CPU time of the first make() and reset(), or update(): nothing compiled / from the cache")
    for one in measure_compiling(sys.argv[1:] or ["envfleet/CartPole-v1", "envfleet/Hockey-v0", "SAC", "PPO"]):
        print(f"  {one.name:38}{one.cold_s:6.1f} s {one.cached_s:7.2f} s", flush=True)
