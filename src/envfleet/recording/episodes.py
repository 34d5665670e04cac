"""Steps of a fleet, cut into whole episodes.

Problem. Rows of a fleet step together, but their episodes begin and end at different times, and after partial steps
rows have made different numbers of steps. Recording may cost a step about 5 µs.

What does not work. A list of transitions per row costs several microseconds per row and step.

Solution. A *slab* holds the last steps of all rows, `(C, N, …)`. A step of all rows is one assignment per array. An
episode is a slice of one column, copied when it ends. When the slab is full, the slices of unfinished episodes are set
aside and the slab begins again.

What remains. An unfinished episode is in memory as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.fleet.engine import Traits
from envfleet.fleet.layout import SpaceLayout

_SLAB_BYTES = 16 << 20
_MOST_STEPS = 512
_TRUE = b"\x01"

Array = NDArray[Any]
Leaves = Sequence[Any]


@dataclasses.dataclass(frozen=True)
class Episode:
    """One episode of T steps.

    Attributes:
        observations: Observations per leaf of their space, `(T + 1, …)`, the last one of the episode included.
        actions: Actions per leaf of their space, `(T, …)`.
        rewards: float64 `(T,)`.
        is_terminated: True if the last step terminated the episode.
        is_truncated: True if the last step truncated it, or it was cut.
        seed: Seed that it was reset with, if any.
    """

    observations: list[Array]
    actions: list[Array]
    rewards: Array
    is_terminated: bool
    is_truncated: bool
    seed: int | None

    def __len__(self) -> int:
        return len(self.rewards)


class EpisodeCutter:
    """Cuts steps of all rows into episodes; owns the arrays.

    Args:
        traits: Traits of the fleet.
        layouts: Layouts of observations and of actions.
        write: Function that is called with each episode; a row is ready for the next one before the call.
        ended: Rows that await a reset after the end of an episode, bool `(N,)`.
    """

    def __init__(
        self,
        traits: Traits,
        layouts: tuple[SpaceLayout, SpaceLayout],
        write: Callable[[Episode], None],
        ended: NDArray[np.bool_],
    ) -> None:
        num_envs, self._write, self._mode = traits.num_envs, write, traits.autoreset_mode
        self._layouts, self._all = layouts, np.arange(num_envs)
        forms = [[(leaf.shape, leaf.dtype) for leaf in layout.leaves] for layout in layouts]
        row_bytes = sum(int(np.prod(shape)) * dtype.itemsize for form in forms for shape, dtype in form) + 8
        self._size = max(2, min(_MOST_STEPS, _SLAB_BYTES // (row_bytes * num_envs)))
        self._observations = [np.zeros((self._size + 1, num_envs, *shape), dtype) for shape, dtype in forms[0]]
        self._actions = [np.zeros((self._size, num_envs, *shape), dtype) for shape, dtype in forms[1]]
        self._rewards = np.zeros((self._size, num_envs))
        self._sent = [np.zeros((num_envs, *shape), dtype) for shape, dtype in forms[1]]
        # Steps of each row in the slab; `_time` is that of all rows while they are equal.
        self._times, self._time = np.zeros(num_envs, np.int64), 0
        self._is_even = True
        self._is_torn = False  # True after an interruption in the middle of a change: what is unfinished is dropped
        # Of the episode of each row: the time at which it begins in the slab (-1: none is recorded), earlier slices.
        self._begins = [-1] * num_envs
        self._slices: list[list[tuple[list[Array], list[Array], Array]]] = [[] for _ in range(num_envs)]
        self._seeds: list[int | None] = [None] * num_envs
        is_next_step = self._mode is AutoresetMode.NEXT_STEP
        self._awaiting = {*np.flatnonzero(ended).tolist()} if is_next_step else set[int]()

    def begin(self, observations: Any, rows: Array | None, seeds: Sequence[int | None]) -> None:
        """Begin new episodes in rows that were reset; what they recorded before is cut.

        Args:
            observations: First observations of these rows.
            rows: The rows; `None` for all.
            seeds: Seed of each row, or `None`.
        """
        which = self._all if rows is None else rows
        self.cut(which)
        self._is_torn = True
        if rows is None:
            self._times[:], self._time, self._is_even = 0, 0, True
        times = self._now()[which]
        for array, leaf in zip(self._observations, self._layouts[0].apart(observations), strict=True):
            array[times, which] = leaf
        for row, time, seed in zip(which.tolist(), times.tolist(), seeds, strict=True):
            self._open(row, time, seed)
        self._awaiting.difference_update(which.tolist())
        self._is_torn = False

    def cut(self, rows: Array | None = None) -> None:
        """End the running episodes of some rows, or of all, as truncated."""
        if self._is_torn:
            self._begins, self._slices = [-1] * len(self._all), [[] for _ in self._all]
        times = self._now().tolist()
        for row in (self._all if rows is None else rows).tolist():
            self._end(row, times[row], is_truncated=True)

    def send(self, actions: Leaves, rows: Array | None) -> None:
        """Keep the actions of a step until its results arrive."""
        for array, leaf in zip(self._sent, actions, strict=True):
            array[slice(None) if rows is None else rows] = leaf

    def sent(self, rows: Array) -> list[Array]:
        """Return the actions that were sent for `rows`, per leaf."""
        return [array[rows] for array in self._sent]

    def step(
        self,
        actions: Leaves,
        observations: Any,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        find_finals: Callable[[Array], Any],
        failed: Array | None = None,
        rows: Array | None = None,
    ) -> None:
        """Add a step of all rows, or of some `rows`.

        Args:
            actions: Actions per leaf, `(B, …)`.
            observations: Observations that the step returned, `(B, …)`, nested as their space.
            rewards: Rewards, `(B,)`.
            terminated: Ends by termination, bool `(B,)`.
            truncated: Ends by truncation, bool `(B,)`.
            find_finals: Function that returns the last observations of ended episodes by their indices among the B
                rows, nested; called in `SAME_STEP` only.
            failed: Rows with a failed environment, bool `(B,)`: their last step is not a transition.
            rows: The B rows; `None` for all.
        """
        leaves = self._layouts[0].apart(observations)
        self._is_torn = True
        if rows is None and self._is_even:
            time = self._time
            for array, leaf in zip(self._actions, actions, strict=True):
                array[time] = leaf
            for array, leaf in zip(self._observations, leaves, strict=True):
                array[time + 1] = leaf
            self._rewards[time] = rewards
            self._time = last = time + 1
        else:
            last = self._step_unevenly(actions, leaves, rewards, self._all if rows is None else rows)
        if self._awaiting:
            self._begin_reset(rows)
        if _TRUE in terminated.tobytes() or _TRUE in truncated.tobytes():
            self._on_ends(terminated, truncated, find_finals, failed, rows)
        if last == self._size:
            self._start_slab()
        self._is_torn = False

    def _on_ends(
        self,
        terminated: Array,
        truncated: Array,
        find_finals: Callable[[Array], Any],
        failed: Array | None,
        rows: Array | None,
    ) -> None:
        """End the episodes that ended in a step; arguments as for `step`."""
        places, finals = np.flatnonzero(terminated | truncated), None
        if self._mode is AutoresetMode.SAME_STEP:
            finals = self._layouts[0].apart(find_finals(places))
        times, which = self._now().tolist(), places if rows is None else rows[places]
        for k, (place, row) in enumerate(zip(places.tolist(), which.tolist(), strict=True)):
            if failed is not None and failed[place]:
                self._end(row, times[row] - 1, is_truncated=True)
            else:
                final = None if finals is None else [leaf[k] for leaf in finals]
                flags = {"is_terminated": bool(terminated[place]), "is_truncated": bool(truncated[place])}
                self._end(row, times[row], final, **flags)
            if self._mode is AutoresetMode.SAME_STEP:
                self._open(row, times[row], None)
            elif self._mode is AutoresetMode.NEXT_STEP:
                self._awaiting.add(row)

    def _now(self) -> NDArray[np.int64]:
        """Return the number of steps of each row in the slab."""
        if self._is_even:
            self._times[:] = self._time
        return self._times

    def _step_unevenly(self, actions: Leaves, leaves: Leaves, rewards: Array, rows: Array) -> int:
        times = self._now()[rows]
        for array, leaf in zip(self._actions, actions, strict=True):
            array[times, rows] = leaf
        for array, leaf in zip(self._observations, leaves, strict=True):
            array[times + 1, rows] = leaf
        self._rewards[times, rows] = rewards
        self._is_even = False
        self._times[rows] += 1
        return int(times.max()) + 1

    def _begin_reset(self, rows: Array | None) -> None:
        """Begin the episodes of rows that this step only reset (`NEXT_STEP`)."""
        times = self._now().tolist()
        for row in self._awaiting if rows is None else self._awaiting.intersection(rows.tolist()):
            self._open(row, times[row], None)
        self._awaiting.difference_update(self._all.tolist() if rows is None else rows.tolist())

    def _open(self, row: int, time: int, seed: int | None) -> None:
        self._begins[row], self._seeds[row] = time, seed

    def _slice(self, row: int, end: int) -> tuple[list[Array], list[Array], Array]:
        """Return copies of the steps of a row in the slab up to `end`, without the observation at `end`."""
        begin = self._begins[row]
        observations = [array[begin:end, row].copy() for array in self._observations]
        actions = [array[begin:end, row].copy() for array in self._actions]
        return observations, actions, self._rewards[begin:end, row].copy()

    def _end(
        self,
        row: int,
        end: int,
        final: list[Any] | None = None,
        *,
        is_terminated: bool = False,
        is_truncated: bool = False,
    ) -> None:
        """End the episode of a row at a time of the slab, and write it; `final` is its last observation if hidden."""
        begin, seed, slices = self._begins[row], self._seeds[row], self._slices[row]
        if begin < 0:
            return
        last = [array[end, row] for array in self._observations] if final is None else final
        slices.append(self._slice(row, max(begin, end)))  # the end is before the beginning if the reset was lost
        self._begins[row], self._slices[row] = -1, []
        observations = [
            np.concatenate([*parts, np.asarray(leaf, parts[0].dtype)[None]])
            for *parts, leaf in zip(*(each[0] for each in slices), last, strict=True)
        ]
        actions = [np.concatenate(parts) for parts in zip(*(each[1] for each in slices), strict=True)]
        rewards = np.concatenate([each[2] for each in slices])
        if len(rewards):
            self._write(Episode(observations, actions, rewards, is_terminated, is_truncated, seed))

    def _start_slab(self) -> None:
        """Set the steps of unfinished episodes aside, and begin at the start of the slab again."""
        times = self._now()
        for row, time in enumerate(times.tolist()):
            if self._begins[row] >= 0:
                if time > self._begins[row]:
                    self._slices[row].append(self._slice(row, time))
                self._begins[row] = 0
        for array in self._observations:
            array[0] = array[times, self._all]
        self._time, self._is_even = 0, True
