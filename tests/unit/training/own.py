"""Agents and observers as a user writes them, and an environment with parts, for tests to name."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from envfleet.agents import Agent, RolloutAgent
from envfleet.training.events import Event, Observer


class Corridor(gym.Env[dict[str, Any], np.int64]):
    """Go to the side that the picture shows, within 4 steps."""

    observation_space = spaces.Dict(
        place=spaces.Discrete(5, start=-2),
        picture=spaces.Box(0, 255, (3, 3, 1), np.uint8),
        wind=spaces.Box(-1, 1, (1,)),
    )
    action_space = spaces.Discrete(2)

    def _observe(self) -> dict[str, Any]:
        picture = np.zeros((3, 3, 1), np.uint8)
        picture[:, self._goal] = 255
        wind = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return {"place": np.int64(self._place), "picture": picture, "wind": wind}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._place, self._steps = 0, 0
        self._goal = int(self.np_random.choice([0, 2]))
        return self._observe(), {}

    def step(self, action: np.int64) -> Any:
        self._place += 2 * int(action) - 1
        self._steps += 1
        is_there = abs(self._place) == 2
        reward = float(is_there and (self._place > 0) == (self._goal == 2))
        return self._observe(), reward, is_there, self._steps == 4, {}


def writes_into_rewards(observations: Any, actions: Any, rewards: Any, after: Any) -> Any:
    """Shape rewards in place, as many functions do."""
    rewards += 100.0
    return rewards


def pays_for_pictures(observations: Any, actions: Any, rewards: Any, after: Any) -> Any:
    """Pay for white pixels, whatever was done."""
    return (after["picture"] == 255).sum(axis=(1, 2, 3)) * (observations["place"] > -3)


class Looking:
    """Goes where the picture shows."""

    def act_batch(self, observations: Any, deterministic: bool = False) -> Any:
        return (observations["picture"][:, 0, 2, 0] == 255).astype(np.int64)


class Reaching(Corridor):
    """The same with an arm."""

    def __init__(self, reach: float) -> None:
        self.action_space = spaces.Box(-reach, reach, (1,))  # type: ignore[assignment]


class Notes(Observer):
    """Counts events, over interruptions."""

    seen: dict[str, int]

    def __init__(self) -> None:
        self.seen = {}
        instances.append(self)

    def on_event(self, event: Event) -> None:
        name = type(event).__name__
        self.seen[name] = self.seen.get(name, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: Any) -> None:
        self.seen = dict(state)

    def close(self) -> None:
        closed.append(self)


instances: list[Notes] = []
closed: list[Notes] = []


class Unfinished(RolloutAgent[Any]):
    """An agent that cannot learn yet."""


class Idle(Agent[Any]):
    """An agent that learns from nothing that a run has."""
