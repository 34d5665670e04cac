"""Environment that returns the numbers of the episode and of the step as observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Counting(gym.Env[Any, Any]):
    """Episodes of 1 to 7 steps; those with an even number are truncated, others terminated. Rewards are the actions.

    An observation is `(row, number of the episode, step)`.
    """

    observation_space = gym.spaces.Box(0, 1e6, (3,), np.float64)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, row: int = 0, fails_at: tuple[int, int] | None = None) -> None:
        self.row, self.episode, self.t, self.fails_at = row, -1, 0, fails_at

    def _observe(self) -> np.ndarray:
        return np.array([self.row, self.episode, self.t], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        if self.fails_at == (self.episode, self.t):
            raise ArithmeticError("fails as asked for")
        has_ended = self.t > (3 * self.row + self.episode) % 7
        is_even = self.episode % 2 == 0
        return self._observe(), float(action), has_ended and not is_even, has_ended and is_even, {}


def check_counting(episodes: Any, cut: set[tuple[int, int]] = frozenset()) -> set[tuple[int, int]]:  # type: ignore[assignment]
    """Check episodes of Minari; return their rows and numbers.

    Args:
        episodes: The episodes.
        cut: Rows and numbers of those that did not reach their end.
    """
    played = set()
    for episode in episodes:
        row, number, _ = episode.observations[0].astype(int).tolist()
        length = len(episode.rewards)
        expected = [(row, number, t) for t in range(length + 1)]
        assert [tuple(values) for values in episode.observations.astype(int).tolist()] == expected
        assert episode.rewards.tolist() == episode.actions.tolist()
        assert len(episode.actions) == len(episode.terminations) == len(episode.truncations) == length
        assert not episode.terminations[:-1].any()
        assert not episode.truncations[:-1].any()
        is_cut = (row, number) in cut
        assert is_cut == (length < (3 * row + number) % 7 + 1)
        assert bool(episode.terminations[-1]) == (number % 2 == 1 and not is_cut)
        assert bool(episode.truncations[-1]) == (number % 2 == 0 or is_cut)
        assert (row, number) not in played
        played.add((row, number))
    return played
