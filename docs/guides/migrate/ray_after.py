import gymnasium as gym

from envfleet.adapters.sb3 import FleetVecEnv


def make_and_seed(seed):
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    return env


options = {"num_cpus": 0}  # workers of the original reserve no CPU
envs = FleetVecEnv(make_and_seed, backend="ray", workers=2, envs_per_worker=2, seed=0, ray_options=options)
envs.reset()
for _ in range(5):
    observations, rewards, dones, infos = envs.step([1, 1, 1, 1])
print(observations)
envs.close()
