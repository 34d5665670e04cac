"""RLlib's PPO on hundreds of compiled sub-environments that cost RLlib as much as one.

pip install 'envfleet[ray,kernels]'
python rllib_ppo.py --num-envs 256 --iterations 20
"""

from __future__ import annotations

import argparse

import ray

from envfleet.rllib import PackedPPOConfig

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env", default="envfleet/CartPole-v1")
parser.add_argument("--num-envs", type=int, default=256)
parser.add_argument("--iterations", type=int, default=20)
args = parser.parse_args()

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
config = (
    PackedPPOConfig()
    .environment(args.env)
    .env_runners(num_env_runners=0, num_envs_per_env_runner=args.num_envs)
    .training(train_batch_size=32 * args.num_envs, minibatch_size=8 * args.num_envs, num_epochs=5, lr=1e-3)
    .debugging(seed=0)
)
algorithm = config.build_algo()
for iteration in range(1, args.iterations + 1):
    result = algorithm.train()["env_runners"]
    print(f"iteration {iteration}: mean return {result.get('episode_return_mean', float('nan')):.1f}")
algorithm.stop()
ray.shutdown()
