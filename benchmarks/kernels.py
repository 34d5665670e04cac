"""Kernels against the original environments, EnvPool, Gymnasium's vector environment, gymnax and pgx.

All contenders live in this process, because a call of some microseconds cannot be timed from another one. Rows that are
resets are not counted: their share is measured separately.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from benchmarks.case import Record, Session, rate_of
from benchmarks.worker import Worker
from gymnasium.vector.utils import batch_space

import envfleet
from envfleet.bench.contenders import EnvPool
from envfleet.bench.workloads import resolve

COUNTED_ROWS = 20_000  # CartPole ends some 900 episodes in them: a share known to 0.2 % of all rows


class Stepped(NamedTuple):
    """Something to step: a function of actions that returns what `VectorEnv.step` does, and a batch of actions."""

    step: Callable[[Any], Any]
    actions: Any
    num_envs: int
    has_reset_rows: bool = True

    def rate(self, seconds: float) -> Callable[[], float]:
        """Return a function that measures transitions per second, after spreading the ends of episodes."""
        pool = self.actions[np.random.default_rng(0).integers(self.num_envs, size=self.num_envs + 64)]
        batches = itertools.cycle([pool[first : first + self.num_envs] for first in range(64)])
        calls, start_s = 0, time.perf_counter()
        while calls < 40 and time.perf_counter() - start_s < 3.0:
            self.step(next(batches))
            calls += 1
        call_s = (time.perf_counter() - start_s) / calls
        share = self._reset_share(batches) if self.has_reset_rows else 0.0
        chunk = max(1, int(seconds / 10 / call_s))
        return rate_of(lambda: self.step(next(batches)), self.num_envs * (1.0 - share), seconds, chunk)

    def _reset_share(self, batches: Iterator[Any]) -> float:
        ended = [self.step(next(batches))[2:4] for _ in range(max(4, COUNTED_ROWS // self.num_envs))]
        return float(np.mean([terminated | truncated for terminated, truncated in ended]))


@contextlib.contextmanager
def _vector(envs: Any, num_envs: int, action_space: Any = None, **reset: Any) -> Iterator[Stepped]:
    envs.reset(**reset)
    space = envs.action_space if action_space is None else batch_space(action_space, num_envs)
    space.seed(0)
    with contextlib.closing(envs):
        yield Stepped(envs.step, space.sample(), num_envs)


def kernel_fleet(env_id: str, num_envs: int, **options: Any) -> Any:
    """Return a context manager of a fleet of a kernel."""
    return _vector(envfleet.make(env_id, num_envs, backend="kernel", **options), num_envs, seed=0)


def envpool(env_id: str, num_envs: int, threads: int = 2) -> Any:
    """Return a context manager of EnvPool's environments."""
    gymnasium.logger.min_level = gymnasium.logger.ERROR  # EnvPool's bounds cause warnings about precision
    make = importlib.import_module("envpool").make_gymnasium
    envs = make(env_id, num_envs=num_envs, num_threads=min(threads, num_envs), seed=0)
    return _vector(envs, num_envs, envs.action_space)


@contextlib.contextmanager
def loop(make_env: Callable[[], Any], num_envs: int) -> Iterator[Stepped]:
    """Yield a Python loop over environments that throws everything away."""
    envs = [make_env() for _ in range(num_envs)]
    for index, env in enumerate(envs):
        env.reset(seed=index)
    space = batch_space(envs[0].action_space, num_envs)
    space.seed(0)

    def step(actions: Any) -> None:
        for env, action in zip(envs, actions, strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    yield Stepped(step, space.sample(), num_envs, has_reset_rows=False)
    for env in envs:
        env.close()


def measure(session: Session, setting: str, contenders: dict[str, Any], others: dict[str, Any] | None = None) -> None:
    """Open contenders, given as context managers of `Stepped`, and compare them with garbage collection off."""
    with contextlib.ExitStack() as stack:
        turns = {name: stack.enter_context(one).rate(session.seconds) for name, one in contenders.items()}
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        session.compare(setting, {**turns, **(others or {})})


def compare_cartpole(session: Session, *, sizes: tuple[int, ...] = (1, 8, 1024, 131_072)) -> None:
    """Compare CartPole as a kernel with EnvPool, Gymnasium's CartPoleVectorEnv and the bare loop."""
    kernel = functools.partial(kernel_fleet, "envfleet/CartPole-v1")
    for num_envs in sizes:
        contenders = {"kernel": kernel(num_envs), "kernel, copy=False": kernel(num_envs, copy=False)}
        for threads in (1, 2):
            if threads <= num_envs:
                contenders[f"kernel, workers={threads}"] = kernel(num_envs, workers=threads)
        if EnvPool().absence(resolve("CartPole-v1")) is None:
            contenders["EnvPool"] = envpool("CartPole-v1", num_envs)
            contenders["EnvPool, 1 thread"] = envpool("CartPole-v1", num_envs, 1)
        native = gymnasium.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
        contenders["CartPoleVectorEnv"] = _vector(native, num_envs, seed=0)
        if num_envs <= 1024:
            contenders["loop"] = loop(lambda: gymnasium.make("CartPole-v1", disable_env_checker=True), num_envs)
        measure(session, f"{num_envs:,}", contenders)


class Game(NamedTuple):
    """Kernel and its peers: constructor of the original, id in EnvPool, package and name in JAX."""

    name: str
    original: Callable[[], Any] | None = None
    in_envpool: str | None = None
    in_jax: tuple[str, str] | None = None


class _MinAtar:
    """A game of the package minatar with the methods that a loop calls."""

    def __init__(self, game: str) -> None:
        self._env = importlib.import_module("minatar").Environment(game)
        self._actions: list[int] = self._env.minimal_action_set()
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))
        self.close = lambda: None

    def reset(self, *, seed: int | None = None) -> None:
        if seed is not None:
            self._env.seed(seed)
        self._env.reset()

    def step(self, action: int) -> Any:
        reward, ended = self._env.act(self._actions[action])
        return self._env.state(), reward, ended, False, {}


def _gymnasium(env_id: str, package: str = "") -> Game:
    make = functools.partial(gymnasium.make, env_id, disable_env_checker=True)
    return Game(env_id, make, env_id, (package, env_id) if package else None)


def _minigrid(env_id: str) -> Game:
    def make() -> Any:
        wrap = importlib.import_module("minigrid.wrappers").ImgObsWrapper
        return wrap(gymnasium.make(env_id, disable_env_checker=True))

    return Game(env_id, make, env_id)


def _minatar(name: str, game: str) -> Game:
    return Game(f"MinAtar-{name}-v1", functools.partial(_MinAtar, game), in_jax=("gymnax", f"{name}-MinAtar"))


_CONTROL = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")
_TEXT = ("FrozenLake-v1", "Taxi-v3", "CliffWalking-v1", "Blackjack-v1")
_GRIDS = ("Empty-8x8", "DoorKey-8x8", "FourRooms", "LavaCrossingS9N1")
GAMES = (
    *(_gymnasium(name, "gymnax") for name in _CONTROL),
    *map(_gymnasium, _TEXT),
    *(_minatar(name, name.lower()) for name in ("Asterix", "Breakout", "Freeway", "Seaquest")),
    _minatar("SpaceInvaders", "space_invaders"),
    *(_minigrid(f"MiniGrid-{name}-v0") for name in (*_GRIDS, "MultiRoom-N6")),
    Game("ConnectFour-v0", in_jax=("pgx", "connect_four")),
    Game("2048-v0", in_jax=("pgx", "2048")),
)


def compare_games(
    session: Session,
    *,
    sizes: tuple[int, ...] = (8, 1024, 16_384),
    games: tuple[str, ...] = tuple(one.name for one in GAMES),
    jax: str = "",
) -> None:
    """Compare every kernel with its original, EnvPool, gymnax and pgx.

    `jax` is an interpreter that has gymnax, pgx and JAX. The loop over the original has 8 environments, because its
    rate hardly depends on their number.
    """
    for game, num_envs in itertools.product((game for game in GAMES if game.name in games), sizes):
        contenders = {"kernel": kernel_fleet(f"envfleet/{game.name}", num_envs)}
        if game.in_envpool is not None:
            contenders["EnvPool"] = envpool(game.in_envpool, num_envs)
        if game.original is not None:
            contenders["loop"] = loop(game.original, 8)
        with contextlib.ExitStack() as stack:
            others = {}
            if game.in_jax is not None and jax:
                worker = stack.enter_context(Worker("jax_side", "game", *game.in_jax, num_envs, python=jax))
                others["JAX"] = functools.partial(worker.ask, session.seconds)
            measure(session, f"{num_envs:,} × {game.name}", contenders, others)


def compare_hockey(session: Session, *, sizes: tuple[int, ...] = (1, 256, 4096)) -> None:
    """Compare compiled hockey with Box2D, in steps per second of CPU time."""
    from envfleet.envs.hockey import BasicOpponent, HockeyEnv
    from envfleet.envs.hockey.constants import AGENT, STRONG, WEAK
    from envfleet.envs.hockey.kernel.game import Hockey

    def box2d(players: tuple[int, int]) -> float:
        env, rng = HockeyEnv(), np.random.default_rng(0)
        opponents = [None if one == AGENT else BasicOpponent(weak=one == WEAK, seed=0) for one in players]
        observation, _ = env.reset(seed=0)
        start_s, steps = time.process_time(), 3_000
        for _ in range(steps):
            views = observation, env.obs_agent_two()
            pairs = zip(opponents, views, strict=True)
            actions = [rng.uniform(-1, 1, 4) if player is None else player.act(view) for player, view in pairs]
            observation, _, terminated, truncated, _ = env.step(np.concatenate(actions))
            if terminated or truncated:
                observation, _ = env.reset()
        return steps / (time.process_time() - start_s)

    def compiled(fleet: Any, actions: Any) -> float:
        start_s, calls = time.process_time(), max(200_000 // fleet.num_envs, 20) // (8 if fleet.num_envs == 1 else 1)
        for call in range(calls):
            fleet.step(actions[call % 16])
        return calls * fleet.num_envs / (time.process_time() - start_s)

    all_players = {"random": (AGENT, AGENT), "strong, weak": (STRONG, WEAK), "strong, strong": (STRONG, STRONG)}
    for name, players in all_players.items():
        with contextlib.ExitStack() as stack:
            contenders: dict[str, Callable[[], float]] = {"Box2D": functools.partial(box2d, players)}
            for size in sizes:
                fleet = envfleet.make(Hockey, size, backend="kernel", player_one=players[0], player_two=players[1])
                stack.enter_context(fleet).reset(seed=0)
                actions = np.random.default_rng(0).uniform(-1, 1, (16, size, 2, 4)).astype(np.float32)
                contenders[f"{size:,} compiled"] = functools.partial(compiled, fleet, actions)
            session.compare(name, contenders)


_COMPILE_KERNEL = """
import sys, time
import envfleet, numba
start_s = time.process_time()
envfleet.make(sys.argv[1], 8, backend="kernel").reset(seed=0)
print(time.process_time() - start_s)
"""
_COMPILE_AGENT = """
import sys, time
import torch
from benchmarks.updates import our_update
torch.set_num_threads(1)
update = our_update(sys.argv[1], (128, 128), 256)
start_s = time.process_time()
update(1)
print(time.process_time() - start_s)
"""


def measure_compiling(
    session: Session, *, names: tuple[str, ...] = ("envfleet/CartPole-v1", "envfleet/Hockey-v0", "SAC", "DDDQN")
) -> None:
    """Measure the first use of kernels and of agents' updates, with an empty and a full cache.

    The figure is the CPU time of `make` and `reset`, or of an update, without imports.
    """
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty cache", "full cache"):
                session.progress(f"{name}, {cache}")
                done = subprocess.run(
                    [sys.executable, "-c", _COMPILE_KERNEL if "/" in name else _COMPILE_AGENT, name],
                    env={**os.environ, "ENVFLEET_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                session.add(Record(name, cache, [float(done.stdout)]))
