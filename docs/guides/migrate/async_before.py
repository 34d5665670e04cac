import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv


def make_env():
    return gym.make("Pendulum-v1")


if __name__ == "__main__":
    envs = AsyncVectorEnv([make_env] * 4)
    observations, infos = envs.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(250):
        actions = rng.uniform(-2, 2, envs.action_space.shape).astype(np.float32)
        observations, rewards, terminated, truncated, infos = envs.step(actions)
    print(observations, rewards)
    envs.close()
