"""Environments of other packages in fleets and in Gymnasium's vector environments: bits, start-up and speed.

Each environment is measured in a separate process, which does what a script does: it imports the package and makes
fleets of `partial(gymnasium.make, env_id)`.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from benchmarks.case import Record, Session, rate_of
from gymnasium.utils.env_checker import data_equivalence

import envfleet
from envfleet.bench.rounds import in_rounds
from envfleet.errors import InvalidArgument
from envfleet.options import BackendName

COMPARED_S, MOST_STEPS = 4.0, 200
ROUNDS, ROUND_S = 5, 0.4
TRIALS = 3
RESULT = "result of the case: "


@dataclasses.dataclass(frozen=True)
class OtherEnv:
    """An environment of another package.

    Attributes:
        distribution: Name of the package on PyPI.
        module: Module that registers the environment when it is imported.
        env_id: Id of the environment.
        make_kwargs: Function that returns arguments of `gymnasium.make`, called after the import.
        num_envs: Number of sub-environments.
        peers: Module of `SyncVectorEnv` and `AsyncVectorEnv`, and the prefix of their names.
        shared_memory: True if `AsyncVectorEnv` can use it, which it cannot for observations with text.
        thread: Expected outcome of `backend="thread"`: `"same"` bits, or `"refused"`.
    """

    distribution: str
    module: str
    env_id: str
    make_kwargs: Callable[[], dict[str, Any]] = dict
    num_envs: int = 8
    peers: tuple[str, str] = ("gymnasium.vector", "")
    shared_memory: bool = True
    thread: str = "same"

    def prepare(self) -> Callable[[], gym.Env[Any, Any]]:
        """Import the package as a script does at its top, and return a callable that makes the environment."""
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if self.distribution == "sumo-rl":
            os.environ.setdefault("SUMO_HOME", importlib.import_module("sumo").SUMO_HOME)
        gym.register_envs(importlib.import_module(self.module))
        return partial(gym.make, self.env_id, **self.make_kwargs())


class CrafterEnv(gym.Env[Any, Any]):
    """Crafter with Gymnasium's interface; its generator belongs to the constructor."""

    observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gym.spaces.Discrete(17)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        import crafter

        if seed is not None:
            self._env = crafter.Env(seed=seed)
        return self._env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self._env.step(action)
        return observation, reward, info["discount"] == 0, done and info["discount"] == 1, info


def _crossing() -> dict[str, Any]:
    folder = Path(importlib.import_module("sumo_rl").__file__ or "").parent / "nets" / "single-intersection"
    files = {f"{kind}_file": str(folder / f"single-intersection.{part}.xml") for kind, part in _SUMO_FILES}
    return {**files, "single_agent": True, "num_seconds": 500, "sumo_warnings": False, "sumo_seed": 1}


_SUMO_FILES = (("net", "net"), ("route", "rou"))

gym.register("Crafter-v1", entry_point=f"{__name__}:CrafterEnv", max_episode_steps=10_000)

ENVIRONMENTS = {
    one.distribution if one.module != "gymnasium" else one.env_id: one
    for one in (
        OtherEnv("highway-env", "highway_env", "highway-fast-v0", num_envs=4),
        OtherEnv("minigrid", "minigrid", "MiniGrid-DoorKey-6x6-v0", shared_memory=False),
        OtherEnv("ale-py", "ale_py", "ALE/Pong-v5"),
        OtherEnv("mujoco", "gymnasium", "HalfCheetah-v5"),
        OtherEnv("box2d", "gymnasium", "LunarLander-v3"),
        OtherEnv("box2d", "gymnasium", "CarRacing-v3", num_envs=4, thread="refused"),
        OtherEnv("gym-pusht", "gym_pusht", "gym_pusht/PushT-v0", lambda: {"obs_type": "pixels"}),
        OtherEnv("gymnasium-robotics", "gymnasium_robotics", "FetchReach-v4"),
        OtherEnv("vizdoom", "vizdoom.gymnasium_wrapper", "VizdoomBasic-v1", num_envs=4),
        OtherEnv("sumo-rl", "sumo_rl", "sumo-rl-v0", _crossing, num_envs=2),
        OtherEnv("crafter", "crafter", "Crafter-v1"),
        OtherEnv("flappy-bird-gymnasium", "flappy_bird_gymnasium", "FlappyBird-v0"),
        OtherEnv("gym-anytrading", "gym_anytrading", "stocks-v0"),
        OtherEnv("mo-gymnasium", "mo_gymnasium", "deep-sea-treasure-v0", peers=("mo_gymnasium.wrappers.vector", "MO")),
        OtherEnv("bsuite", "shimmy", "bsuite/catch-v0"),
        OtherEnv("popgym", "popgym", "popgym-RepeatPreviousEasy-v0"),
        OtherEnv("pyflyt", "PyFlyt.gym_envs", "PyFlyt/QuadX-Hover-v4", num_envs=2),
    )
}


def compare_packages(session: Session, *, names: tuple[str, ...] = tuple(ENVIRONMENTS)) -> None:
    """Compare fleets of other packages' environments with Gymnasium's vector environments."""
    for name in names:
        session.progress(name)
        try:
            measured = measure(name)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            session.progress(f"{name} is left out: {error}\n")
            continue
        env, rates = ENVIRONMENTS[name], measured["rates"]
        bits = {"Sync again": "same" if measured["again"] == "same" else "differ"}
        bits |= {backend: measured[backend].split(":")[0] for backend in ("serial", "thread", "process")}
        start = {"start ÷ Async": f"{measured['start_s'] / measured['async_start_s']:.2f}"}
        speeds = {f"{side}, steps/s": f"{rates[side.lower()]:,.0f}" for side in ("Sync", "Async", "serial", "process")}
        chosen = " or ".join(sorted(set(measured["chosen"])))
        notes = {**bits, **start, **speeds, "auto, ÷ better": f"{chosen}, {measured['auto']:.2f}"}
        package = f"{env.distribution} {importlib.metadata.version(env.distribution)}"
        session.add(Record(package, f"`{env.env_id}` × {env.num_envs}", [], notes))


def measure(name: str) -> dict[str, Any]:
    """Measure an environment in a separate process.

    Returns:
        `again`, `serial`, `thread` and `process`: `"same"` if they show the bits of `SyncVectorEnv`, or what differs;
        `start_s` and `async_start_s`: seconds of a later start; `rates`: steps per second; `chosen`: choices of
        `"auto"`; `auto`: speed of the slowest of them divided by the better of `"serial"` and `"process"`.

    Raises:
        RuntimeError: The process failed.
    """
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.third_party", "--here", name]
    variables = {"PYTHONHASHSEED": "0", **os.environ}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stdout[-2_000:]}{done.stderr[-4_000:]}")
    measured: dict[str, Any] = json.loads(lines[0].removeprefix(RESULT))
    return measured


def measure_here(env: OtherEnv) -> dict[str, Any]:
    """Measure an environment in this process."""
    make_env = env.prepare()
    peers, prefix = importlib.import_module(env.peers[0]), env.peers[1]
    make_envs = [make_env] * env.num_envs
    sync = partial(getattr(peers, f"{prefix}SyncVectorEnv"), make_envs)
    asynchronous = partial(getattr(peers, f"{prefix}AsyncVectorEnv"), make_envs, shared_memory=env.shared_memory)

    def on(backend: BackendName, workers: int | None = None) -> Callable[[], Any]:
        return lambda: envfleet.make(make_env, env.num_envs, backend=backend, workers=workers)

    fleet = sync()
    reference = _play(fleet, MOST_STEPS, COMPARED_S)
    fleet.close()
    result: dict[str, Any] = {"again": _compare(reference, sync)}
    settings: tuple[tuple[BackendName, int | None], ...] = (("serial", None), ("thread", 2), ("process", 2))
    for backend, workers in settings:
        result[backend] = _compare(reference, on(backend, workers))
    asynchronous().close()
    starts = [(_start_s(on("process")), _start_s(asynchronous)) for _ in range(TRIALS)]
    result["start_s"], result["async_start_s"] = map(min, zip(*starts, strict=True))
    rates = _rates({"sync": sync, "async": asynchronous, "serial": on("serial"), "process": on("process")})
    result["rates"], result["chosen"] = rates, []
    for _ in range(TRIALS):
        with on("auto")() as fleet:
            result["chosen"].append(fleet.plan.backend)
    result["auto"] = min(rates[one] for one in result["chosen"]) / max(rates["serial"], rates["process"])
    return result


def _play(fleet: Any, num_steps: int, limit_s: float = math.inf) -> list[Any]:
    """Return the results of steps with seeded actions; fewer if they take longer than the limit."""
    observations, _ = fleet.reset(seed=1)
    fleet.action_space.seed(1)
    results, deadline_s = [observations], time.perf_counter() + limit_s
    while len(results) <= num_steps and time.perf_counter() < deadline_s:
        results.append(fleet.step(fleet.action_space.sample())[:4])
    return results


def _compare(reference: list[Any], make: Callable[[], Any]) -> str:
    """Return `"same"` if a fleet shows the same bits, else what differs or was raised."""
    try:
        fleet = make()
    except InvalidArgument as refusal:
        return f"refused: {refusal}"
    except Exception as error:  # noqa: BLE001  # is the result
        return f"{type(error).__name__}: {str(error)[:300]}"
    try:
        results = _play(fleet, len(reference) - 1)
    except Exception as error:  # noqa: BLE001  # is the result
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        fleet.close()
    pairs = zip(reference, results, strict=True)
    differing = sum(not data_equivalence(one, other, exact=True) for one, other in pairs)
    return f"{differing} of {len(results)} steps differ" if differing else "same"


def _start_s(make: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    fleet = make()
    taken_s = time.perf_counter() - start_s
    fleet.close()
    return taken_s


def _rates(makes: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return steps of sub-environments per second: medians of rounds."""
    fleets = {name: make() for name, make in makes.items()}
    turns = {}
    for name, fleet in fleets.items():
        fleet.reset(seed=1)
        fleet.action_space.seed(1)
        actions = [fleet.action_space.sample() for _ in range(16)]
        step = partial(_step_next, fleet, actions)
        turns[name] = rate_of(step, fleet.num_envs, ROUND_S)
        turns[name]()
    values: dict[str, list[float]] = {name: [] for name in turns}
    for _, name in in_rounds(list(turns), ROUNDS):
        values[name].append(turns[name]())
    for fleet in fleets.values():
        fleet.close()
    return {name: statistics.median(each) for name, each in values.items()}


def _step_next(fleet: Any, actions: list[Any]) -> None:
    actions.append(actions.pop(0))
    fleet.step(actions[0])


if __name__ == "__main__":  # `--here NAME`
    print(RESULT + json.dumps(measure_here(ENVIRONMENTS[sys.argv[2]])), flush=True)
