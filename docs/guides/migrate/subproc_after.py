from stable_baselines3 import PPO

from envfleet.adapters.sb3 import FleetVecEnv

env = FleetVecEnv("CartPole-v1", num_envs=4)
model = PPO("MlpPolicy", env, n_steps=64, n_epochs=2, seed=0, device="cpu")
model.learn(512)
print([float(episode["r"]) for episode in model.ep_info_buffer])
env.close()
