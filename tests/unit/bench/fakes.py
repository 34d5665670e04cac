"""Contenders and environments with a deliberate fault; a separate module, since child processes import it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np

from envfleet.bench.child import State
from envfleet.bench.contenders import Contender
from envfleet.bench.environments import InfoEnv
from envfleet.bench.workloads import Workload, resolve

NULL = resolve("infos", {"num_keys": 0})


def echo(state: State, value: Any) -> Any:
    return value


def remember(state: State, value: Any = None) -> Any:
    """Return what the last call stored, and store this."""
    previous = state.get("value")
    state["value"] = value
    return previous


def raise_error(state: State) -> None:
    raise ValueError("first line\nsecond line")


def exit_now(state: State) -> None:
    sys.stderr.write("about to leave\n")
    sys.stderr.flush()
    os._exit(7)


def hang(state: State) -> None:
    time.sleep(3600)


def spawn_and_hang(state: State) -> None:
    """Start a grandchild that holds the pipe open, say its id, and die without it."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    sys.stderr.write(f"grandchild {grandchild.pid}\n")
    sys.stderr.flush()
    os._exit(1)


def shout(state: State) -> str:
    """Write to standard output, as environments do."""
    sys.stdout.write("hello from an environment\n" * 1_000)
    sys.stdout.flush()
    os.write(1, b"and from its C code\n")
    return "heard"


class FakeRunner:
    def __init__(self, num_envs: int, fault: str) -> None:
        self.num_envs, self.fault, self.steps = num_envs, fault, 0

    def step(self, actions: Any) -> int:
        self.steps += 1
        if self.fault == "step" and self.steps > 3:
            raise RuntimeError("planted in step")
        return self.num_envs

    def close(self) -> None:
        if self.fault == "close":
            raise RuntimeError("planted in close")


class FakeContender(Contender):
    def __init__(self, name: str, fault: str = "") -> None:
        super().__init__(name, f"the {name}")
        self.fault = fault

    def absence(self, workload: Workload) -> str | None:
        return "planted absence" if self.fault == "absent" else None

    def make(self, workload: Workload, num_envs: int, workers: int | None) -> FakeRunner:
        if self.fault == "make":
            raise RuntimeError("planted in make")
        if self.fault == "die":
            os._exit(9)
        return FakeRunner(num_envs, self.fault)


class NullEnv(InfoEnv):
    """Costs next to nothing."""

    def __init__(self) -> None:
        super().__init__(num_keys=0)


class Clock:
    """Replaces the module `time` of the code under test: each reading takes a microsecond, everything else no time."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    process_time = perf_counter


CLOCK = Clock()


class SlowReset(NullEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        CLOCK.now_s += 0.01
        return super().reset(seed=seed, options=options)


def slow_reset() -> gymnasium.Env[Any, Any]:
    """Return an environment with resets that take 10,000 times as long as a step, with short episodes."""
    return gymnasium.wrappers.TimeLimit(SlowReset(), 10)


class HugeObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations of 4 MB."""

    def __init__(self) -> None:
        super().__init__(NullEnv())
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1_000_000,), np.float32)
        self._observation = np.zeros(1_000_000, np.float32)

    def observation(self, observation: Any) -> Any:
        return self._observation


def huge_observation() -> gymnasium.Env[Any, Any]:
    return HugeObservation()


class Threaded(NullEnv):
    """Starts threads, as environments around a native library do."""

    def __init__(self, num_threads: int = 6) -> None:
        super().__init__()
        self._is_closed = threading.Event()
        self._threads = [threading.Thread(target=self._is_closed.wait) for _ in range(num_threads)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_closed.set()
        for thread in self._threads:
            thread.join()


class SlowWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        CLOCK.now_s += 500e-6
        return self.env.step(action)


def slowly_wrapped() -> gymnasium.Env[Any, Any]:
    return SlowWrapper(NullEnv())


def slow_episodes() -> gymnasium.Env[Any, Any]:
    """Return an environment with episodes of 30 steps, which take 15 ms."""
    return gymnasium.wrappers.TimeLimit(SlowWrapper(NullEnv()), 30)


def of_other_actions() -> gymnasium.Env[Any, Any]:
    """Three torques by number, around an environment that takes any torque as an array."""
    torques = np.array([[-2.0], [0.0], [2.0]], np.float32)
    pendulum = gymnasium.make("Pendulum-v1")
    return gymnasium.wrappers.TransformAction(pendulum, torques.__getitem__, gymnasium.spaces.Discrete(3))


class Ragged(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations without a fixed shape."""

    def __init__(self) -> None:
        super().__init__(NullEnv())
        self.observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(3))

    def observation(self, observation: Any) -> Any:
        return (np.int64(1),)


def ragged() -> gymnasium.Env[Any, Any]:
    return Ragged()


def broken() -> gymnasium.Env[Any, Any]:
    raise RuntimeError("planted in the constructor")
