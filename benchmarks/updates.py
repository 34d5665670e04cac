"""CPU time of one gradient update of SAC, TD3 and DDDQN: ours, compiled and by torch, beside others'.

    git worktree add ../first 4775889
    python benchmarks/updates.py OUT --first ../first    # all: about four minutes
    python benchmarks/updates.py OUT --hidden 256 256 --algorithms SAC

Writes OUT/updates.json. All sides learn from equal batches with the same widths, and take turns in one run: a round is
a slice of each, and ratios are medians over rounds, so other load hits all alike. `plain` is the update written out
in torch with its own optimisers, as single-file implementations do; `numpy` is DDDQN by hand with products into arrays
that are kept. With `--first`, the folder of a checkout, its agents are measured in a process of their own that takes
turns with this one. Torch and BLAS have one thread. All sides have one core, unless `--wall` leaves them all cores and
measures the time that passes: then a second one helps with our products where layers are wide.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import torch
from elsewhere import Elsewhere
from gymnasium import spaces
from torch import nn
from torch.nn import functional

WALL = "ENVFLEET_UPDATES_WALL"  # set for the other process, too
CLOCK = time.perf_counter if "--wall" in sys.argv or WALL in os.environ else time.thread_time
OBSERVATION, ACTION, CHOICES, CAPACITY = 18, 4, 14, 20_000
LEARNING_RATE, GAMMA, TAU = 3e-4, 0.99, 0.005
ALGORITHMS = ("SAC", "TD3", "DDDQN")
Update = Callable[[int], Any]  # makes so many


def columns(is_discrete: bool) -> tuple[np.ndarray, ...]:
    """What every buffer holds: observations, actions, rewards, discounts, next observations."""
    rng = np.random.default_rng(0)
    observations, following = rng.standard_normal((2, CAPACITY, OBSERVATION)).astype(np.float32)
    actions = rng.integers(CHOICES, size=CAPACITY) if is_discrete else rng.uniform(-1, 1, (CAPACITY, ACTION))
    rewards, terminated = rng.standard_normal(CAPACITY), rng.random(CAPACITY) < 0.02
    return observations, actions, rewards, terminated, following


def ours(name: str, hidden: tuple[int, ...], batch_size: int, **options: Any) -> Update:
    """An agent of the envfleet that is imported, with a full buffer."""
    from envfleet import agents

    observations, actions, rewards, terminated, following = columns(name == "DDDQN")
    config = (
        getattr(agents, f"{name}Config", None)
        or sys.modules[getattr(agents, name).__module__].__dict__[f"{name}Config"]
    )
    space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    choices = spaces.Discrete(CHOICES) if name == "DDDQN" else spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
    agent = getattr(agents, name)(
        space,
        choices,
        config(hidden=hidden, batch_size=batch_size, capacity=CAPACITY, warmup=0, max_grad_norm=None, **options),
        num_envs=1000,
        seed=0,
    )
    for first in range(0, CAPACITY, 1000):
        part = slice(first, first + 1000)
        given = (observations[part], actions[part], rewards[part], terminated[part], ~terminated[part] & False)
        agent.remember(agents.Transitions(*given, following[part], np.arange(1000)))
    return agent.update


def sb3(name: str, hidden: tuple[int, ...], batch_size: int) -> Update:
    """Stable-Baselines3's; its DQN is neither double nor dueling, so it has less to do than DDDQN."""
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.logger import Logger

    observations, actions, rewards, terminated, following = columns(name == "DDDQN")

    class Still(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
        action_space: Any = (
            spaces.Discrete(CHOICES) if name == "DDDQN" else spaces.Box(-1.0, 1.0, (ACTION,), np.float32)
        )

    options: dict[str, Any] = {"policy_kwargs": {"net_arch": list(hidden)}, "batch_size": batch_size, "tau": TAU}
    if name == "DDDQN":
        options |= {"target_update_interval": 1}
    kind = {"SAC": "SAC", "TD3": "TD3", "DDDQN": "DQN"}[name]
    model = getattr(stable_baselines3, kind)(
        "MlpPolicy", Still(), LEARNING_RATE, buffer_size=CAPACITY, device="cpu", **options
    )
    model.set_logger(Logger(None, []))
    for row in range(2 * batch_size):
        action = np.atleast_1d(actions[row])[None]
        model.replay_buffer.add(
            observations[row], following[row], action, rewards[row : row + 1], terminated[row : row + 1], [{}]
        )
    return lambda count: model.train(gradient_steps=count, batch_size=batch_size)


def network(inputs: int, hidden: tuple[int, ...], outputs: int) -> nn.Sequential:
    """Dense layers with ReLU between."""
    layers: list[nn.Module] = []
    for before, after in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


class Plain:
    """The three algorithms as single files write them, in torch."""

    def __init__(self, name: str, hidden: tuple[int, ...], batch_size: int) -> None:
        self.rng, self.batch_size, self.count = np.random.default_rng(1), batch_size, 0
        given = columns(name == "DDDQN")
        self.columns = [
            torch.from_numpy(np.asarray(column, column.dtype if column.dtype.kind == "i" else np.float32))
            for column in given
        ]
        outputs = {"SAC": 2 * ACTION, "TD3": ACTION, "DDDQN": 1 + CHOICES}[name]
        self.actor = network(OBSERVATION, hidden, outputs)
        self.critics = [network(OBSERVATION + ACTION, hidden, 1) for _ in range(2)]
        self.target_actor, self.target_critics = copy.deepcopy(self.actor), copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros(1, requires_grad=True)
        both = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE)
        self.critic_optimiser = torch.optim.Adam(both, LEARNING_RATE)
        self.alpha_optimiser = torch.optim.Adam([self.log_alpha], LEARNING_RATE)
        self.learn = getattr(self, name.lower())

    def update(self, count: int) -> None:
        for _ in range(count):
            places = torch.from_numpy(self.rng.integers(CAPACITY, size=self.batch_size))
            self.count += 1
            self.learn(*(column[places] for column in self.columns))

    @staticmethod
    def descend(optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    @staticmethod
    def follow(targets: Any, networks: Any) -> None:
        for target, source in zip(targets.parameters(), networks.parameters(), strict=True):
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

    def sac(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        alpha = self.log_alpha.exp().item()
        with torch.no_grad():
            next_action, next_log_prob = self.propose(following)
            value = torch.min(*self.judge(self.target_critics, following, next_action)) - alpha * next_log_prob
            goal = r + (1 - ended) * GAMMA * value
        self.descend(self.critic_optimiser, sum(functional.mse_loss(q, goal) for q in self.judge(self.critics, o, a)))
        action, log_prob = self.propose(o)
        self.descend(self.actor_optimiser, (alpha * log_prob - torch.min(*self.judge(self.critics, o, action))).mean())
        self.descend(self.alpha_optimiser, (-self.log_alpha.exp() * (log_prob.detach() - ACTION)).mean())
        for target, critic in zip(self.target_critics, self.critics, strict=True):
            self.follow(target, critic)

    def td3(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        with torch.no_grad():
            noise = (torch.randn_like(a) * 0.2).clamp(-0.5, 0.5)
            next_action = (torch.tanh(self.target_actor(following)) + noise).clamp(-1, 1)
            value = torch.min(*self.judge(self.target_critics, following, next_action))
            goal = r + (1 - ended) * GAMMA * value
        self.descend(self.critic_optimiser, sum(functional.mse_loss(q, goal) for q in self.judge(self.critics, o, a)))
        if self.count % 2 == 0:
            self.descend(self.actor_optimiser, -self.judge(self.critics[:1], o, torch.tanh(self.actor(o)))[0].mean())
            self.follow(self.target_actor, self.actor)
            for target, critic in zip(self.target_critics, self.critics, strict=True):
                self.follow(target, critic)

    def dddqn(self, o: Any, a: Any, r: Any, ended: Any, following: Any) -> None:
        with torch.no_grad():
            best = self.dueling(self.actor, following).argmax(1, keepdim=True)
            value = self.dueling(self.target_actor, following).gather(1, best).view(-1)
            goal = r + (1 - ended) * GAMMA * value
        found = self.dueling(self.actor, o).gather(1, a[:, None]).view(-1)
        self.descend(self.actor_optimiser, functional.smooth_l1_loss(found, goal))
        self.follow(self.target_actor, self.actor)

    @staticmethod
    def dueling(network: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        outputs = network(rows)
        return outputs[:, :1] + outputs[:, 1:] - outputs[:, 1:].mean(1, keepdim=True)


class ByNumPy:
    """DDDQN by hand in NumPy, with products into arrays that are kept."""

    def __init__(self, hidden: tuple[int, ...], batch_size: int) -> None:
        self.rng, self.batch_size, self.count = np.random.default_rng(1), batch_size, 0
        self.columns, self.sizes = columns(True), (OBSERVATION, *hidden, 1 + CHOICES)
        shapes = [(*pair,) for pair in zip(self.sizes, self.sizes[1:], strict=False)]
        self.flat = self.rng.uniform(-0.1, 0.1, sum(a * b + b for a, b in shapes)).astype(np.float32)
        self.target, self.gradients = self.flat.copy(), np.zeros_like(self.flat)
        self.mean, self.square = np.zeros_like(self.flat), np.zeros_like(self.flat)
        self.views = [self.split(buffer) for buffer in (self.flat, self.target, self.gradients)]
        self.passes = [[np.empty((batch_size, size), np.float32) for size in self.sizes[1:]] for _ in range(3)]

    def split(self, buffer: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        parts, place = [], 0
        for inputs, outputs in zip(self.sizes, self.sizes[1:], strict=False):
            end = place + inputs * outputs
            parts.append((buffer[place:end].reshape(inputs, outputs), buffer[end : end + outputs]))
            place = end + outputs
        return parts

    def forward(self, layers: Any, rows: np.ndarray, kept: list[np.ndarray]) -> np.ndarray:
        for number, ((weight, bias), out) in enumerate(zip(layers, kept, strict=True)):
            np.matmul(rows, weight, out=out)
            np.add(out, bias, out=out)
            rows = np.maximum(out, 0, out=out) if number < len(kept) - 1 else out
        return rows

    def update(self, count: int) -> None:
        for _ in range(count):
            self.learn()

    def learn(self) -> None:
        places = self.rng.integers(CAPACITY, size=self.batch_size)
        o, a, r, ended, following = (column[places] for column in self.columns)
        layers, target_layers, slopes = self.views
        rows = np.arange(self.batch_size)
        best = self.forward(layers, following, self.passes[0])[:, 1:].argmax(1)
        theirs = self.forward(target_layers, following, self.passes[1])
        value = theirs[:, 0] + theirs[rows, 1 + best] - theirs[:, 1:].mean(1)
        found = self.forward(layers, o, self.passes[2])
        error = found[:, 0] + found[rows, 1 + a] - found[:, 1:].mean(1) - (r + GAMMA * ~ended * value)
        slope = (error.clip(-1, 1) / self.batch_size).astype(np.float32)
        gradient = np.repeat(-slope[:, None] / CHOICES, 1 + CHOICES, 1)
        gradient[:, 0] = slope
        gradient[rows, 1 + a] += slope
        for number in reversed(range(len(layers))):
            given = self.passes[2][number - 1] if number else o
            np.matmul(given.T, gradient, out=slopes[number][0])
            np.sum(gradient, 0, out=slopes[number][1])
            if number:
                gradient = (gradient @ layers[number][0].T) * (given > 0)
        self.count += 1
        self.mean += 0.1 * (self.gradients - self.mean)
        self.square *= 0.999
        self.square += 0.001 * self.gradients**2
        step = LEARNING_RATE / (1 - 0.9**self.count)
        self.flat -= step * self.mean / (np.sqrt(self.square / (1 - 0.999**self.count)) + 1e-8)
        self.target += TAU * (self.flat - self.target)


def seconds(update: Update, count: int) -> float:
    """CPU time of this thread for so many updates."""
    began_s = CLOCK()
    update(count)
    return CLOCK() - began_s


def serve(name: str, batch_size: str, *hidden: str) -> None:
    """Answer `Elsewhere`: the seconds of as many updates as a line says."""
    torch.set_num_threads(1)
    update = ours(name, tuple(map(int, hidden)), int(batch_size))
    for line in sys.stdin:
        print(seconds(update, int(line)), flush=True)


@dataclasses.dataclass(frozen=True)
class Result:
    """One side of one algorithm.

    Attributes:
        algorithm: Its name.
        hidden: Widths of the hidden layers.
        side: Who.
        ms: CPU time of an update, the median over rounds, in milliseconds.
        ratio: Of that to our compiled update's, the median over rounds.
        spread: The quartiles of that ratio.
    """

    algorithm: str
    hidden: tuple[int, ...]
    side: str
    ms: float
    ratio: float
    spread: tuple[float, float]


def measure(name: str, hidden: tuple[int, ...], args: argparse.Namespace) -> list[Result]:
    """Take turns."""
    timers: dict[str, Callable[[int], float]] = {}
    updates: dict[str, Update] = {
        "compiled": ours(name, hidden, args.batch_size, compiled=True),
        "torch": ours(name, hidden, args.batch_size, compiled=False),
        "sb3": sb3(name, hidden, args.batch_size),
        "plain": Plain(name, hidden, args.batch_size).update,
    }
    if name == "DDDQN":
        updates["numpy"] = ByNumPy(hidden, args.batch_size).update
    for side, update in updates.items():
        timers[side] = lambda count, update=update: seconds(update, count)  # type: ignore[misc]
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        if args.first is not None:
            asked = "--serve", name, str(args.batch_size), *map(str, hidden)
            timers["first"] = stack.enter_context(Elsewhere(args.first, __file__, *asked)).ask
        for number in range(args.rounds + 1):
            for side, timer in timers.items():
                taken = timer(args.updates)
                if number:  # the first one compiles
                    found.setdefault(side, []).append(taken / args.updates)
    results = []
    for side, slices in found.items():
        ratios = [other / own for other, own in zip(slices, found["compiled"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        results.append(
            Result(name, hidden, side, 1e3 * statistics.median(slices), statistics.median(ratios), (low, high))
        )
    return results


def main() -> None:
    """Measure, print, write."""
    if "--serve" in sys.argv:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--hidden", type=int, nargs="+", help="widths; 128 128 and 256 256 if not given")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--updates", type=int, default=8, help="of each side in a round")
    parser.add_argument("--first", type=Path, help="folder of a checkout of the first edition, commit 4775889")
    parser.add_argument("--wall", action="store_true", help="time that passes, on all cores")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.wall:
        os.environ[WALL] = "1"
    else:
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    widths = [tuple(args.hidden)] if args.hidden else [(128, 128), (256, 256)]
    results: list[Result] = []
    print(f"{'':6} {'hidden':10} {'side':9} {'ms':>6}   times as much as ours, with quartiles")
    for hidden in widths:
        for name in args.algorithms:
            for result in measure(name, hidden, args):
                results.append(result)
                shown = "-".join(map(str, hidden))
                low, high = result.spread
                ratio = f"{result.ratio:.2f} ({low:.2f} to {high:.2f})"
                print(f"{name:6} {shown:10} {result.side:9} {result.ms:6.2f}   {ratio}", flush=True)
    content = {"batch_size": args.batch_size, "results": [dataclasses.asdict(result) for result in results]}
    (args.out / "updates.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
