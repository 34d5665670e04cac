"""Gradient updates of SAC, TD3 and DDDQN: compiled, by torch, Stable-Baselines3's, and written out in plain torch.

All sides learn from equal batches with the same widths. Each has a separate process on one core, where BLAS and
torch have one thread; with `wall=true` they have all cores, and the figure is wall time.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from benchmarks.worker import Worker, serve
from gymnasium import spaces
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from benchmarks.case import Session

OBSERVATION, ACTION, CHOICES, CAPACITY = 18, 4, 14, 20_000
LEARNING_RATE, GAMMA, TAU = 3e-4, 0.99, 0.005
Update = Callable[[int], Any]
"""Makes the given number of updates."""


def compare_updates(
    session: Session,
    *,
    algorithms: tuple[str, ...] = ("SAC", "TD3", "DDDQN"),
    widths: tuple[int, ...] = (128, 256),
    layers: int = 2,
    batch_size: int = 256,
    updates: int = 8,
    first: str = "",
    wall: bool = False,
) -> None:
    """Compare gradient updates with torch, Stable-Baselines3 and the first edition, in CPU time.

    `first` is a checkout of the first edition, commit 4775889.
    """
    variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sides = ["compiled", "torch", "plain", "sb3", *(["first"] if first else [])]
    for width in widths:
        for name in algorithms:
            with contextlib.ExitStack() as stack:
                contenders = {}
                for side in sides:
                    arguments = side, name, batch_size, int(wall), *[width] * layers
                    place = {"checkout": first} if side == "first" else {}
                    worker = Worker("updates", *arguments, variables=variables, **place)
                    contenders[side] = functools.partial(stack.enter_context(worker).ask, updates)
                    contenders[side]()  # compiles
                session.compare(f"{name}, {layers} × {width}", contenders)


def serve_updates(side: str, name: str, batch_size: str, wall: str, *hidden: str) -> None:
    """Answer a number of updates with the milliseconds of one."""
    torch.set_num_threads(1)
    clock = time.perf_counter
    if wall == "0":
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        clock = time.process_time
    update = SIDES[side](name, tuple(map(int, hidden)), int(batch_size))

    def answer(count: int) -> float:
        start_s = clock()
        update(count)
        return 1e3 * (clock() - start_s) / count

    serve(answer)


def columns(name: str) -> tuple[np.ndarray, ...]:
    """Return the contents of a buffer: observations, actions, rewards, terminated, next observations."""
    rng = np.random.default_rng(0)
    observations, following = rng.standard_normal((2, CAPACITY, OBSERVATION)).astype(np.float32)
    actions = rng.integers(CHOICES, size=CAPACITY) if name == "DDDQN" else rng.uniform(-1, 1, (CAPACITY, ACTION))
    rewards, terminated = rng.standard_normal(CAPACITY), rng.random(CAPACITY) < 0.02
    return observations, actions, rewards, terminated, following


def _spaces(name: str) -> tuple[spaces.Box, Any]:
    actions = spaces.Discrete(CHOICES) if name == "DDDQN" else spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    return spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32), actions


def our_update(name: str, hidden: tuple[int, ...], batch_size: int, **options: Any) -> Update:
    """Return the updates of an agent of the imported envfleet, with a full buffer."""
    from envfleet import agents

    kind = getattr(agents, name)
    config = sys.modules[kind.__module__].__dict__[f"{name}Config"]
    options |= {"hidden": hidden, "batch_size": batch_size, "capacity": CAPACITY, "warmup": 0, "max_grad_norm": None}
    agent = kind(*_spaces(name), config(**options), num_envs=1000, seed=0)
    observations, actions, rewards, terminated, following = columns(name)
    for first in range(0, CAPACITY, 1000):
        part = slice(first, first + 1000)
        flags = terminated[part], np.zeros(1000, np.bool_)
        agent.remember(
            agents.Transitions(
                observations[part], actions[part], rewards[part], *flags, following[part], np.arange(1000)
            )
        )
    update: Update = agent.update
    return update


def sb3_update(name: str, hidden: tuple[int, ...], batch_size: int) -> Update:
    """Return Stable-Baselines3's; its DQN is neither double nor dueling, so it has less to do than DDDQN."""
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    class Spaces(gymnasium.Env[Any, Any]):
        observation_space, action_space = _spaces(name)

    options: dict[str, Any] = {"policy_kwargs": {"net_arch": list(hidden)}, "batch_size": batch_size, "tau": TAU}
    options |= {"target_update_interval": 1} if name == "DDDQN" else {}
    kind = getattr(stable_baselines3, "DQN" if name == "DDDQN" else name)
    model = kind("MlpPolicy", Spaces(), LEARNING_RATE, buffer_size=CAPACITY, device="cpu", **options)
    model.set_logger(Logger(None, []))
    for observation, action, reward, terminated, following in zip(*(one[:512] for one in columns(name)), strict=True):
        row = observation, following, np.atleast_1d(action)[None], np.array([reward]), np.array([terminated])
        model.replay_buffer.add(*row, [{}])
    return lambda count: model.train(gradient_steps=count, batch_size=batch_size)


class PlainTorch:
    """The three algorithms as single files write them, with torch's optimizers."""

    def __init__(self, name: str, hidden: tuple[int, ...], batch_size: int) -> None:
        self.rng, self.batch_size, self.count = np.random.default_rng(1), batch_size, 0
        self.columns = [
            torch.from_numpy(np.asarray(one, one.dtype if one.dtype.kind == "i" else np.float32))
            for one in columns(name)
        ]
        self.actor = dense(OBSERVATION, *hidden, {"SAC": 2 * ACTION, "TD3": ACTION, "DDDQN": 1 + CHOICES}[name])
        self.critics = [dense(OBSERVATION + ACTION, *hidden, 1) for _ in range(2)]
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        both = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE)
        self.critic_optimizer = torch.optim.Adam(both, LEARNING_RATE)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], LEARNING_RATE)
        self.learn = getattr(self, name.lower())

    def update(self, count: int) -> None:
        for _ in range(count):
            rows = torch.from_numpy(self.rng.integers(CAPACITY, size=self.batch_size))
            self.count += 1
            self.learn(*(column[rows] for column in self.columns))

    @staticmethod
    def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def follow(self, *pairs: tuple[nn.Module, nn.Module]) -> None:
        for target_network, network in pairs:
            for target, source in zip(target_network.parameters(), network.parameters(), strict=True):
                target.data.copy_(TAU * source.data + (1 - TAU) * target.data)

    def judge(self, critics: list[nn.Sequential], observations: Any, actions: Any) -> list[torch.Tensor]:
        inputs = torch.cat([observations, actions], 1)
        return [critic(inputs).view(-1) for critic in critics]

    def propose(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, raw = self.actor(observations).chunk(2, 1)
        normal = torch.distributions.Normal(mean, (torch.tanh(raw) * 3.5 - 1.5).exp())
        free = normal.rsample()
        action = torch.tanh(free)
        return action, (normal.log_prob(free) - torch.log(1 - action.pow(2) + 1e-6)).sum(1)

    def learn_critics(self, o: Any, a: Any, target: torch.Tensor) -> None:
        self.descend(self.critic_optimizer, sum(functional.mse_loss(q, target) for q in self.judge(self.critics, o, a)))

    def sac(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_prob = self.propose(following)
            value = torch.min(*self.judge(self.target_critics, following, next_action)) - alpha * next_log_prob
        self.learn_critics(o, a, r + (1 - ended) * GAMMA * value)
        action, log_prob = self.propose(o)
        self.descend(self.actor_optimizer, (alpha * log_prob - torch.min(*self.judge(self.critics, o, action))).mean())
        self.descend(self.alpha_optimizer, (-self.log_alpha.exp() * (log_prob.detach() - ACTION)).mean())
        self.follow(*zip(self.target_critics, self.critics, strict=True))

    def td3(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            next_action = (torch.tanh(self.target_actor(following)) + noise).clamp(-1, 1)
            value = torch.min(*self.judge(self.target_critics, following, next_action))
        self.learn_critics(o, a, r + (1 - ended) * GAMMA * value)
        if self.count % 2 == 0:
            self.descend(self.actor_optimizer, -self.judge(self.critics[:1], o, torch.tanh(self.actor(o)))[0].mean())
            self.follow((self.target_actor, self.actor), *zip(self.target_critics, self.critics, strict=True))

    def dddqn(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        with torch.no_grad():
            best = self.dueling(self.actor, following).argmax(1, keepdim=True)
            value = self.dueling(self.target_actor, following).gather(1, best).view(-1)
            target = r + (1 - ended) * GAMMA * value
        values = self.dueling(self.actor, o).gather(1, a[:, None]).view(-1)
        self.descend(self.actor_optimizer, functional.smooth_l1_loss(values, target))
        self.follow((self.target_actor, self.actor))

    @staticmethod
    def dueling(network: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        outputs = network(rows)
        return outputs[:, :1] + outputs[:, 1:] - outputs[:, 1:].mean(1, keepdim=True)


def dense(*sizes: int) -> nn.Sequential:
    """Return dense layers with ReLU between them."""
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


SIDES: dict[str, Callable[[str, tuple[int, ...], int], Update]] = {
    "compiled": functools.partial(our_update, compiled=True),
    "torch": functools.partial(our_update, compiled=False),
    "first": our_update,
    "sb3": sb3_update,
    "plain": lambda *arguments: PlainTorch(*arguments).update,
}

if __name__ == "__main__":
    serve_updates(*sys.argv[1:])
