from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

if __name__ == "__main__":
    env = make_vec_env("CartPole-v1", n_envs=4, vec_env_cls=SubprocVecEnv)
    model = PPO("MlpPolicy", env, n_steps=64, n_epochs=2, seed=0, device="cpu")
    model.learn(512)
    print([float(episode["r"]) for episode in model.ep_info_buffer])
    env.close()
