"""Help for a learner: rewards shaped by terms of the game, with weights that change over a phase, or by a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.registry import find_own
from envfleet.training.phases import Phase

Shaping = Callable[[NDArray[Any], NDArray[Any], NDArray[np.float64], NDArray[Any]], NDArray[np.float64]]
"""A function from observations, actions, rewards and next observations, each `(N, …)`, to rewards, `(N,)`."""


def weight_at(episodes: NDArray[np.int64], start: float, final: float, hold: int, move: int) -> NDArray[np.float64]:
    """Return a weight that depends on how many episodes of a phase have begun before.

    Args:
        episodes: Numbers of episodes, counted from 0.
        start: For the first `hold` episodes.
        final: From `move` episodes later.
        hold: Episodes.
        move: Episodes over which it goes from one to the other, in a straight line.

    Examples:
        >>> weight_at(np.array([0, 600, 800, 1000]), start=20.0, final=1.5, hold=600, move=400)
        array([20.  , 20.  , 10.75,  1.5 ])
    """
    progress = np.clip((episodes - hold) / move, 0.0, 1.0) if move else episodes >= hold
    return start + (final - start) * np.asarray(progress, np.float64)


class RewardShaper:
    """Makes the learner's rewards of the environment's; each episode keeps the weights it began with.

    The learner's reward is `reward_scale` times the sum of the environment's reward, the game's terms by their
    weights, and the bonus in the step that wins. The k-th episode of a phase to begin has the weights of k, whatever
    the number of sub-environments is; those that begin together are numbered by row.

    Args:
        num_envs: Sub-environments.
        reward_scale: What all is multiplied by.
        terms: `Game.terms`.

    Attributes:
        terms: Names in infos of the terms that this phase shapes by.
    """

    def __init__(
        self, num_envs: int, reward_scale: float = 1.0, terms: Mapping[str, tuple[str, float, float, str]] | None = None
    ) -> None:
        self._scale, self._keys = reward_scale, tuple(terms or {})
        self._names = tuple(name for name, *_ in (terms or {}).values())
        self.terms: tuple[str, ...] = ()
        self._begun = 0
        self._schedules: dict[int, tuple[float, float, int, int]] = {}  # by column of the weights: terms, then bonus
        self._weights = np.zeros((num_envs, len(self._names) + 1))

    def begin_phase(self, phase: Phase) -> None:
        """Take the schedules of a phase; `begin_episodes` of all rows is to follow."""
        self.terms = () if phase.reward_shaping is None else self._names
        self._begun, self._schedules = 0, {}
        sections = [*((key, phase.reward_shaping) for key in self._keys), ("WIN_BONUS", phase.reward_bonus)]
        for column, (key, section) in enumerate(sections):
            if section is not None:
                start, final = (getattr(section, f"{key}_{when}") for when in ("START", "FINAL"))
                self._schedules[column] = (start, final, section.N, section.K)

    def begin_episodes(self, rows: NDArray[Any]) -> None:
        """Fix the weights of episodes that begin in these sub-environments, int64 `(E,)`, in ascending order."""
        numbers = self._begun + np.arange(len(rows))
        self._begun += len(rows)
        self._weights[rows] = 0.0
        for column, schedule in self._schedules.items():
            self._weights[rows, column] = weight_at(numbers, *schedule)

    def shape(
        self, rewards: NDArray[np.float64], terms: Sequence[NDArray[np.float64]], has_won: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Make the learner's rewards of one step.

        Args:
            rewards: The environment's, `(num_envs,)`.
            terms: In the order of the attribute, `(num_envs,)` each.
            has_won: Whether the learner won its game in this step, `(num_envs,)`.

        Returns:
            A new array, float64 `(num_envs,)`.
        """
        helped = sum(weights * term for weights, term in zip(self._weights.T, terms, strict=False))  # the bonus is last
        scaled: NDArray[np.float64] = self._scale * (rewards + self._weights[:, -1] * has_won + helped)
        return scaled


def find_shaping(name: str) -> Shaping:
    """Return the function of a phase's `shaping`, checked in every step.

    Raises:
        InvalidArgument: `"module:name"` cannot be imported, or is nothing that can be called.
    """
    function = find_own(name, "shaping")

    def shape(
        observations: NDArray[Any], actions: NDArray[Any], rewards: NDArray[np.float64], after: NDArray[Any]
    ) -> NDArray[np.float64]:
        shaped = np.asarray(function(observations, actions, rewards, after), np.float64)
        if shaped.shape != rewards.shape:
            raise InvalidArgument(
                f"{name} returned rewards of shape {shaped.shape}, expected {rewards.shape}: return one number per row"
            )
        return shaped

    return shape
