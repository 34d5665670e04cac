"""Recording of packed rollouts step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tree
from numpy.typing import NDArray

from envfleet.rllib.rollout import PackedRollout


class RolloutRecorder:
    """Recorder of steps of N sub-environments, in arrays that are made at the first step and grow if needed.

    Args:
        expected_steps: Expected T; capacity of the first arrays.
    """

    def __init__(self, expected_steps: int) -> None:
        self._capacity = max(expected_steps, 1)
        self._columns: dict[str, Any] = {}
        self._finals: list[tuple[NDArray[np.int64], NDArray[np.int64], Any]] = []
        self.num_steps = self.num_samples = 0

    def begin(self, columns: dict[str, Any]) -> None:
        """Write the inputs of a step, before the environments overwrite these arrays.

        Args:
            columns: Arrays `(N, …)`, nested or not, with the same names in each step.
        """
        if self.num_steps == self._capacity:
            self._capacity *= 2
            self._columns = tree.map_structure(self._grown, self._columns)
        self._put(columns)

    def end(self, valid: NDArray[np.bool_], columns: dict[str, Any]) -> None:
        """Write the results of the step that was begun.

        Args:
            valid: Rows that are samples, bool `(N,)`.
            columns: Arrays, as in `begin`.
        """
        self._put({"valid": valid, **columns})
        self.num_steps += 1
        self.num_samples += int(np.count_nonzero(valid))

    def _put(self, columns: dict[str, Any]) -> None:
        for name, column in columns.items():
            if name not in self._columns:
                self._columns[name] = tree.map_structure(self._room, column)
            if isinstance(column, np.ndarray):  # the common case: traversing a tree takes longer than writing
                self._columns[name][self.num_steps] = column
            else:
                tree.map_structure(self._write, self._columns[name], column)

    def add_finals(self, rows: NDArray[np.int64], observations: Any) -> None:
        """Write the hidden last observations of episodes that were truncated in the last written step.

        Args:
            rows: Sub-environments of these episodes, `(K,)`.
            observations: Last observations, `(K, …)`.
        """
        steps = np.full(len(rows), self.num_steps - 1)
        self._finals.append((steps, rows, tree.map_structure(np.array, observations)))

    def finish(self, last_observations: Any) -> PackedRollout:
        """Return the rollout that was written.

        Args:
            last_observations: After the last step, `(N, …)`.
        """
        columns = tree.map_structure(lambda column: column[: self.num_steps], self._columns)
        none = (
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            tree.map_structure(lambda last: last[:0], last_observations),
        )
        steps, rows, finals = tree.map_structure(lambda *parts: np.concatenate(parts), none, *self._finals)
        valid, last_observations = columns.pop("valid"), tree.map_structure(np.array, last_observations)
        return PackedRollout(columns, valid, last_observations, steps, rows, finals)

    def _room(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.empty((self._capacity, *np.shape(column)), np.asarray(column).dtype)

    def _grown(self, column: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([column, np.empty_like(column)])

    def _write(self, column: NDArray[Any], row: NDArray[Any]) -> None:
        column[self.num_steps] = row
