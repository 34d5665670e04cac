"""Fused rollouts and PPO on a kernel, against loops of steps, gymnax, and PPO wholly in JAX."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.case import Session, rate_of
from benchmarks.worker import ROOT, Worker

import envfleet
from envfleet.kernels import MLP

STEPS = 500_000  # transitions of a rollout, about
Layers = list[tuple[np.ndarray, np.ndarray]]


def make_layers(*sizes: int) -> Layers:
    """Return random weights and zero biases of dense layers."""
    rng = np.random.default_rng(0)
    pairs = itertools.pairwise(sizes)
    return [(rng.normal(size=(o, i)).astype(np.float32) / i**0.5, np.zeros(o, np.float32)) for i, o in pairs]


def compare_loops(session: Session, *, sizes: tuple[int, ...] = (8, 1024, 131_072)) -> None:
    """Compare fused rollouts with Python loops of steps that store the same arrays."""
    layers = make_layers(4, 64, 64, 2)
    for num_envs in sizes:
        num_steps = max(32, STEPS // num_envs)
        with envfleet.make("envfleet/CartPole-v1", num_envs, backend="kernel") as fleet:
            fleet.reset(seed=0)
            rng = np.random.default_rng(0)
            choices: dict[str, tuple[Any, dict[str, Any]]] = {
                "random": ("random", {"numpy": functools.partial(_random, rng, num_envs)}),
                "MLP": (MLP(layers), {"numpy": functools.partial(_numpy, layers), "torch": _torch(layers)}),
            }
            for name, (policy, loops) in choices.items():
                out = fleet.rollout(policy, num_steps, seed=0)
                fused = functools.partial(fleet.rollout, policy, num_steps, seed=1, out=out)
                contenders = {"fused": rate_of(fused, num_envs * num_steps, session.seconds)}
                for library, choose in loops.items():
                    step = functools.partial(_loop, fleet, choose, _arrays(num_envs))
                    contenders[f"loop, {library}"] = rate_of(step, num_envs * 8, session.seconds)
                session.compare(f"{name} policy, {num_envs:,}", contenders)


def _random(rng: np.random.Generator, num_envs: int, _: np.ndarray) -> np.ndarray:
    return rng.integers(0, 2, num_envs)


def _numpy(layers: Layers, x: np.ndarray) -> np.ndarray:
    for w, b in layers[:-1]:
        x = np.tanh(x @ w.T + b)
    actions: np.ndarray = (x @ layers[-1][0].T + layers[-1][1]).argmax(1)
    return actions


def _torch(layers: Layers) -> Any:
    import torch

    tensors = [(torch.from_numpy(w), torch.from_numpy(b)) for w, b in layers]

    @torch.inference_mode()
    def choose(observations: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(observations)
        for w, b in tensors[:-1]:
            x = torch.tanh(torch.nn.functional.linear(x, w, b))
        actions: np.ndarray = torch.nn.functional.linear(x, *tensors[-1]).argmax(1).numpy()
        return actions

    return choose


def _arrays(num_envs: int) -> list[np.ndarray]:
    shapes = [((4,), np.float32), ((), np.int64), ((), np.float64), ((), np.bool_), ((), np.bool_)]
    return [np.zeros((8, num_envs, *shape), dtype) for shape, dtype in shapes]


def _loop(fleet: Any, choose: Any, arrays: list[np.ndarray]) -> None:
    observations = arrays[0][-1].copy()
    for rows in zip(*arrays, strict=True):
        actions = choose(observations)
        rows[0][...] = observations
        observations, *results = fleet.step(actions)
        for row, values in zip(rows[1:], (actions, *results[:3]), strict=True):
            row[...] = values


def compare_gymnax(session: Session, *, jax: str = "", sizes: tuple[int, ...] = (1024, 16_384)) -> None:
    """Compare rollouts of a network of 2 × 64 with gymnax, one core each.

    `jax` is an interpreter that has gymnax and JAX. The note is the share of what one core makes in torch's products of
    large matrices.
    """
    policy = MLP(make_layers(4, 64, 64, 2), head="categorical")
    for num_envs in sizes:
        num_steps = STEPS // num_envs
        with (
            _fleet(num_envs) as fleet,
            Worker("jax_side", "rollout", num_envs, num_steps, python=_required(jax)) as peer,
        ):
            fleet.reset(seed=0)
            out = fleet.rollout(policy, num_steps)
            fused = functools.partial(fleet.rollout, policy, num_steps, seed=1, out=out)
            contenders: dict[str, Any] = {
                "envfleet": rate_of(fused, num_envs * num_steps, session.seconds),
                "gymnax": functools.partial(peer.ask, session.seconds),
            }
            session.compare(f"{num_envs:,}", contenders)
            rates = session.find(f"{num_envs:,}", "envfleet")
            if rates is not None:
                share = {"share of peak": f"{2 * (4 * 64 + 64 * 64 + 64 * 2) * max(rates.values) / _peak():.0%}"}
                session.add(dataclasses.replace(rates, notes=share))


def _peak() -> float:
    """Return float32 operations per second of one core in a product of large matrices."""
    import torch

    torch.set_num_threads(1)
    matrix = torch.ones((1024, 1024))
    measure = rate_of(lambda: matrix @ matrix, 2 * 1024**3, 0.3)
    return max(measure() for _ in range(5))


def compare_ppo(session: Session, *, jax: str = "", sizes: tuple[int, ...] = (64, 1024)) -> None:
    """Compare PPO on a kernel, learning included, with PPO in JAX on gymnax, one core each.

    `jax` is an interpreter that has gymnax and JAX.
    """
    import torch

    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    torch.set_num_threads(1)
    for num_envs in sizes:
        with Worker("jax_side", "ppo", num_envs, 64, python=_required(jax)) as peer:
            trainers: dict[str, Any] = {"agent": _Agent(num_envs, 64), "tutorial": _Tutorial(num_envs, 64)}
            lengths: dict[str, dict[str, str]] = {}

            def ask(peer: Worker = peer, lengths: dict[str, Any] = lengths) -> float:
                rate, length = peer.ask(session.seconds)
                lengths["JAX"] = {"mean episode length": f"{length:.0f}"}
                return float(rate)

            def train(name: str, trainers: dict[str, Any] = trainers, lengths: dict[str, Any] = lengths) -> float:
                rate, length = _train(trainers[name], session.seconds)
                lengths[name] = {"mean episode length": f"{length:.0f}"}
                return rate

            contenders = {name: functools.partial(train, name) for name in trainers}
            notes = {name: functools.partial(lengths.get, name) for name in (*contenders, "JAX")}
            session.compare(f"{num_envs:,} × 64", {**contenders, "JAX": ask}, notes)


def _required(python: str) -> str:
    if not python:
        raise SystemExit("pass jax=PYTHON, an interpreter that has gymnax and JAX")
    return python


def _fleet(num_envs: int) -> envfleet.Fleet:
    return envfleet.make("envfleet/CartPole-v1", num_envs, backend="kernel", workers=1, autoreset_mode="SAME_STEP")


def _train(trainer: Any, seconds: float) -> tuple[float, float]:
    """Return samples per second and the mean length of episodes."""
    samples, ended, start_s = 0, 0, time.perf_counter()
    while time.perf_counter() - start_s < seconds:
        ended += trainer.train()
        samples += trainer.num_samples
    return samples / (time.perf_counter() - start_s), samples / max(1, ended)


class _Agent:
    """The agent PPO; `train` returns the number of episodes that ended."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        from envfleet.agents import PPO, Collector, PPOConfig

        self.num_samples, fleet = num_envs * num_steps, _fleet(num_envs)
        config = PPOConfig(hidden=(64, 64), activation="tanh", learning_rate=1e-3, entropy_weight=0.01)
        self._agent = PPO(fleet.single_observation_space, fleet.single_action_space, config, num_envs=num_envs, seed=0)
        self._collector = Collector(fleet, num_steps, seed=0)
        self.train()  # compiles

    def train(self) -> int:
        rollout = self._collector.collect(self._agent)
        self._agent.update(rollout)
        return len(rollout.episodes.steps)


class _Tutorial:
    """PPO of docs/tutorials/ppo.py, with updates in plain torch."""

    def __init__(self, num_envs: int, num_steps: int) -> None:
        import torch

        spec: Any = importlib.util.spec_from_file_location("ppo_tutorial", Path(ROOT, "docs/tutorials/ppo.py"))
        ppo: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(ppo)
        self._ppo = ppo
        ppo.NUM_ENVS, ppo.NUM_STEPS = num_envs, num_steps
        self.num_samples, self._fleet = num_envs * num_steps, _fleet(num_envs)
        self._fleet.reset(seed=0)
        torch.manual_seed(0)
        self._networks = self._ppo.network(2), self._ppo.network(1)
        parameters = [one for network in self._networks for one in network.parameters()]
        self._optimizer = torch.optim.Adam(parameters, self._ppo.LEARNING_RATE, eps=1e-5)
        self._rollout: Any = None
        self.train()  # compiles

    def train(self) -> int:
        self._rollout, batch = self._ppo.collect(self._fleet, *self._networks, self._rollout)
        self._ppo.learn(*self._networks, self._optimizer, batch)
        return len(self._rollout.episodes)
