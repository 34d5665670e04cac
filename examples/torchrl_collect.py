"""TorchRL on a fleet: `GymWrapper` makes one of its environments, from which a collector gathers batches.

pip install envfleet torchrl
python torchrl_collect.py --env Pendulum-v1 --num-envs 8 --steps 4096
"""

from __future__ import annotations

import argparse

from torchrl.collectors import Collector
from torchrl.envs import GymWrapper

import envfleet

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="Pendulum-v1")
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--steps", type=int, default=4_096)
args = parser.parse_args()

# was: ParallelEnv(args.num_envs, lambda: GymEnv(args.env))
env = GymWrapper(envfleet.make(args.env, args.num_envs, autoreset_mode="SAME_STEP"))
collector = Collector(env, policy=None, frames_per_batch=args.steps // 4, total_frames=args.steps)
for number, batch in enumerate(collector, 1):
    reward = batch["next", "reward"].mean().item()
    print(f"batch {number}: shape {tuple(batch.shape)}, mean reward {reward:.2f}")
collector.shutdown()
