"""Reward shaping by terms of the game, with weights that change over a phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.training.phases import Phase


def weight_at(episodes: NDArray[np.int64], start: float, final: float, hold: int, move: int) -> NDArray[np.float64]:
    """Return the scheduled weight of episodes of a phase.

    Args:
        episodes: Numbers of the episodes in the phase, from 0.
        start: Weight of the first `hold` episodes.
        final: Weight from `move` episodes later.
        hold: Episodes with the initial weight.
        move: Episodes of the linear transition.

    Examples:
        >>> weight_at(np.array([0, 600, 800, 1000]), start=20.0, final=1.5, hold=600, move=400)
        array([20.  , 20.  , 10.75,  1.5 ])
    """
    progress = np.clip((episodes - hold) / move, 0.0, 1.0) if move else episodes >= hold
    return start + (final - start) * np.asarray(progress, np.float64)


class RewardShaper:
    """Reward shaper; each episode keeps the weights that it began with.

    The learner's reward is `reward_scale` times the sum of the environment's reward, the weighted shaping terms of the
    game, and the bonus in the step that wins. Weights depend on the order in which episodes of a phase begin, not on
    the number of sub-environments; episodes that begin together are ordered by row.

    Args:
        num_envs: Number of sub-environments.
        reward_scale: Factor of the learner's reward.
        terms: Shaping terms, as in `Game.terms`.

    Attributes:
        terms: Names in infos of the terms used in this phase.
    """

    def __init__(
        self, num_envs: int, reward_scale: float = 1.0, terms: Mapping[str, tuple[str, float, float, str]] | None = None
    ) -> None:
        self._scale, self._terms = reward_scale, dict(terms or {})
        self._names = tuple(name for name, *_ in self._terms.values())
        self.terms: tuple[str, ...] = ()
        self._begun = 0
        self._schedules: dict[int, tuple[float, float, int, int]] = {}  # by column of the weights: terms, then bonus
        self._weights = np.zeros((num_envs, len(self._names) + 1))

    def begin_phase(self, phase: Phase) -> None:
        """Use the schedules of a phase; call `begin_episodes` for all rows next."""
        self.terms = () if phase.reward_shaping is None else self._names
        self._begun, self._schedules = 0, {}
        if (shaping := phase.reward_shaping) is not None:
            for column, (key, (_, initial, final, _)) in enumerate(self._terms.items()):
                start, end = shaping.weights.get(f"{key}_START", initial), shaping.weights.get(f"{key}_FINAL", final)
                self._schedules[column] = (start, end, shaping.N, shaping.K)
        if (bonus := phase.reward_bonus) is not None:
            self._schedules[len(self._terms)] = (bonus.WIN_BONUS_START, bonus.WIN_BONUS_FINAL, bonus.N, bonus.K)

    def begin_episodes(self, rows: NDArray[Any]) -> None:
        """Set the weights of episodes that begin in these sub-environments, int64 `(E,)`, in ascending order."""
        numbers = self._begun + np.arange(len(rows))
        self._begun += len(rows)
        self._weights[rows] = 0.0
        for column, schedule in self._schedules.items():
            self._weights[rows, column] = weight_at(numbers, *schedule)

    def shape(
        self, rewards: NDArray[np.float64], terms: Sequence[NDArray[np.float64]], has_won: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the learner's rewards of one step.

        Args:
            rewards: Rewards of the environment, `(num_envs,)`.
            terms: Shaping terms, in the order of the attribute, each `(num_envs,)`.
            has_won: True if the learner won its game in this step, `(num_envs,)`.

        Returns:
            A new array, float64 `(num_envs,)`.
        """
        helped = sum(weights * term for weights, term in zip(self._weights.T, terms, strict=False))  # the bonus is last
        scaled: NDArray[np.float64] = self._scale * (rewards + self._weights[:, -1] * has_won + helped)
        return scaled
