import envpool
import numpy as np

envs = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=6, batch_size=2, num_threads=1, seed=0)
envs.async_reset()
counts = np.zeros(6, dtype=int)
for _ in range(60):
    observations, rewards, terminated, truncated, infos = envs.recv()
    counts[infos["env_id"]] += 1
    envs.send((observations[:, 2] > 0).astype(np.int64), infos["env_id"])
print(counts.sum())
