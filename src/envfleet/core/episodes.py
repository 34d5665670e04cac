"""What a fleet knows of every sub-environment's episode: its number, return, length and whether it has ended."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

_TRUE = 1
"""The byte of a bool that is set. Searching bytes for it takes a fraction of what `any` does."""

_FEW = 16
"""Up to so many episodes are begun one by one, which for few is faster than numpy."""

_COUNT, _RETURN, _BORN, _STARTED = range(4)


class EndedEpisodes:
    """The episodes that ended in one step. Every array has one entry per row of the step, valid where `mask` is set.

    Everything is worked out when somebody looks.

    Args:
        flags: Which rows terminated and which were truncated, as the bytes of bools.
        table: What was known of each row's episode, as the bytes of the table that `Episodes` keeps.
        origins: Number of each row's first episode.
        stride: What the numbers of two episodes of a row differ by.
        ticks: Steps of the fleet so far.
    """

    __slots__ = ("_bytes", "_ended_s", "_flags", "_origins", "_stride", "_ticks")

    def __init__(
        self,
        flags: tuple[bytes, bytes],
        table: bytes,
        origins: NDArray[np.int64],
        stride: int,
        ticks: int,
    ) -> None:
        self._flags, self._bytes, self._origins, self._stride, self._ticks = flags, table, origins, stride, ticks
        self._ended_s = time.perf_counter()

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Which rows; a new array."""
        terminated, truncated = self._flags
        return np.frombuffer(terminated, np.bool_) | np.frombuffer(truncated, np.bool_)

    @property
    def _table(self) -> NDArray[np.float64]:
        return np.frombuffer(self._bytes).reshape(4, -1)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Sum of rewards."""
        returns: NDArray[np.float64] = self._table[_RETURN].copy()
        return returns

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps."""
        born: NDArray[np.int64] = self._table[_BORN].astype(np.int64)
        return self._ticks - born

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Time from first to last step."""
        started_s: NDArray[np.float64] = self._table[_STARTED]
        return self._ended_s - started_s

    @property
    def ids(self) -> NDArray[np.int64]:
        """Number of the episode."""
        return _ids(self._table, self._origins, self._stride)

    @property
    def rows(self) -> NDArray[np.intp]:
        """The same rows as indices, ascending."""
        return np.flatnonzero(self.mask)

    def entry(self) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
        """Return `infos["episode"]` and `infos["_episode"]`.

        The first is `{"r": returns, "l": lengths, "t": seconds, "id": numbers}`, each with one entry per row of the
        step: 0 where no episode ended, and -1 as `"id"`.
        """
        mask = self.mask
        episode: dict[str, NDArray[Any]] = {
            "r": np.where(mask, self.returns, 0.0),
            "l": np.where(mask, self.lengths, 0),
            "t": np.where(mask, np.round(self.seconds, 6), 0.0),
            "id": np.where(mask, self.ids, -1),
        }
        return episode, mask


class EpisodeState(NamedTuple):
    """Where an episode stands: its return and length so far, and whether it has ended."""

    episode_return: float
    length: int
    has_ended: bool


class Episodes:
    """Keeps the episode of every sub-environment, and owns the arrays it keeps them in.

    The `k`-th episode of sub-environment `i` has the number `i + k * stride`: unique in the fleet, and the same on
    every backend in whatever order sub-environments are stepped.

    Args:
        num_envs: Number of sub-environments.
        autoreset_mode: When a new episode begins after one has ended. With `NEXT_STEP` the row after an end is that of
            a reset: its reward does not count. With `SAME_STEP` the new episode begins in the step that ends the old
            one. With `DISABLED` the old one stays until `on_reset`.
        first: Index of the first sub-environment in the whole fleet.
        stride: Number of sub-environments of the whole fleet, `num_envs` if not given.
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode, first: int = 0, stride: int | None = None) -> None:
        self.num_envs = num_envs
        self._is_next_step = autoreset_mode is AutoresetMode.NEXT_STEP  # an enum's member is slow to look up
        self._is_same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._stride = stride or num_envs
        self._origins = np.arange(first, first + num_envs)
        # One table, so that one copy keeps what was known when an episode ended. Whole numbers are exact in it up to
        # 2**53. The length of an episode is `_ticks - _born`: a step of all costs one addition, not N.
        self._table = np.zeros((4, num_envs), np.float64)
        self._counts, self._returns, self._born, self._started_s = self._table
        rows: Any = self._table  # numpy does not type its arrays as buffers
        self._cells: list[Any] = [memoryview(row) for row in rows]
        self._ticks = 0
        self._ended: set[int] = set()  # those that await a reset

    @property
    def ids(self) -> NDArray[np.int64]:
        """Number of each episode, shape `(num_envs,)`, -1 before the first reset; a copy."""
        return np.maximum(_ids(self._table, self._origins, self._stride), -1)

    @property
    def returns(self) -> NDArray[np.float64]:
        """Sum of rewards so far, shape `(num_envs,)`; kept after an end until the next episode begins; a copy."""
        return self._returns.copy()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Steps so far, shape `(num_envs,)`; kept after an end until the next episode begins; a copy."""
        return self._ticks - self._born.astype(np.int64)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """Which sub-environments have ended and await a reset, shape `(num_envs,)`; a new array."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[list(self._ended)] = True
        return mask

    @property
    def has_ended(self) -> bool:
        """Whether any sub-environment has ended and awaits a reset."""
        return bool(self._ended)

    def get(self, index: int) -> EpisodeState:
        """Tell where the episode of a sub-environment stands, for `set`."""
        return EpisodeState(float(self._returns[index]), int(self._ticks - self._born[index]), index in self._ended)

    def set(self, index: int, state: EpisodeState) -> None:
        """Go on with an episode that was saved; it gets a number of its own."""
        self._begin([index])
        self._returns[index] = state.episode_return
        self._born[index] = self._ticks - state.length
        if state.has_ended:
            self._ended.add(index)
        else:
            self._ended.discard(index)

    def on_reset(self, indices: NDArray[np.intp] | None = None) -> None:
        """Begin new episodes in the sub-environments that were reset; `None` for all."""
        if indices is None:
            self._begin(range(self.num_envs))
            self._ended.clear()
        else:
            self._begin(indices.tolist())
            self._ended.difference_update(indices.tolist())

    def on_step(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        indices: NDArray[np.intp] | None = None,
    ) -> EndedEpisodes | None:
        """Take in a step.

        Args:
            rewards: Of each row.
            terminated: Of each row.
            truncated: Of each row.
            indices: The sub-environment of each row, each at most once; `None` if the rows are all of them in turn.

        Returns:
            The episodes that ended, `None` if none did.
        """
        if indices is not None:
            return self._on_rows(rewards, terminated, truncated, indices)
        self._ticks += 1
        np.add(self._returns, rewards, self._returns)
        if self._ended and self._is_next_step:
            self._begin(self._ended)
            self._ended.clear()
        flags = terminated.tobytes(), truncated.tobytes()
        if _TRUE not in flags[0] and _TRUE not in flags[1]:
            return None
        ended = EndedEpisodes(flags, self._table.tobytes(), self._origins, self._stride, self._ticks)
        self._end(_places(*flags))
        return ended

    def _on_rows(
        self,
        rewards: NDArray[np.float64],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        indices: NDArray[np.intp],
    ) -> EndedEpisodes | None:
        self._born[indices] -= 1
        self._returns[indices] += rewards
        if self._ended and self._is_next_step:
            again = self._ended.intersection(indices.tolist())
            self._begin(again)
            self._ended -= again
        flags = terminated.tobytes(), truncated.tobytes()
        if _TRUE not in flags[0] and _TRUE not in flags[1]:
            return None
        table = self._table[:, indices].tobytes()
        ended = EndedEpisodes(flags, table, self._origins[indices], self._stride, self._ticks)
        self._end(indices[_places(*flags)].tolist())
        return ended

    def _end(self, which: list[int]) -> None:
        """End the episodes of some sub-environments."""
        if self._is_same_step:
            self._begin(which)
        else:
            self._ended.update(which)

    def _begin(self, which: Collection[int]) -> None:
        """Begin new episodes."""
        now_s = time.perf_counter()
        if len(which) > _FEW:
            rows = np.fromiter(which, np.intp)
            self._counts[rows] += 1
            self._returns[rows] = 0.0
            self._born[rows] = self._ticks
            self._started_s[rows] = now_s
            return
        counts, returns, born, started_s = self._cells
        for index in which:
            counts[index] += 1
            returns[index] = 0.0
            born[index] = self._ticks
            started_s[index] = now_s


def _places(first: bytes, second: bytes) -> list[int]:
    """Where either of two rows of bools is set."""
    if len(first) > _FEW and first.count(_TRUE) + second.count(_TRUE) > _FEW:
        many: list[int] = np.flatnonzero(np.frombuffer(first, np.bool_) | np.frombuffer(second, np.bool_)).tolist()
        return many
    found: list[int] = []
    place = first.find(_TRUE)
    while place >= 0:
        found.append(place)
        place = first.find(_TRUE, place + 1)
    place = second.find(_TRUE)
    while place >= 0:
        if not first[place]:
            found.append(place)
        place = second.find(_TRUE, place + 1)
    return found


def _ids(table: NDArray[np.float64], origins: NDArray[np.int64], stride: int) -> NDArray[np.int64]:
    """Numbers of the episodes in a table; below 0 where there was none yet."""
    ids: NDArray[np.int64] = origins + (table[_COUNT].astype(np.int64) - 1) * stride
    return ids
