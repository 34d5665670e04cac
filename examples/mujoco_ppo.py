"""A MuJoCo task of Gymnasium in MuJoCo's own thread pool, and Stable-Baselines3's PPO on it.

pip install 'envfleet[mujoco]' stable-baselines3
python mujoco_ppo.py --env InvertedPendulum-v5 --num-envs 16 --steps 50000
"""

from __future__ import annotations

import argparse
import time

from stable_baselines3 import PPO

import envfleet
from envfleet.adapters.sb3 import FleetVecEnv

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="InvertedPendulum-v5")
parser.add_argument("--num-envs", type=int, default=16)
parser.add_argument("--steps", type=int, default=50_000)
args = parser.parse_args()

with envfleet.make(args.env, args.num_envs, backend="native") as fleet:
    fleet.reset(seed=0)
    actions = fleet.action_space.sample()
    start_s = time.perf_counter()
    for _ in range(200):
        fleet.step(actions)
    speed = 200 * args.num_envs / (time.perf_counter() - start_s)
    print(f"{args.env}: {speed:,.0f} steps per second")

env = FleetVecEnv(args.env, num_envs=args.num_envs, backend="native")
model = PPO("MlpPolicy", env, n_steps=64, batch_size=256, n_epochs=5, seed=0, device="cpu")
model.learn(args.steps)
print(
    f"PPO: mean length of the last {len(model.ep_info_buffer)} episodes after {model.num_timesteps:,} steps:", end=" "
)
print(f"{sum(episode['l'] for episode in model.ep_info_buffer) / len(model.ep_info_buffer):.0f}")
env.close()
