"""`envfleet/Turbofan-v0`: decide when to repair a wearing engine, and when to sell it."""

from __future__ import annotations

import functools
import math
import re
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.envs.turbofan.sensors import MODEL, NUM_SENSORS
from envfleet.errors import InvalidArgument
from envfleet.kernels import Kernel, array
from envfleet.kernels.maths import exp

FLY, REPAIR, SELL = 0, 1, 2
"""The actions."""

RUNNING, SOLD, FAILURE = 0, 1, 2
"""Values of `infos["reason"]`: reasons of the end of an episode."""

MAX_STEP_SIZE = 1000

NUM_ENTRIES = 2
"""Columns that a logbook adds to the sensors: flights and repairs so far."""

# Standard normal draws of a flight: the sensors' noise, then these.
_AMBIENT, _CONDITIONS, _OTHER, NUM_NORMALS = NUM_SENSORS, NUM_SENSORS + 1, NUM_SENSORS + 4, NUM_SENSORS + 6


class Turbofan(Kernel):
    """Fly, repair or sell one engine; each decision is for a block of `step_size` flights.

    Actions: 0 flies the block; 1 spends its first flight in the shop, which undoes most of the wear but not all of it,
    and makes the engine wear faster afterwards; 2 sells the engine. Reward: profit of the block's flights, which
    decreases with wear, minus the costs of a repair; a failure costs 1000. Terminated by sale and by failure.

    Observation: float32 `(step_size, 9)`, the sensors of `sensors.NAMES` after each flight of the block. If the episode
    ends inside a block, the last row repeats; `infos["num_rows"]` says how many rows there are. `infos["reason"]` is 0,
    1 (sold) or 2 (failure).

    Options of `make`, in addition to the parameters: `step_size` (10), `return_all_states` (`True`; otherwise the
    observation is the last row alone, `(9,)`), `logbook` (`False`; otherwise every row also has the engine's flights
    and repairs so far, which the policy could count itself), and `reveal` (`False`; otherwise infos contain the hidden
    `degradation` and `repairs`).

    The wear is a gamma process (J. M. van Noortwijk, 2009) towards a limit with a steep hazard (A. Saxena et al.,
    2008), repairs are imperfect and quicken it (M. Kijima, 1989; H. Pham and H. Wang, 1996), sensors follow M. Arias
    Chao et al., "Aircraft Engine Run-to-Failure Dataset under Real Flight Conditions" (2021). Its numbers are fitted to
    aggregates of recorded episodes.
    """

    observation_space: ClassVar[spaces.Box] = spaces.Box(-np.inf, np.inf, (10, NUM_SENSORS), np.float32)
    action_space = spaces.Discrete(3)
    max_episode_steps: ClassVar[int | None] = 1000
    info_fields: ClassVar[tuple[str, ...]] = ("num_rows", "reason")
    variant_options = ("step_size", "return_all_states", "logbook", "reveal")

    class State(Kernel.State):
        """State of an engine. Times are in flights; degradation 1 is the end of its life."""

        quality: float  # of its making: a factor of the speed of wear
        wear: float  # what a repair can undo
        damage: float  # what it cannot
        degradation: float  # the sum of both
        repairs: np.int32
        flights: np.int32
        ambient: float  # deviation of the air's temperature from the standard atmosphere, K
        conditions: NDArray[np.float64] = array(3, np.float64)  # of the flight, each about 0 with variance 1
        normals: NDArray[np.float64] = array(NUM_NORMALS, np.float64)  # standard normal draws for the present flight
        num_rows: np.int32
        reason: np.int8
        rows: NDArray[np.float32] = array((10, NUM_SENSORS), np.float32)

    class Params(Kernel.Params):
        """Profits and costs, speed of wear, and number of flights per decision; 0 for `step_size`."""

        profit: float = 48.0  # of a flight of a new engine
        profit_noise: float = 4.0
        repair_cost: float = 900.0
        failure_cost: float = 1000.0
        sale_value: float = 150.0
        wear_rate: float = 0.0084  # per flight
        flights: int = 0

    @classmethod
    def variant(cls, **options: Any) -> type[Kernel]:
        """Return the class for `step_size`, `return_all_states`, `logbook` and `reveal`."""
        return turbofan(**options)

    @staticmethod
    def reset(state: State, rng: np.random.Generator, params: Params) -> None:
        """Create a new engine, and measure it once."""
        _draw(state.normals, rng)
        state.quality = exp(0.05 * state.normals[_OTHER])
        state.damage = abs(0.008 * state.normals[_OTHER + 1])
        state.wear = 0.0
        state.degradation = state.damage
        state.repairs = np.int32(0)
        state.flights = np.int32(0)
        state.ambient = min(max(10.0 + 0.3 * state.normals[_AMBIENT], 9.1), 10.9)
        for k in range(3):
            state.conditions[k] = state.normals[_CONDITIONS + k]
        state.num_rows = np.int32(1)
        state.reason = np.int8(RUNNING)
        _measure(state, 0)
        _repeat_last_row(state)

    @staticmethod
    def step(state: State, action: int, rng: np.random.Generator, params: Params) -> tuple[float, bool]:
        """Sell the engine; or repair it if requested, and fly the rest of the block."""
        reward = 0.0
        num_flights = state.rows.shape[0] if params.flights == 0 else min(params.flights, state.rows.shape[0])
        row = 0
        while (state.reason == RUNNING) & (row < num_flights):
            _draw(state.normals, rng)
            if row == 0 and action == SELL:
                state.reason = np.int8(SOLD)
                reward = _value(state, params)
            else:
                is_repair = row == 0 and action == REPAIR
                wear = _growth(state, rng) * params.wear_rate
                first, second = rng.random(), rng.random()
                reward += _repair(state, first, second, params) if is_repair else _fly(state, wear, first, params)
            _change_weather(state)
            _measure(state, row)
            row += 1
        state.num_rows = np.int32(row)
        _repeat_last_row(state)
        return reward, state.reason != RUNNING

    @staticmethod
    def observe(state: State, out: NDArray[np.float32]) -> None:
        """Write all rows, or only the last one."""
        flat = out.flat
        num_rows, width = state.rows.shape
        first = num_rows - out.size // width
        for k in range(out.size):
            flat[k] = state.rows[first + k // width, k % width]


def _draw(normals: NDArray[np.float64], rng: np.random.Generator) -> None:
    """Draw the numbers of one flight; their count is fixed, so that a seed gives all policies the same draws."""
    for k in range(normals.size):
        normals[k] = rng.standard_normal()


def _growth(state: Turbofan.State, rng: np.random.Generator) -> float:
    """Return the wear of one flight: gamma distributed of shape 4, with mean 1 for a good new engine."""
    product = 1.0
    for _ in range(4):
        product *= 1.0 - rng.random()
    haste = 1.52 - 0.52 * exp(-state.repairs / 0.6)
    age = 1.0 + 0.40 / (1.0 + exp(-(state.flights - 255.0) / 8.0))
    return -0.25 * math.log(product) * state.quality * haste * age


def _fly(state: Turbofan.State, wear: float, chance: float, params: Turbofan.Params) -> float:
    """Fly once; return the profit, or the negative cost of a failure."""
    state.wear += 0.995 * wear
    state.damage += 0.005 * wear
    state.degradation = state.wear + state.damage
    state.flights += np.int32(1)
    if chance < 5e-5 + 0.03 * exp(18.0 * (state.degradation - 1.0)):
        state.reason = np.int8(FAILURE)
        return -params.failure_cost
    profit: float = params.profit * (1.0 - state.degradation) + params.profit_noise * state.normals[_OTHER]
    return profit


def _repair(state: Turbofan.State, first: float, second: float, params: Turbofan.Params) -> float:
    """Undo about 95 % of the wear, and add a little damage; return the cost.

    Args:
        state: The engine.
        first: Uniform in [0, 1); with `second` it gives a beta(2, 38) variable, the share of the wear that is left: the
            second smallest of 39 uniform numbers, from the smallest of 39 and the smallest of the other 38.
        second: Uniform in [0, 1).
        params: The parameters.
    """
    state.wear *= 1.0 - exp(math.log(1.0 - first) / 39.0 + math.log(1.0 - second) / 38.0)
    state.damage += abs(0.008 + 0.003 * state.normals[_OTHER])
    state.degradation = state.wear + state.damage
    state.repairs += np.int32(1)
    state.flights += np.int32(1)
    return -params.repair_cost


def _value(state: Turbofan.State, params: Turbofan.Params) -> float:
    """Return the price of the engine."""
    loss = 45.0 * state.degradation + 4.0 * state.repairs + 20.0 * min(state.flights / 400.0, 1.0)
    return max(40.0, params.sale_value - loss)


def _change_weather(state: Turbofan.State) -> None:
    """Advance to the conditions of the next flight."""
    ambient = state.ambient + 0.12 * (10.0 - state.ambient) + 0.17 * state.normals[_AMBIENT]
    state.ambient = min(max(ambient, 9.1), 10.9)
    for k in range(3):
        state.conditions[k] = 0.6 * state.conditions[k] + 0.8 * state.normals[_CONDITIONS + k]


def _measure(state: Turbofan.State, row: int) -> None:
    wear = state.degradation
    for k in range(NUM_SENSORS):
        value = MODEL[k, 0] + MODEL[k, 1] * (state.ambient - 10.0) + (MODEL[k, 2] + MODEL[k, 3] * wear) * wear
        for c in range(3):
            value += MODEL[k, 4 + c] * state.conditions[c]
        state.rows[row, k] = value + MODEL[k, 7] * state.normals[k]
    if state.rows.shape[1] > NUM_SENSORS:
        state.rows[row, NUM_SENSORS] = state.flights
        state.rows[row, NUM_SENSORS + 1] = state.repairs


def _repeat_last_row(state: Turbofan.State) -> None:
    for row in range(state.num_rows, state.rows.shape[0]):
        for k in range(state.rows.shape[1]):
            state.rows[row, k] = state.rows[state.num_rows - 1, k]


def turbofan(
    step_size: int = 10, return_all_states: bool = True, *, logbook: bool = False, reveal: bool = False
) -> type[Turbofan]:
    """Return the kernel for the options that determine observation shapes and infos.

    Args:
        step_size: Flights per decision, from 1 to 1000.
        return_all_states: True if an observation has all rows of the block; otherwise it has the last row only.
        logbook: Append the numbers of flights and repairs so far to each row.
        reveal: Add the hidden degradation and the number of repairs to the infos.

    Raises:
        InvalidArgument: An option is invalid.
    """
    flags = {"return_all_states": return_all_states, "logbook": logbook, "reveal": reveal}
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            raise InvalidArgument(f"{name}={value!r}: pass True or False")
    if step_size not in range(1, MAX_STEP_SIZE + 1):
        raise InvalidArgument(f"step_size={step_size!r}: pass a whole number of flights from 1 to {MAX_STEP_SIZE}")
    return _variant(int(step_size), bool(return_all_states), bool(logbook), bool(reveal))


@functools.cache
def _variant(step_size: int, return_all_states: bool, logbook: bool, reveal: bool) -> type[Turbofan]:
    if (step_size, return_all_states, logbook, reveal) == (10, True, False, False):
        return Turbofan
    width = NUM_SENSORS + NUM_ENTRIES if logbook else NUM_SENSORS
    shape = (step_size, width) if return_all_states else (width,)

    class Variant(Turbofan):
        observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        info_fields = (*Turbofan.info_fields, "degradation", "repairs") if reveal else Turbofan.info_fields

        class State(Turbofan.State):
            rows: NDArray[np.float32] = array((step_size, width), np.float32)

    parts = [f"Turbofan_{step_size}_{'all' if return_all_states else 'last'}", "logbook" * logbook, "revealed" * reveal]
    Variant.__name__ = Variant.__qualname__ = "_".join(part for part in parts if part)
    return Variant


def __getattr__(name: str) -> type[Turbofan]:
    """Return variants by name, because pickle refers to them by name."""
    match = re.fullmatch(r"Turbofan_(\d+)_(all|last)(_logbook)?(_revealed)?", name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return turbofan(int(match[1]), match[2] == "all", logbook=bool(match[3]), reveal=bool(match[4]))
