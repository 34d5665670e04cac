import envpool
from stable_baselines3 import PPO

import envfleet
from envfleet.adapters.sb3 import FleetVecEnv

pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=0)
env = FleetVecEnv(envfleet.adopt(pool, autoreset_mode="SAME_STEP"))
model = PPO("MlpPolicy", env, n_steps=64, n_epochs=2, seed=0, device="cpu")
model.learn(512)
print(len(model.ep_info_buffer) > 0)
env.close()
