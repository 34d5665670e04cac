"""Book-keeping of episodes: number, return and length of each sub-environment's episode, and whether it has ended."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

_TRUE = b"\x01"  # a bool that is set: searching bytes for it takes a fraction of the time of `any`


class EpisodeStatus(NamedTuple):
    """Where the episode of every sub-environment stands; arrays of shape `(num_envs,)`, the caller's own.

    Attributes:
        ids: Number of each episode, unique in the fleet, int64; -1 before the first reset.
        returns: Sum of rewards so far, float64, `(num_envs, k)` if they are vectors; kept after an end until the next
            episode begins.
        lengths: Steps so far, int64; kept likewise.
        ended: Whether the episode has ended and awaits a reset, bool.
    """

    ids: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    ended: NDArray[np.bool_]


class EndedEpisodes(NamedTuple):
    """The episodes that ended in one step, one entry each, by ascending row.

    Attributes:
        rows: Row of each in the step, int64 `(E,)`.
        returns: Sum of rewards, float64 `(E,)`, or `(E, k)` if rewards are vectors.
        lengths: Steps, int64 `(E,)`.
        seconds: Time from first to last step, float64 `(E,)`.
        ids: Number of the episode, int64 `(E,)`.
    """

    rows: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    seconds: NDArray[np.float64]
    ids: NDArray[np.int64]

    def entries(self, num_rows: int) -> dict[str, Any]:
        """Return `"episode"` and `"_episode"` for the infos of a step of `num_rows`: 0 where none ended, -1 as id."""
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


class Episodes:
    """The episodes of all sub-environments of a fleet; owns the arrays.

    Args:
        num_envs: How many sub-environments.
        autoreset_mode: When an ended episode is followed by the next one.
        describes: Whether to describe the episodes that end.

    Attributes:
        over: Rows whose episodes have ended and await a reset.
        described: The episodes that ended in the last step in which some did, if it describes them.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode, *, describes: bool = False) -> None:
        self._describes = describes
        self.described: EndedEpisodes | None = None
        self._is_next_step = autoreset_mode is AutoresetMode.NEXT_STEP
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._num_envs, self._ticks = num_envs, 0
        # Lengths are differences of ticks, so that a step of all sub-environments costs one addition.
        self._counts, self._born = np.zeros((2, num_envs), np.int64)
        self._begun_s = np.zeros(num_envs)
        self.over: set[int] = set()
        self.shape_rewards(())

    def shape_rewards(self, shape: tuple[int, ...]) -> None:
        """Start returns again for rewards of a shape, `()` for numbers; to be called before the first episode."""
        self._returns = np.zeros((self._num_envs, *shape))
        arrays: tuple[Any, ...] = self._counts, self._born, self._returns, self._begun_s
        self._cells: list[Any] = [memoryview(array) if array.ndim == 1 else array for array in arrays]

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Return which episodes have ended and await a reset, bool `(num_envs,)`, the caller's own."""
        ended = np.zeros(self._num_envs, np.bool_)
        ended[[*self.over]] = True
        return ended

    def status(self) -> EpisodeStatus:
        """Return where every episode stands."""
        ids = self._ids(np.arange(self._num_envs))
        return EpisodeStatus(ids, self._returns.copy(), self._ticks - self._born, self.ended)

    def resume(self, status: EpisodeStatus) -> None:
        """Continue from episodes that another book-keeper has followed so far."""
        self._counts[:] = (status.ids - np.arange(self._num_envs)) // self._num_envs + 1
        self.shape_rewards(status.returns.shape[1:])
        self._returns[:] = status.returns
        self._born[:] = self._ticks - status.lengths
        self._begun_s[:] = time.perf_counter()
        self.over = set(np.flatnonzero(status.ended).tolist())

    def save(self, row: int) -> EpisodeState:
        """Return the episode of one sub-environment, for `restore`."""
        total = self._returns[row].copy() if self._returns.ndim > 1 else float(self._returns[row])
        return EpisodeState(total, int(self._ticks - self._born[row]), row in self.over)

    def restore(self, row: int, state: EpisodeState) -> None:
        """Continue a saved episode under a number of its own."""
        self.begin([row])
        self._returns[row] = state.episode_return
        self._born[row] = self._ticks - state.length
        if state.has_ended:
            self.over.add(row)

    def on_step(
        self, rewards: NDArray[np.float64], flags: NDArray[np.bool_], rows: NDArray[np.int64] | None = None
    ) -> list[int] | None:
        """Take in a step of all sub-environments, or of different `rows`.

        Args:
            rewards: float64 `(K,)`, or `(K, k)` if they are vectors.
            flags: Terminated and truncated, bool `(2, K)`.
            rows: Who stepped; `None` for all in order.

        Returns:
            Ascending places in the arrays of the step whose episodes ended; `None` if none did.
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
        if self._describes:
            seconds = (time.perf_counter() - self._begun_s[which]).round(6)
            lengths = self._ticks - self._born[which]
            ids = self._ids(np.array(which))
            self.described = EndedEpisodes(np.array(ended), self._returns[which], lengths, seconds, ids)
        if self._is_same_step:
            self.begin(which)
        else:
            self.over.update(which)
        return ended

    def _ids(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        numbers: NDArray[np.int64] = rows + (self._counts[rows] - 1) * self._num_envs
        return np.maximum(numbers, -1)

    def begin(self, rows: Collection[int] | None = None) -> None:
        """Begin new episodes in rows that were reset; `None` for all."""
        # One by one, which for few is much faster than indexing arrays.
        rows, ticks = range(self._num_envs) if rows is None else rows, self._ticks
        counts, born, returns, begun_s = self._cells
        for row in rows:
            counts[row] += 1
            returns[row] = 0.0
            born[row] = ticks
        self.over.difference_update(rows)
        if self._describes:
            now_s = time.perf_counter()
            for row in rows:
                begun_s[row] = now_s
