"""Stable-Baselines3's PPO on a fleet: `FleetVecEnv` takes the place of `SubprocVecEnv`.

pip install envfleet stable-baselines3
python sb3_ppo.py --env CartPole-v1 --num-envs 8 --steps 50000
"""

from __future__ import annotations

import argparse

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from envfleet.adapters.sb3 import FleetVecEnv

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="CartPole-v1")
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--steps", type=int, default=50_000)
args = parser.parse_args()

# was: env = make_vec_env(args.env, n_envs=args.num_envs, vec_env_cls=SubprocVecEnv)
env = FleetVecEnv(args.env, num_envs=args.num_envs, on_failure="restart")
model = PPO("MlpPolicy", env, n_steps=64, batch_size=128, n_epochs=4, seed=0, device="cpu")
model.learn(args.steps)
mean, deviation = evaluate_policy(model, env, n_eval_episodes=10, warn=False)
print(f"return after {model.num_timesteps:,} steps: {mean:.1f} ± {deviation:.1f}")
env.close()
