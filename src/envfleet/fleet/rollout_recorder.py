"""Recorder of rollouts, step by step; compiled rollouts of kernels write the same arrays in one call."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import OutOfMemory
from envfleet.fleet.episodes import EndedEpisodes
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.rollout import Rollout, RolloutEpisodes

_NOT_STACKED = frozenset({"final_obs", "final_info", "episode"})
_RESULTS = ("actions", "rewards", "terminated", "truncated", "is_reset")


class _EndedStep(NamedTuple):
    """Episodes that ended in one step, with their last observations and the infos of all rows."""

    step: int
    episodes: EndedEpisodes
    observations: Any
    infos: Mapping[str, Any]


class RolloutRecorder:
    """Recorder of steps of N sub-environments as a `Rollout`.

    Arrays are allocated in the shapes and dtypes of what is recorded first, and grow if there are more steps than
    expected. A step may have some of the rows only; the others are marked in `is_reset`, and have the observation of
    another row, because zeros may lie outside of the space.

    Args:
        num_steps: Expected number of steps, T.
        num_envs: Number of sub-environments, N.
        columns: Arrays to overwrite: `columns` of an earlier recorder of the same form.

    Attributes:
        num_steps: Number of steps recorded so far.
        columns: Arrays by name, `(T, N, …)`, nested as what is recorded; `"observations"` has one step more.
    """

    def __init__(self, num_steps: int, num_envs: int, columns: dict[str, Any] | None = None) -> None:
        self._capacity, self._num_envs = max(num_steps, 1), num_envs
        self.columns: dict[str, Any] = {} if columns is None else columns
        self._start()

    def _start(self) -> None:
        self.num_steps, self._has_partial_steps = 0, False
        self._infos: dict[str, Any] = {}
        self._ended: list[_EndedStep] = []

    @property
    def observations(self) -> Any:
        """Observations before the step that was begun last, `(N, …)`; a view."""
        return map_arrays(self.columns["observations"], lambda array: array[self.num_steps])

    def reserve(self, columns: Mapping[str, Any]) -> None:
        """Allocate the missing arrays of columns.

        Args:
            columns: Values of one step by name, `(rows, …)`, nested or not.

        Raises:
            OutOfMemory: There is not enough memory.
        """
        for name, values in columns.items():
            if name not in self.columns:
                self.columns[name] = map_arrays(values, functools.partial(self._allocate, name))

    def begin(self, observations: Any, rows: NDArray[np.int64] | None = None, **columns: Any) -> None:
        """Record what a step starts from, before the environments overwrite it.

        Args:
            observations: Observations of the rows, `(rows, …)`.
            rows: Sub-environments that step; `None` for all.
            **columns: Further columns, as in `end`.
        """
        if self.num_steps == self._capacity:
            self._capacity *= 2
            self.columns = {name: map_arrays(array, self._grow) for name, array in self.columns.items()}
        self._write({"observations": observations, **columns}, rows)

    def end(self, columns: Mapping[str, Any], rows: NDArray[np.int64] | None = None) -> None:
        """Record the results of the step that was begun.

        Args:
            columns: `"actions"`, `"rewards"`, `"terminated"`, `"truncated"`, perhaps `"is_reset"`, and others, which
                become `outputs`; each `(rows, …)`, with the same names in each step.
            rows: Sub-environments that stepped; `None` for all.
        """
        is_reset = np.zeros(self._num_envs if rows is None else len(rows), np.bool_)
        self._write({"is_reset": is_reset, **columns}, rows)
        if rows is not None:
            self._has_partial_steps = True
        self.num_steps += 1

    def add_infos(self, infos: Mapping[str, Any]) -> None:
        """Record the numbers among the infos of all rows in the last step; others are omitted."""
        for name, values in infos.items():
            if str(name)[:1] == "_" or name in _NOT_STACKED:
                continue
            if name not in self._infos and isinstance(values, np.ndarray):
                self._infos[name] = np.zeros((self._capacity, *values.shape), values.dtype)
            array = self._infos.get(name)
            if array is None or not _is_numeric(values, array.shape[1:]):
                self._infos[name] = None
            else:
                self._infos[name] = array.astype(np.result_type(array, values), copy=False)
                self._infos[name][self.num_steps - 1] = values

    def end_episodes(self, episodes: EndedEpisodes, observations: Any, infos: Mapping[str, Any] | None = None) -> None:
        """Record episodes that ended in the last step.

        Args:
            episodes: The episodes; `rows` are sub-environments.
            observations: Last observations of the episodes, `(E, …)`.
            infos: Last infos of all sub-environments.
        """
        self._ended.append(_EndedStep(self.num_steps - 1, episodes, map_arrays(observations, np.array), infos or {}))

    def truncate(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Mark the last step of running episodes as truncated; return the rows of these episodes.

        Args:
            rows: Sub-environments; those without a step, or with an episode that ended in it, are ignored.
        """
        if not self.num_steps:  # their last step lies in a rollout that was taken
            return rows[:0]
        flags = [self.columns[name][self.num_steps - 1] for name in ("terminated", "is_reset", "truncated")]
        running: NDArray[np.int64] = rows[~np.any(flags, axis=0)[rows]]
        flags[2][running] = True
        return running

    def take(self, last_observations: Any) -> Rollout:
        """Return the rollout of the steps so far, at least one, and begin another in new arrays.

        Args:
            last_observations: Observations after the last step, `(N, …)`.
        """
        count, columns, self.columns = self.num_steps, self.columns, {}
        observations = map_arrays(columns["observations"], functools.partial(_trim, count + 1))
        map_arrays(observations, _write_last, last_observations)
        outputs = {name: map_arrays(columns[name], functools.partial(_trim, count)) for name in columns}
        del outputs["observations"]
        results = {name: outputs.pop(name) for name in _RESULTS}
        if self._has_partial_steps:
            map_arrays(observations, functools.partial(_fill_resets, results["is_reset"]))
        infos = {name: array[:count] for name, array in self._infos.items() if array is not None}
        episodes = _join_episodes(self._ended, observations, results["rewards"], infos)
        self._start()
        gather = functools.partial(_same, episodes)  # can be pickled
        return Rollout(observations, **results, infos=infos, gather=gather, outputs=outputs)

    def _write(self, columns: Mapping[str, Any], rows: NDArray[np.int64] | None) -> None:
        self.reserve(columns)
        for name, values in columns.items():
            if rows is not None:
                is_idle = name == "is_reset"
                map_arrays(self.columns[name], functools.partial(self._write_rows, rows, is_idle), values)
            elif isinstance(values, np.ndarray):  # the common case, without a call for each array
                self.columns[name][self.num_steps] = values
            else:
                map_arrays(self.columns[name], self._write_step, values)

    def _write_step(self, column: NDArray[Any], values: NDArray[Any]) -> None:
        column[self.num_steps] = values

    def _write_rows(self, rows: NDArray[np.int64], idle: bool, column: NDArray[Any], values: NDArray[Any]) -> None:
        column[self.num_steps] = idle
        column[self.num_steps, rows] = values

    def _allocate(self, name: str, values: Any) -> NDArray[Any]:
        steps = self._capacity + (name == "observations")
        try:
            return np.empty((steps, self._num_envs, *np.shape(values)[1:]), np.asarray(values).dtype)
        except (MemoryError, ValueError) as error:
            raise OutOfMemory(
                f"not enough memory for {self._capacity} steps of {self._num_envs} sub-environments: pass fewer steps"
            ) from error

    def _grow(self, column: NDArray[Any]) -> NDArray[Any]:
        extra = np.empty((self._capacity // 2, *column.shape[1:]), column.dtype)
        return np.concatenate([column, extra])


def _same(episodes: RolloutEpisodes) -> RolloutEpisodes:
    return episodes


def _trim(count: int, array: NDArray[Any]) -> NDArray[Any]:
    return array if len(array) == count else array[:count]


def _write_last(array: NDArray[Any], last: NDArray[Any]) -> None:
    array[-1] = last


def _fill_resets(is_reset: NDArray[np.bool_], observations: NDArray[Any]) -> None:
    """Overwrite the observations of rows without a step by those of the first row with one."""
    if is_reset.any() and not is_reset.all():
        filler = observations[np.unravel_index(is_reset.argmin(), is_reset.shape)]
        observations[:-1][is_reset], observations[-1][is_reset[-1]] = filler, filler


def _is_numeric(values: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.shape == shape


def _join_rows(array: NDArray[Any], *parts: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array[0, :0], *parts])


def _join_episodes(
    ended: list[_EndedStep], observations: Any, rewards: NDArray[Any], infos: Mapping[str, NDArray[Any]]
) -> RolloutEpisodes:
    none = EndedEpisodes(*(np.zeros(0, dtype) for dtype in (np.int64, float, np.int64, float, np.int64)))
    none = none._replace(returns=np.zeros((0, *rewards.shape[2:])))
    columns = [none, *(each.episodes for each in ended)]
    rows, returns, lengths, _, ids = map(np.concatenate, zip(*columns, strict=True))
    steps = np.concatenate([none.rows, *(np.full(len(each.episodes.rows), each.step) for each in ended)])
    last_observations = map_arrays(observations, _join_rows, *(each.observations for each in ended))
    last_infos = {}
    for name, array in infos.items():
        empty = np.zeros(array.shape[1:], array.dtype)
        values_and_rows = [(each.infos.get(name, empty), each.episodes.rows) for each in ended]
        if all(_is_numeric(values, empty.shape) for values, _ in values_and_rows):
            parts = [values[ended_rows] for values, ended_rows in values_and_rows]
            last_infos[name] = np.concatenate([empty[:0], *parts])
    return RolloutEpisodes(steps, rows, returns, lengths, ids, last_observations, last_infos)
