"""PPO on a kernel: one compiled call plays, torch learns. `python ppo.py` solves CartPole in seconds.

Source: J. Schulman et al., "Proximal Policy Optimization Algorithms" (2017).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import nn

import envfleet
from envfleet.kernels import MLP

NUM_ENVS, NUM_STEPS = 64, 64
GAMMA, GAE_LAMBDA, CLIP, ENTROPY = 0.99, 0.95, 0.2, 0.01
EPOCHS, MINIBATCHES, LEARNING_RATE = 10, 8, 1e-3
SOLVED, MAX_UPDATES = 475.0, 100


def network(outputs: int) -> nn.Sequential:
    """Make a network of 2 × 64, as CleanRL initialises it: a small last layer for the policy."""
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer in layers[::2]:
        nn.init.orthogonal_(layer.weight, 2**0.5)  # type: ignore[arg-type]  # they are linear
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    nn.init.orthogonal_(layers[-1].weight, 0.01 if outputs > 1 else 1.0)  # type: ignore[arg-type]
    return nn.Sequential(*layers)


def weights_of(net: nn.Sequential) -> list[tuple[Any, Any]]:
    """Return `(W, b)` of each layer, as arrays that share torch's memory."""
    return [(one.weight.detach().numpy(), one.bias.detach().numpy()) for one in net if isinstance(one, nn.Linear)]


def collect(fleet: envfleet.Fleet, actor: nn.Sequential, critic: nn.Sequential, out: Any) -> tuple[Any, list[Any]]:
    """Play with the present networks; returns the rollout, and what the learner needs as flat tensors."""
    policy = MLP(weights_of(actor), "tanh", "categorical", critic=weights_of(critic))
    rollout = fleet.rollout(policy, NUM_STEPS, out=out)
    advantages, returns = rollout.advantages(GAMMA, GAE_LAMBDA)
    arrays = rollout.observations, rollout.actions, rollout.log_probs, advantages, returns
    return rollout, [torch.from_numpy(np.ascontiguousarray(array)).flatten(0, 1) for array in arrays]


def learn(actor: nn.Sequential, critic: nn.Sequential, optimizer: torch.optim.Optimizer, batch: list[Any]) -> None:
    """Improve the networks on one rollout."""
    size = NUM_ENVS * NUM_STEPS
    for _ in range(EPOCHS):
        for chosen in torch.randperm(size).chunk(MINIBATCHES):
            observations, actions, log_probs, advantages, returns = (part[chosen] for part in batch)
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
            found = torch.distributions.Categorical(logits=actor(observations))
            ratio = (found.log_prob(actions) - log_probs).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
            error = (critic(observations).squeeze(1) - returns).square().mean()
            loss = 0.5 * error - gain - ENTROPY * found.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 0.5)
            optimizer.step()


def train(seed: int = 0) -> tuple[float, int, float]:
    """Train until the mean return of 100 episodes is that of a solved CartPole; returns it, steps and seconds."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    actor, critic = network(2), network(1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], LEARNING_RATE, eps=1e-5)
    recent: list[float] = []
    rollout, start_s, mean, steps = None, time.perf_counter(), 0.0, 0
    with envfleet.make(
        "envfleet/CartPole-v1", NUM_ENVS, backend="kernel", autoreset_mode="SAME_STEP", seed=seed
    ) as fleet:
        fleet.reset(seed=seed)
        for _ in range(MAX_UPDATES):
            steps += NUM_ENVS * NUM_STEPS
            rollout, batch = collect(fleet, actor, critic, rollout)
            learn(actor, critic, optimizer, batch)
            recent = [*recent, *rollout.episodes.returns.tolist()][-100:]
            mean = float(np.mean(recent)) if len(recent) == 100 else 0.0
            if mean >= SOLVED:
                break
    return mean, steps, time.perf_counter() - start_s


if __name__ == "__main__":
    reached, steps, took_s = train()
    print(f"mean return {reached:.0f} after {steps:,} steps in {took_s:.1f} s")
