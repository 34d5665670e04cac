"""PPO in one file, in the manner of CleanRL: only the line marked "was:" differs from a script for Gymnasium 0.29.

pip install 'envfleet[train]'
python cleanrl_ppo.py --env-id CartPole-v1 --num-envs 8 --total-timesteps 100000
"""

from __future__ import annotations

import argparse
import time

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

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
args = parser.parse_args()


def make_env():
    return gym.wrappers.RecordEpisodeStatistics(gym.make(args.env_id))


def layer(inputs, outputs, std=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, std)
    nn.init.zeros_(linear.bias)
    return linear


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        size = int(np.prod(envs.single_observation_space.shape))
        self.critic = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
        count = int(envs.single_action_space.n)
        self.actor = nn.Sequential(layer(size, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, count, 0.01))


torch.manual_seed(args.seed)
torch.set_num_threads(1)
# was: envs = gym.vector.SyncVectorEnv([make_env for _ in range(args.num_envs)])
envs = OldInfos(envfleet.make([make_env for _ in range(args.num_envs)], autoreset_mode="SAME_STEP"))
agent = Agent(envs)
optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)

shape = (args.num_steps, args.num_envs)
observations = torch.zeros((*shape, *envs.single_observation_space.shape))
actions = torch.zeros(shape, dtype=torch.int64)
log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
next_observations = torch.as_tensor(envs.reset(seed=args.seed)[0])
next_dones = torch.zeros(args.num_envs)
returns_of_episodes, start_s, global_step = [], time.perf_counter(), 0

while global_step < args.total_timesteps:
    # Play.
    for step in range(args.num_steps):
        global_step += args.num_envs
        observations[step], dones[step] = next_observations, next_dones
        with torch.no_grad():
            policy = Categorical(logits=agent.actor(next_observations))
            actions[step] = policy.sample()
            log_probs[step] = policy.log_prob(actions[step])
            values[step] = agent.critic(next_observations).flatten()
        found = envs.step(actions[step].numpy())
        next_observations = torch.as_tensor(found[0])
        rewards[step] = torch.as_tensor(found[1])
        next_dones = torch.as_tensor(found[2] | found[3]).float()
        infos = found[4]
        if "final_info" in infos:
            for info in infos["final_info"]:
                if info and "episode" in info:
                    returns_of_episodes.append(float(info["episode"]["r"]))

    # Estimate advantages.
    with torch.no_grad():
        following, advantage = agent.critic(next_observations).flatten(), torch.zeros(args.num_envs)
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
        for rows in torch.randperm(args.num_steps * args.num_envs).chunk(args.minibatches):
            obs, taken, old, gain, target = (part[rows] for part in batch)
            policy = Categorical(logits=agent.actor(obs))
            ratio = (policy.log_prob(taken) - old).exp()
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(ratio * gain, ratio.clamp(1 - args.clip, 1 + args.clip) * gain).mean()
            value_loss = 0.5 * (agent.critic(obs).flatten() - target).square().mean()
            loss = policy_loss + 0.5 * value_loss - args.entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()

    recent = np.mean(returns_of_episodes[-20:]) if returns_of_episodes else float("nan")
    speed = global_step / (time.perf_counter() - start_s)
    print(f"global_step={global_step}, episodic_return={recent:.1f}, SPS={speed:.0f}")

envs.close()
