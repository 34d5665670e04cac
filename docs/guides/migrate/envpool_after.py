import numpy as np

import envfleet

envs = envfleet.make("CartPole-v1", num_envs=6, batch_size=2, backend="process")
observations, infos = envs.reset(seed=0)
envs.send((observations[:, 2] > 0).astype(np.int64))
counts = np.zeros(6, dtype=int)
for _ in range(60):
    batch = envs.recv()
    counts[batch.env_indices] += 1
    envs.send((batch.observations[:, 2] > 0).astype(np.int64), batch.env_indices)
print(counts.sum())
envs.close()
