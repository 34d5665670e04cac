"""A game for two, a player of it, and rewards that help to learn it: the files of "Train on your own game"."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

SIZE, LIMIT = 11, 20


class Fetch(ParallelEnv):
    """Two players on a line; the first to stand on the ball wins."""

    metadata: ClassVar[dict[str, Any]] = {"name": "fetch", "render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, size: int = SIZE, render_mode: str | None = None) -> None:
        self.size, self.render_mode = size, render_mode
        self.possible_agents = ["red", "blue"]
        self.agents: list[str] = []
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1.0, 1.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)  # left, stay, right

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = [*self.possible_agents], 0
        self._ball, *self._places = self._rng.permutation(self.size)[:3].tolist()
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        self._steps += 1
        moved = [place + int(actions[agent]) - 1 for place, agent in zip(self._places, self.agents, strict=True)]
        self._places = [min(max(place, 0), self.size - 1) for place in moved]
        red, blue = (place == self._ball for place in self._places)
        gain = float(red) - float(blue)
        agents, is_over, is_late = self.agents, red or blue, self._steps == LIMIT
        if is_over or is_late:
            self.agents = []
        return (
            self._look(),
            dict(zip(agents, (gain, -gain), strict=True)),
            dict.fromkeys(agents, is_over),
            dict.fromkeys(agents, is_late and not is_over),
            {agent: {} for agent in agents},
        )

    def _look(self) -> dict[str, Any]:
        red, blue, ball = ((2 * place / (self.size - 1) - 1) for place in (*self._places, self._ball))
        return {
            "red": np.array([red, blue, ball], np.float32),
            "blue": np.array([blue, red, ball], np.float32),
        }

    def render(self) -> Any:
        frame = np.full((16, 16 * self.size, 3), 255, np.uint8)
        for place, color in zip((self._ball, *self._places), ((0, 0, 0), (220, 60, 40), (40, 90, 220)), strict=True):
            frame[2:14, 16 * place + 2 : 16 * place + 14] = color
        return frame


class Sleepy:
    """Goes to the ball, but stays where it is now and then."""

    def __init__(self, observation_space: Any, action_space: Any, rng: np.random.Generator, sleep: float = 0.5) -> None:
        self._rng, self._sleep = rng, sleep

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        way = np.sign(observations[:, 2] - observations[:, 0]).astype(np.int64)
        return 1 + way * (self._rng.random(len(way)) >= self._sleep)


def nearer(observations: Any, actions: Any, rewards: Any, next_observations: Any) -> Any:
    """Add a little for every step towards the ball."""
    before, after = (np.abs(seen[:, 2] - seen[:, 0]) for seen in (observations, next_observations))
    return rewards + 0.1 * (before - after)
