import gymnasium as gym
from RayEnvWrapper import WrapperRayVecEnv


def make_and_seed(seed):
    env = gym.make("CartPole-v1")
    env.reset(seed=seed)
    return env


envs = WrapperRayVecEnv(make_and_seed, 2, 2)  # 2 workers × 2 environments
envs.reset()
for _ in range(5):
    observations, rewards, dones, infos = envs.step([1, 1, 1, 1])
print(observations)
envs.close()
