"""Kernels that have whatever the shipped ones lack."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envfleet.kernels import Kernel, array


class Deck(Kernel):
    """Draws in its steps; truncates by itself; has arrays in its state, infos, and several actions."""

    observation_space = spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = spaces.MultiDiscrete([3, 4])
    info_fields = ("cards", "score")
    has_own_params = True  # compiled once, though some fleets have a bonus for each sub-environment

    class State(Kernel.State):
        cards: NDArray[np.uint8] = array((2, 3), np.uint8)
        score: float
        turns: int

    class Params(Kernel.Params):
        bonus: float = 1.0

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.score = rng.normal(0.0, 1.0) + rng.exponential(0.5) + rng.poisson(2.0) + rng.integers(1, endpoint=True)
        state.turns = 0
        for k in range(6):
            state.cards[k // 3, k % 3] = rng.integers(0, 52)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool, bool]:
        state.cards[action[0] % 2, action[1] % 3] = rng.integers(52)
        state.score += params.bonus * action[0]
        state.score += np.clip(rng.choice((-2.0, 0.0, 2.0)), -1.0, 1.5)
        rng.shuffle(state.cards[action[0] % 2])
        state.turns += 1
        return state.score, state.cards[0, 0] == 51, state.turns >= 9

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        for row in range(2):
            for column in range(3):
                out[row, column] = state.cards[row, column]


class Ledge(Kernel):
    """Has an action mask, and observations without dimensions."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(2)
    info_fields = ("action_mask",)

    class State(Kernel.State):
        place: int
        action_mask: NDArray[np.int8] = array(2, np.int8)

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.place = rng.integers(3)
        state.action_mask[0] = state.place > 0
        state.action_mask[1] = state.place < 2

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.place += 2 * action - 1
        state.action_mask[0] = state.place > 0
        state.action_mask[1] = state.place < 2
        return 0.0, (state.place < 0) | (state.place > 2)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        out[()] = min(max(state.place, 0), 2)


class Screen(Kernel):
    """Has images as observations, of a size that no tile divides."""

    observation_space = spaces.Box(0, 255, (5, 7), np.uint8)
    action_space = spaces.Discrete(2)

    class State(Kernel.State):
        x: int

    @staticmethod
    def reset(state: Any, rng: Any, params: Any) -> None:
        state.x = rng.integers(5)

    @staticmethod
    def step(state: Any, action: Any, rng: Any, params: Any) -> tuple[float, bool]:
        state.x += 2 * action - 1
        return 1.0, (state.x < 0) | (state.x > 4)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        for row in range(5):
            for column in range(7):
                out[row, column] = (7 * row + column) % 200
        out[min(max(state.x, 0), 4), 5] = 255


class Reshaper(Screen):
    """Reshapes what it observes, which lies in one piece."""

    observation_space = spaces.Box(0, 255, (3, 4), np.uint8)

    @staticmethod
    def observe(state: Any, out: Any) -> None:
        flat = out.reshape(out.size)
        for k in range(out.size):
            flat[k] = k
