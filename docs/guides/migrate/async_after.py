import numpy as np

import envfleet

envs = envfleet.make("Pendulum-v1", num_envs=4)
observations, infos = envs.reset(seed=0)
rng = np.random.default_rng(0)
for _ in range(250):
    actions = rng.uniform(-2, 2, envs.action_space.shape).astype(np.float32)
    observations, rewards, terminated, truncated, infos = envs.step(actions)
print(observations, rewards)
envs.close()
