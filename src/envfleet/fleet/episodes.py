"""Episode statistics of a fleet: number, return and length of each episode, and whether it has ended.

Problem. Rewards are summed in every step of every fleet, so this is on the hot path: it may cost about 3 µs a step. It
must be right for partial steps, resets of some rows, restored states and every autoreset mode.

What does not work. Adding 1 to an array of lengths, and searching flags with `any` and `flatnonzero`, is an array
operation each (1 µs), even in steps in which nothing ends. Indexing arrays with a list of one or two rows costs as
much.

Solution. A length is the difference of two counts of steps, so that a step of all rows is one increment. Flags are
searched as bytes. Beginnings and ends of episodes are handled row by row through memory views. The episodes that ended
become arrays only on request.

What remains. Kernels count in compiled code, by the same rules (`tests/conformance`).
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

_TRUE = b"\x01"


class EpisodeStatus(NamedTuple):
    """Current state of every sub-environment's episode; new arrays of shape `(num_envs,)`.

    Attributes:
        ids: Number of the episode, unique in the fleet, int64; -1 before the first reset.
        returns: Sum of rewards so far, float64, `(num_envs, k)` if rewards are vectors. It is kept after the end until
            the next episode begins.
        lengths: Steps so far, int64, kept after the end until the next episode begins.
        ended: Episodes that have ended and await a reset, bool.
    """

    ids: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    ended: NDArray[np.bool_]


class EndedEpisodes(NamedTuple):
    """The E episodes that ended in one step, by ascending row.

    Attributes:
        rows: Rows of the step, int64 `(E,)`.
        returns: Sums of rewards, float64 `(E,)`, or `(E, k)` if rewards are vectors.
        lengths: Numbers of steps, int64 `(E,)`.
        seconds: Durations from the first to the last step, float64 `(E,)`.
        ids: Numbers of the episodes, int64 `(E,)`.
    """

    rows: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    seconds: NDArray[np.float64]
    ids: NDArray[np.int64]

    def entries(self, num_rows: int) -> dict[str, Any]:
        """Return the infos `"episode"` and `"_episode"` of a step of `num_rows`, with the id -1 in other rows."""
        mask = np.zeros(num_rows, np.bool_)
        mask[self.rows] = True
        columns = {
            "r": np.zeros((num_rows, *self.returns.shape[1:])),
            "l": np.zeros(num_rows, np.int64),
            "t": np.zeros(num_rows),
            "id": np.full(num_rows, -1),
        }
        for column, values in zip(columns.values(), self[1:], strict=True):
            column[self.rows] = values
        return {"episode": columns, "_episode": mask}


class EpisodeState(NamedTuple):
    """One saved episode: its return and length so far, and whether it has ended."""

    episode_return: float | NDArray[np.float64]
    length: int
    has_ended: bool


class EpisodeStats:
    """Statistics of the episodes of a fleet; owns the arrays.

    Args:
        num_envs: Number of sub-environments.
        autoreset_mode: Time of the reset after the end of an episode.

    Attributes:
        over: Rows that await a reset after the end of an episode.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode) -> None:
        self._is_next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._num_envs, self._ticks = num_envs, 0
        self._counts, self._born = np.zeros((2, num_envs), np.int64)
        self._begun_s = np.zeros(num_envs)
        self.over: set[int] = set()
        # The last step in which episodes ended: places and rows, ticks, time; in SAME_STEP what the next ones replaced.
        self._last_ended: tuple[list[int], list[int]] = [], []
        self._last_ticks, self._last_s = 0, 0.0
        self._replaced: tuple[Any, Any, Any] = (), (), ()
        self.shape_rewards(())

    def shape_rewards(self, shape: tuple[int, ...]) -> None:
        """Set the shape of a reward, `()` for numbers; called before the first episode."""
        self._returns = np.zeros((self._num_envs, *shape))
        self._view()

    def _view(self) -> None:
        arrays: tuple[Any, ...] = self._counts, self._born, self._returns, self._begun_s
        self._cells: list[Any] = [memoryview(array) if array.ndim == 1 else array for array in arrays]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle, without views of the arrays."""
        return {name: value for name, value in self.__dict__.items() if name != "_cells"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.__dict__.update(state)
        self._view()

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Episodes that have ended and await a reset, bool `(num_envs,)`; a new array."""
        ended = np.zeros(self._num_envs, np.bool_)
        ended[[*self.over]] = True
        return ended

    def status(self) -> EpisodeStatus:
        """Return the current state of every episode."""
        ids = np.maximum(np.arange(self._num_envs) + (self._counts - 1) * self._num_envs, -1)
        return EpisodeStatus(ids, self._returns.copy(), self._ticks - self._born, self.ended)

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step; valid until the next step or reset of these rows."""
        places, rows = (np.array(which, np.int64) for which in self._last_ended)
        counts = self._counts[rows] - 1 - self._is_same_step
        if self._is_same_step:
            returns, born, begun_s = map(np.array, self._replaced)
        else:
            returns, born, begun_s = self._returns[rows], self._born[rows], self._begun_s[rows]
        ids = rows + counts * self._num_envs
        return EndedEpisodes(places, returns, self._last_ticks - born, (self._last_s - begun_s).round(6), ids)

    def save(self, row: int) -> EpisodeState:
        """Return the episode of one sub-environment, for `restore`."""
        total = self._returns[row].copy() if self._returns.ndim > 1 else float(self._returns[row])
        return EpisodeState(total, int(self._ticks - self._born[row]), row in self.over)

    def restore(self, row: int, state: EpisodeState) -> None:
        """Continue a saved episode under a new number."""
        self.begin([row])
        self._returns[row] = state.episode_return
        self._born[row] = self._ticks - state.length
        if state.has_ended:
            self.over.add(row)

    def on_step(
        self, rewards: NDArray[np.float64], flags: NDArray[np.bool_], rows: NDArray[np.int64] | None = None
    ) -> list[int] | None:
        """Add a step of all sub-environments, or of some `rows`, each once.

        Args:
            rewards: float64 `(K,)`, or `(K, k)` if rewards are vectors.
            flags: Terminated and truncated, bool `(2, K)`.
            rows: Sub-environments that stepped; `None` for all in order.

        Returns:
            Indices of ended episodes in the arrays of the step, ascending; `None` if none ended.
        """
        if rows is None:
            self._ticks += 1
            np.add(self._returns, rewards, self._returns)
            if self.over and self._is_next_step:  # these rows were reset in this step
                self.begin([*self.over])
        else:
            self._born[rows] -= 1
            self._returns[rows] += rewards
            if self.over and self._is_next_step:
                self.begin(self.over.intersection(rows.tolist()))
        data = flags.tobytes()
        place, size = data.find(_TRUE), len(rewards)
        if place < 0:
            return None
        places = set()
        while place >= 0:
            places.add(place % size)
            place = data.find(_TRUE, place + 1)
        ended = sorted(places)
        which = ended if rows is None else rows[ended].tolist()
        self._last_ended, self._last_ticks, self._last_s = (ended, which), self._ticks, time.perf_counter()
        if self._is_same_step:
            _, born, returns, begun_s = self._cells
            totals = [returns[row] for row in which] if self._returns.ndim == 1 else self._returns[which]
            self._replaced = totals, [born[row] for row in which], [begun_s[row] for row in which]
            self.begin(which)
        else:
            self.over.update(which)
        return ended

    def begin(self, rows: Collection[int] | None = None) -> None:
        """Begin new episodes in rows that were reset; `None` for all."""
        rows, ticks, now_s = range(self._num_envs) if rows is None else rows, self._ticks, time.perf_counter()
        counts, born, returns, begun_s = self._cells
        for row in rows:
            counts[row] += 1
            returns[row] = 0.0
            born[row] = ticks
            begun_s[row] = now_s
        self.over.difference_update(rows)
