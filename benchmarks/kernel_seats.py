"""Who is measured by `kernels.py`: each is made with a number of sub-environments and then stepped."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space

import envfleet
from envfleet.bench.contenders import EnvPool
from envfleet.bench.workloads import resolve
from envfleet.kernels.registration import is_kernel

LOOP, NATIVE, ROLLOUT = "loop", "gymnasium-native", "kernel-rollout"
MAX_LOOP = 1024
_THREADS = {None: "as make() has it", 1: "1 thread", 2: "2 threads"}
MAX_TWICE = 131_072  # EnvPool takes half a minute to make a million; once is enough


@dataclasses.dataclass(frozen=True)
class Seat:
    """A contender.

    Attributes:
        name: In JSON.
        label: In tables and plots.
        make: Makes it, reset, with so many sub-environments.
    """

    name: str
    label: str
    make: Callable[[int], Any]


class _Vector:
    """A vector environment with next-step autoreset."""

    steps_per_call = 1

    def __init__(self, envs: Any, num_envs: int, action_space: Any = None) -> None:
        self.step, self.close = envs.step, envs.close
        self.action_space = envs.action_space if action_space is None else batch_space(action_space, num_envs)

    def count_resets(self, actions: Any) -> float:
        """Step; the share of rows whose episode ended, each of which is a reset in the next step."""
        _, _, terminated, truncated, _ = self.step(actions)
        return float(np.mean(terminated | truncated))


class _Rollouts:
    """Fused rollouts with random actions that they draw themselves, into the same memory."""

    steps_per_call = 32

    def __init__(self, fleet: Any) -> None:
        self._fleet, self.close, self.action_space = fleet, fleet.close, fleet.action_space
        self._rollout: Any = None

    def step(self, actions: Any) -> None:
        del actions
        self._rollout = self._fleet.rollout("random", self.steps_per_call, seed=0, out=self._rollout)

    def count_resets(self, actions: Any) -> float:
        self.step(actions)
        return float(np.mean(self._rollout.is_reset))


class Loop:
    """A Python loop over environments that throws everything away."""

    steps_per_call = 1

    def __init__(self, envs: list[Any]) -> None:
        self._envs = envs
        for index, env in enumerate(envs):
            env.reset(seed=index)
        self.action_space = batch_space(envs[0].action_space, len(envs))

    def step(self, actions: Any) -> None:
        for env, action in zip(self._envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    def count_resets(self, actions: Any) -> float:
        self.step(actions)
        return 0.0

    def close(self) -> None:
        for env in self._envs:
            env.close()


def our_name(num_threads: int | None = None, *, copy: bool = True) -> str:
    """What we are called with so many threads, by default as many as are worth it."""
    return f"kernel{f'-{num_threads}' if num_threads else ''}" + ("" if copy else "-views")


def envpool_name(num_threads: int) -> str:
    """What EnvPool is called with so many threads."""
    return f"envpool-{num_threads}"


def cartpole(num_envs: int, *, is_quick: bool) -> list[Seat]:
    """All contenders on CartPole."""
    threads = [count for count in (1, 2) if count <= num_envs]
    found = [_ours("envfleet/CartPole-v1", count, copy=copy) for count in (None, *threads) for copy in (True, False)]
    found.append(Seat(ROLLOUT, "envfleet, fused rollouts", _make_rollouts))
    pools = threads if num_envs <= MAX_TWICE else threads[-1:]
    if EnvPool().absence(resolve("CartPole-v1")) is None:
        found += [_envpool("CartPole-v1", count) for count in pools]
    found.append(Seat(NATIVE, "Gymnasium CartPoleVectorEnv", _make_native))
    if num_envs <= (64 if is_quick else MAX_LOOP):
        found.append(Seat(LOOP, "bare Python loop", _make_loop))
    return found


def kernel_ids() -> list[str]:
    """The kernels that come with envfleet, CartPole first."""
    found = [env_id for env_id, spec in gymnasium.registry.items() if is_kernel(spec)]
    return sorted(found, key=lambda env_id: "CartPole" not in env_id)


def _ours(env_id: str, num_threads: int | None, *, copy: bool) -> Seat:
    label = f"envfleet, {_THREADS[num_threads]}" + ("" if copy else ", copy=False")
    return Seat(
        our_name(num_threads, copy=copy), label, lambda num_envs: make_ours(env_id, num_envs, num_threads, copy=copy)
    )


def make_ours(env_id: str, num_envs: int, num_threads: int | None = None, *, copy: bool = True) -> _Vector:
    """Make a kernel fleet."""
    fleet = envfleet.make(env_id, num_envs, backend="kernel", workers=num_threads, copy=copy)
    fleet.reset(seed=0)
    return _Vector(fleet, num_envs)


def _make_rollouts(num_envs: int) -> _Rollouts:
    fleet = envfleet.make("envfleet/CartPole-v1", num_envs, backend="kernel")
    fleet.reset(seed=0)
    return _Rollouts(fleet)


def _envpool(env_id: str, num_threads: int) -> Seat:
    label = f"EnvPool, {num_threads} thread{'s' if num_threads > 1 else ''}"
    return Seat(envpool_name(num_threads), label, lambda num_envs: make_envpool(env_id, num_envs, num_threads))


def make_envpool(env_id: str, num_envs: int, num_threads: int = 2) -> _Vector:
    """Make EnvPool's environments of that id."""
    envpool = importlib.import_module("envpool")
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # else it warns of the precision of EnvPool's bounds
    envs = envpool.make_gymnasium(env_id, num_envs=num_envs, num_threads=min(num_threads, num_envs), seed=0)
    envs.reset()
    return _Vector(envs, num_envs, envs.action_space)


def _make_native(num_envs: int) -> _Vector:
    envs = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    envs.reset(seed=0)
    return _Vector(envs, num_envs)


def _make_loop(num_envs: int) -> Loop:
    return Loop([gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(num_envs)])
