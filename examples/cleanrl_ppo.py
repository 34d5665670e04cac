"""PPO in one file, in the manner of CleanRL: only the line marked "was:" differs from a script for Gymnasium 0.29.

pip install 'envfleet[train]'
python cleanrl_ppo.py --env-id CartPole-v1 --num-envs 8 --total-timesteps 100000

Observations are arrays, or images of 84 x 84 pixels; actions are `Discrete` or a `Box`.
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal

import envfleet
from envfleet.adapters.old_infos import OldInfos

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--env-id", default="CartPole-v1")
parser.add_argument("--num-envs", type=int, default=8)
parser.add_argument("--num-steps", type=int, default=128, help="steps of each environment between updates")
parser.add_argument("--total-timesteps", type=int, default=100_000)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--gamma", type=float, default=0.99)
parser.add_argument("--gae-lambda", type=float, default=0.95)
parser.add_argument("--minibatches", type=int, default=4)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--clip", type=float, default=0.2)
parser.add_argument("--entropy", type=float, default=0.01)
parser.add_argument("--seed", type=int, default=1)


def layer(module, std=2**0.5):
    nn.init.orthogonal_(module.weight, std)
    nn.init.zeros_(module.bias)
    return module


def linear(inputs, outputs, std):
    first, second, last = nn.Linear(inputs, 64), nn.Linear(64, 64), nn.Linear(64, outputs)
    return nn.Sequential(layer(first), nn.Tanh(), layer(second), nn.Tanh(), layer(last, std))


def convolutions(channels):
    first, second, third = nn.Conv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)
    parts = layer(first), nn.ReLU(), layer(second), nn.ReLU(), layer(third), nn.ReLU()
    return nn.Sequential(*parts, nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU())


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        shape, actions = envs.single_observation_space.shape, envs.single_action_space
        self.is_discrete = hasattr(actions, "n")
        outputs = int(actions.n if self.is_discrete else np.prod(actions.shape))
        self.is_image = shape[1:] == (84, 84)
        if self.is_image:
            self.body = convolutions(shape[0])
            self.actor, self.critic = layer(nn.Linear(512, outputs), 0.01), layer(nn.Linear(512, 1), 1.0)
        else:
            self.body, size = nn.Flatten(), int(np.prod(shape))
            self.actor, self.critic = linear(size, outputs, 0.01), linear(size, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs))

    def forward(self, observations):
        hidden = self.body(observations / 255.0 if self.is_image else observations.float())
        scores, value = self.actor(hidden), self.critic(hidden).flatten()
        if self.is_discrete:
            return Categorical(logits=scores), value
        return Independent(Normal(scores, self.log_std.exp()), 1), value


def train(envs, args):
    torch.manual_seed(args.seed)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)

    shape, space = (args.num_steps, envs.num_envs), envs.single_action_space
    next_observations = torch.as_tensor(envs.reset(seed=args.seed)[0])
    observations = torch.zeros((args.num_steps, *next_observations.shape), dtype=next_observations.dtype)
    actions = torch.zeros((*shape, *space.shape), dtype=torch.int64 if agent.is_discrete else torch.float32)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    next_dones = torch.zeros(envs.num_envs)
    returns_of_episodes, start_s, global_step = [], time.perf_counter(), 0

    while global_step < args.total_timesteps:
        # Play.
        for step in range(args.num_steps):
            global_step += envs.num_envs
            observations[step], dones[step] = next_observations, next_dones
            with torch.no_grad():
                policy, values[step] = agent(next_observations)
                actions[step] = policy.sample()
                log_probs[step] = policy.log_prob(actions[step])
            played = actions[step].numpy()
            played = played if agent.is_discrete else played.clip(space.low, space.high)
            next_obs, reward, terminated, truncated, infos = envs.step(played)
            next_observations, rewards[step] = torch.as_tensor(next_obs), torch.as_tensor(reward)
            next_dones = torch.as_tensor(terminated | truncated).float()
            if "final_info" in infos:
                for info in infos["final_info"]:
                    if info and "episode" in info:
                        returns_of_episodes.append(float(info["episode"]["r"]))

        # Estimate advantages.
        with torch.no_grad():
            following, advantage = agent(next_observations)[1], torch.zeros(envs.num_envs)
            advantages = torch.zeros_like(rewards)
            for step in reversed(range(args.num_steps)):
                continues = 1.0 - (next_dones if step == args.num_steps - 1 else dones[step + 1])
                error = rewards[step] + args.gamma * continues * following - values[step]
                advantage = error + args.gamma * args.gae_lambda * continues * advantage
                advantages[step], following = advantage, values[step]
            targets = advantages + values

        # Learn.
        batch = [part.flatten(0, 1) for part in (observations, actions, log_probs, advantages, targets)]
        for _ in range(args.epochs):
            for rows in torch.randperm(args.num_steps * envs.num_envs).chunk(args.minibatches):
                obs, taken, old, gain, target = (part[rows] for part in batch)
                policy, value = agent(obs)
                ratio = (policy.log_prob(taken) - old).exp()
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - args.clip, 1 + args.clip) * gain).mean()
                value_loss = 0.5 * (value - target).square().mean()
                loss = policy_loss + 0.5 * value_loss - args.entropy * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()

        recent = np.mean(returns_of_episodes[-20:]) if returns_of_episodes else float("nan")
        speed = global_step / (time.perf_counter() - start_s)
        print(f"global_step={global_step}, episodic_return={recent:.1f}, SPS={speed:.0f}")
    return agent


if __name__ == "__main__":
    args = parser.parse_args()

    def make_env():
        return gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))

    torch.set_num_threads(1)
    # was: envs = gym.vector.SyncVectorEnv([make_env for _ in range(args.num_envs)])
    envs = OldInfos(envfleet.make([make_env for _ in range(args.num_envs)], autoreset_mode="SAME_STEP"))
    train(envs, args)
    envs.close()
