"""Who plays when, and in which row of a policy's batch, so that results do not depend on how many play at once.

A matrix product may round a row differently in a batch of another size, or at another place in it; a game of a few
hundred steps can turn out otherwise for that. So policies are asked in blocks of one fixed size, and the place of a
game in its block follows from its number alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument

BLOCK_ROWS = 128


class Policy(Protocol):
    """Whoever chooses actions for many observations at once: every agent does."""

    def act_batch(self, observations: NDArray[Any], deterministic: bool = False) -> NDArray[Any]:
        """Choose an action for every observation, `(N, …)`."""
        ...


class Seating:
    """Gives every sub-environment its games, one after the other.

    Which sub-environment plays a game is settled beforehand and not by who is free first, so that short games are not
    counted more often than long ones.

    Args:
        num_games: Numbered from 0.
        num_envs: Sub-environments at most; a multiple of 128 shares the games out most evenly.

    Attributes:
        num_envs: Sub-environments that are needed.
        games: Number of the game that each one plays, int64 `(num_envs,)`; -1 where there is none left.

    Examples:
        >>> seating = Seating(num_games=5, num_envs=2)
        >>> seating.seat(np.array([0, 1])), seating.games
        (array([0, 1]), array([0, 1]))
        >>> seating.seat(np.array([1])), seating.games
        (array([1]), array([0, 3]))
    """

    def __init__(self, num_games: int, num_envs: int) -> None:
        if num_games < 1 or num_envs < 1:
            raise InvalidArgument(f"{num_games} games in {num_envs} sub-environments: pass numbers from 1")
        self.num_envs = min(num_envs, num_games)
        self.num_places = -(-self.num_envs // BLOCK_ROWS) * BLOCK_ROWS
        # No two sub-environments share a place, so that no two running games do.
        owners = np.arange(num_games) % self.num_places % self.num_envs
        self._order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[self._order], np.arange(self.num_envs + 1))
        self._next, self._ends = bounds[:-1].copy(), bounds[1:]
        self.games: NDArray[np.int64] = np.full(self.num_envs, -1, np.int64)

    @property
    def rows(self) -> NDArray[np.int64]:
        """Sub-environments that play."""
        return np.flatnonzero(self.games >= 0)

    def seat(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Give these sub-environments, whose games are over, their next ones.

        Returns:
            Those of them that got one.
        """
        seated: NDArray[np.int64] = rows[self._next[rows] < self._ends[rows]]
        self.games[rows] = -1
        self.games[seated] = self._order[self._next[seated]]
        self._next[seated] += 1
        return seated


class SeatedPolicy:
    """A policy that sees every game at the game's own place.

    Args:
        policy: Acts without exploration.
        seating: Of the games.
    """

    def __init__(self, policy: Policy, seating: Seating) -> None:
        self._policy, self._seating = policy, seating
        self._inputs: NDArray[Any] | None = None
        self._actions: NDArray[Any] | None = None

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        """Choose actions for all sub-environments.

        Args:
            observations: `(num_envs, …)`.

        Returns:
            `(num_envs, …)`; where no game is left, the last one of that sub-environment.
        """
        seating = self._seating
        if self._inputs is None:
            self._inputs = np.zeros((seating.num_places, *observations.shape[1:]), observations.dtype)
        rows = seating.rows
        places = seating.games[rows] % seating.num_places
        self._inputs[places] = observations[rows]
        blocks = places // BLOCK_ROWS
        for block in np.unique(blocks):
            inputs = self._inputs[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
            chosen = np.asarray(self._policy.act_batch(inputs, deterministic=True))
            if self._actions is None:
                self._actions = np.zeros((seating.num_envs, *chosen.shape[1:]), chosen.dtype)
            mine = blocks == block
            self._actions[rows[mine]] = chosen[places[mine] % BLOCK_ROWS]
        assert self._actions is not None  # noqa: S101  # for the type checker: every sub-environment began with a game
        return self._actions
