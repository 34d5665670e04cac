"""Results of a fleet: those that calls have returned, and those that workers write.

Problem. A worker may be lost while it writes. Its rows must then end with the last observation that the caller saw.

Solution. There are two generations of the outputs. One is shown: it holds what calls have returned, among it the last
observation of each row. Workers write into the other one, which becomes the shown one, as a whole or by rows, once
their work is complete.

See ADR 19.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, ObservationError
from envfleet.fleet.engine import Rows
from envfleet.fleet.layout import SpaceLayout
from envfleet.workers.arrays import FleetArrays, Outputs

Objects = dict[int, list[Any]]
"""Observation leaves that are Python objects, by row."""


class Results:
    """Both generations of a fleet's outputs, and observation leaves that are Python objects.

    Args:
        arrays: Arrays of the fleet.
        layout: Layout of one sub-environment's observations.
        num_envs: Number of sub-environments.
        copy: True if callers get copies.

    Attributes:
        outputs: Both generations.
        generation: Index of the generation that is shown; workers write into the other one.
    """

    def __init__(self, arrays: FleetArrays, layout: SpaceLayout, num_envs: int, *, copy: bool) -> None:
        self.outputs, self._layout, self._num_envs, self._copy = arrays.outputs, layout, num_envs, copy
        self._objects: list[list[Any]] = [[None] * num_envs for _ in range(layout.num_objects)]
        self._final_objects: list[list[Any]] = [[None] * num_envs for _ in range(layout.num_objects)]
        self.generation = 0

    @property
    def shown(self) -> Outputs:
        """Outputs that calls have returned."""
        return self.outputs[self.generation]

    @property
    def written(self) -> Outputs:
        """Outputs that workers write."""
        return self.outputs[1 - self.generation]

    def observe(self, rows: Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations, or those of episodes that ended in the last step."""
        out = self.outputs[self.generation]
        leaves, objects = (out.finals, self._final_objects) if final else (out.observations, self._objects)
        if rows is not None:
            return self._layout.batch([leaf[rows] for leaf in leaves], [[leaf[i] for i in rows] for leaf in objects])
        if self._layout.is_array:
            return leaves[0].copy() if self._copy else leaves[0]
        return self._layout.batch([leaf.copy() for leaf in leaves] if self._copy else leaves, objects)

    def observation_of(self, row: int, *, final: bool = False) -> Any:
        """Return a private copy of one row's last observation."""
        if final:
            return self._layout.row(self.shown.finals, self._final_objects, row)
        return self._layout.row(self.shown.observations, self._objects, row)

    def show(self, rows: Rows | None, ended: Rows | Sequence[int] = (), *, in_place: bool = True) -> None:
        """Show what workers have written.

        Args:
            rows: Rows that are complete; `None` for all.
            ended: Rows with a last observation.
            in_place: True to copy the rows to the shown generation; False to keep views valid that the caller has.
        """
        if rows is not None:
            shown, written = self.shown, self.written
            if in_place:
                _copy_rows(written.observations, shown.observations, rows)
                _copy_rows(written.finals, shown.finals, ended)
                return
            rest = np.delete(np.arange(self._num_envs), rows)
            _copy_rows(shown.observations, written.observations, rest)
            _copy_rows(shown.finals, written.finals, rest)
        self.generation = 1 - self.generation

    def repeat(self, rows: list[int], *, is_same_step: bool) -> Objects:
        """End episodes with the last observations that were shown; return leaves that are objects."""
        shown, written = self.shown, self.written
        ends = written.finals if is_same_step else written.observations
        for end, last in zip(ends, shown.observations, strict=True):
            end[rows] = last[rows]
        return {row: [leaf[row] for leaf in self._objects] for row in rows if self._objects}

    def write_states(self, observations: Mapping[int, Any]) -> Objects:
        """Write the observations of saved states by row, to be shown later; return leaves that are objects.

        Raises:
            InvalidArgument: An observation is not in the space.
        """
        objects: list[list[Any]] = [[None] * self._num_envs for _ in self._objects]
        write = self._layout.writer(self.written.observations, objects)
        for row, observation in observations.items():
            try:
                write(row, observation)
            except ObservationError as error:
                raise InvalidArgument(
                    f"the state for sub-environment {row} does not fit ({error}): pass states of the same environment"
                ) from error
        return {row: [leaf[row] for leaf in objects] for row in observations if objects}

    def assign(self, objects: Mapping[int, list[Any]], *, final: bool = False) -> None:
        """Set leaves that are objects."""
        columns = self._final_objects if final else self._objects
        for row, values in objects.items():
            for column, value in zip(columns, values, strict=True):
                column[row] = value


def _copy_rows(sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]], rows: Any) -> None:
    for source, target in zip(sources, targets, strict=True):
        target[rows] = source[rows]
