"""Small kernels, made so that every way to write one occurs: state, spaces, fields, parameters, draws and helpers."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from tests.unit.kernels import strokes

from envfleet.kernels import Kernel, array

_KICKS = np.array([0.5, -1.0, 0.25, 2.0])


def policy_generator(seed: int, env_index: int) -> np.random.Generator:
    """Return the generator from which a rollout's policy draws for one sub-environment."""
    return np.random.default_rng([seed, env_index + 1])


def bounce(x: float, limit: float) -> float:
    """A helper in the kernel's own module that calls another."""
    return limit - overshoot(x, limit) if x > limit else x


def overshoot(x: float, limit: float) -> float:
    return x - limit


def make_scaler(factor: float) -> Any:
    """A helper that is a closure over a number."""

    def scale(x: float) -> float:
        return factor * x

    return scale


halve = make_scaler(0.5)


class Walker(Kernel):
    """State of scalars only, no draw in a step: the loop without a branch. Discrete with a start, infos, parameters."""

    observation_space: ClassVar[spaces.Box] = spaces.Box(-np.inf, np.inf, (3,), np.float64)
    action_space = spaces.Discrete(3, start=-1)
    max_episode_steps: ClassVar[int | None] = 7
    info_fields: ClassVar[tuple[str, ...]] = ("x", "crossings", "is_high")

    class State:
        x: float
        v: float
        crossings: int
        is_high: bool

    class Params:
        push: float = 1.0
        goal: float = 4.0
        limit: int = 9

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        state.x = rng.uniform(-1.0, 1.0)
        state.v = 0.1 * rng.standard_normal()
        state.crossings = int(rng.integers(0, params.limit))
        state.is_high = False

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        before = state.x
        state.v += halve(params.push * action) + 0.125 * math.sin(state.x)
        state.x = bounce(state.x + state.v, params.goal + 2.0)
        if before * state.x < 0.0:
            state.crossings += 1
        state.is_high = state.x > 1.0
        return -abs(state.x), abs(state.x) >= params.goal

    @staticmethod
    def observe(state: State, out: NDArray[np.float64]) -> None:
        out[0] = state.x
        out[1] = state.v
        out[2] = state.crossings


class Painter(Kernel):
    """State with arrays, draws in a step, narrow fields, array parameters, helpers of a module; images."""

    observation_space: ClassVar[spaces.Box] = spaces.Box(0, 255, (3, 4, 2), np.uint8)
    action_space = spaces.MultiDiscrete([3, 4])
    max_episode_steps: ClassVar[int | None] = 6
    info_fields: ClassVar[tuple[str, ...]] = ("weights", "ink")

    class State:
        cells: NDArray[np.uint8] = array((3, 4), np.uint8)
        weights: NDArray[np.float32] = array(2, np.float32)
        ink: np.float32
        strokes: np.int32
        is_wet: bool

    class Params:
        gains: NDArray[np.float64] = np.array([1.0, 2.0])
        chance: float = 0.2

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        for row in range(3):
            for column in range(4):
                state.cells[row, column] = rng.integers(4)
        state.weights[0] = rng.random()
        state.weights[1] = rng.uniform(1.0, 1.5)
        state.ink = np.float32(4.0)
        state.strokes = np.int32(0)
        state.is_wet = False

    @staticmethod
    def step(state: State, action: NDArray[np.int64], rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        row, column = action[0], action[1]
        spilled = rng.random() < params.chance
        state.cells[row, column] = min(255, 7 * state.cells[row, column] + 5 + int(rng.integers(3)))
        state.ink = state.ink - 0.1  # which the field rounds
        state.weights[0] = state.weights[0] * np.float32(0.5)
        state.strokes = state.strokes + 1
        state.is_wet = bool(spilled or state.strokes > 3)
        gain = params.gains[0] if spilled else params.gains[1]
        return gain * strokes.weighted(float(state.cells[row, column]), 0.125), spilled

    @staticmethod
    def observe(state: State, out: NDArray[np.uint8]) -> None:
        for row in range(3):
            for column in range(4):
                out[row, column, 0] = state.cells[row, column]
                out[row, column, 1] = 255 if state.is_wet else 0

    @staticmethod
    def render(state: State, params: Params) -> NDArray[Any]:
        return np.repeat(state.cells[:, :, None], 3, axis=2)


class Drifter(Kernel):
    """State of scalars, draws in a step, no parameters; Discrete observations, a Box of one number; truncates.

    One field has the name of an array of the fleet's own, and a default that no reset touches.
    """

    observation_space: ClassVar[spaces.Discrete] = spaces.Discrete(21, start=-10)
    action_space = spaces.Box(-1.0, 1.0, (), np.float32)
    max_episode_steps: ClassVar[int | None] = None

    class State:
        place: int
        elapsed: float = 0.25

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Any) -> None:
        state.place = int(rng.integers(-2, 3))

    @staticmethod
    def step(state: State, action: float, rng: np.random.Generator, params: Any) -> tuple[float, bool, bool]:
        push = 1 if action > 0.0 else -1
        state.place = min(10, max(-10, state.place + push * int(rng.integers(1, 4))))
        return 2.0 * state.elapsed * action, abs(state.place) == 10, state.place == 7

    @staticmethod
    def observe(state: State, out: NDArray[np.int64]) -> None:
        out[()] = state.place


class Dials(Kernel):
    """A Box of ints with bounds per element, which choose from a table."""

    observation_space: ClassVar[spaces.Box] = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(np.array([0, 5], np.int32), np.array([3, 9], np.int32), dtype=np.int32)

    class State:
        kick: float

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Any) -> None:
        state.kick = 0.0

    @staticmethod
    def step(state: State, action: NDArray[np.int32], rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        state.kick = _KICKS[action[0]]
        return float(action[1]), False

    @staticmethod
    def observe(state: State, out: NDArray[np.float64]) -> None:
        out[0] = state.kick


class Switches(Kernel):
    """MultiBinary actions, MultiDiscrete observations, a table of constants; every episode has one step."""

    observation_space: ClassVar[spaces.MultiDiscrete] = spaces.MultiDiscrete([16, 4])
    action_space = spaces.MultiBinary(4)
    max_episode_steps: ClassVar[int | None] = 1

    class State:
        pattern: np.int32
        last: np.uint8

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Any) -> None:
        state.pattern = np.int32(rng.integers(16))
        state.last = np.uint8(rng.integers(4))

    @staticmethod
    def step(state: State, action: NDArray[np.int8], rng: np.random.Generator, params: Any) -> tuple[float, bool]:
        total = 0.0
        for k in range(4):
            if action[k] != 0:
                state.pattern ^= np.int32(1 << k)
                state.last = np.uint8(k)
                total += _KICKS[k]
        return total, False

    @staticmethod
    def observe(state: State, out: NDArray[np.int64]) -> None:
        out[0] = state.pattern
        out[1] = state.last


SAMPLES: tuple[type[Kernel], ...] = (Walker, Painter, Drifter, Switches)


def ones(fleet: Any) -> Any:
    """The action 1 for every sub-environment."""
    return np.ones(fleet.num_envs, np.int64)
