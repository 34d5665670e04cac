"""States that participants saved: they stay with the service, and only a number of each is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch_base import BatchState
from envfleet.service.hosting.meter import Meter

_FEWEST_KEPT = 64  # sub-environments, however few the fleet has


class Saved(NamedTuple):
    """What was saved at once: some sub-environments, and what their episodes amounted to."""

    states: Any  # as the fleet's `get_state` returned them
    columns: dict[str, NDArray[Any]]

    @property
    def num_rows(self) -> int:
        """How many sub-environments."""
        return len(self.columns["is_running"])

    def pick(self, places: NDArray[np.int64]) -> Any:
        """Return the states of some of them."""
        if isinstance(self.states, list):
            return [self.states[place] for place in places.tolist()]
        return self.states[places]


class SavedStates:
    """The states that were saved last of a fleet, twice as many as it has sub-environments.

    Args:
        num_envs: Of the fleet.
    """

    def __init__(self, num_envs: int) -> None:
        self._most = max(2 * num_envs, _FEWEST_KEPT)
        self._kept: dict[int, Saved] = {}

    def keep(self, number: int, fleet: Any, rows: NDArray[np.int64], meter: Meter) -> None:
        """Save some sub-environments, and forget the oldest where there are too many.

        Args:
            number: By which they are found again.
            fleet: Whose.
            rows: Which.
            meter: Of its episodes.
        """
        self._kept[number] = Saved(fleet.get_state(rows), {name: each[rows] for name, each in meter.columns.items()})
        while sum(saved.num_rows for saved in self._kept.values()) > self._most:
            del self._kept[min(self._kept)]

    def check(self, states: Sequence[tuple[int, int]], count: int) -> None:
        """Check that states are kept.

        Args:
            states: Of each the number of what was saved, and the place in it.
            count: How many they should be.

        Raises:
            InvalidArgument: They are not.
        """
        if len(states) != count:
            raise InvalidArgument(f"states has {len(states)} entries, expected one for each of {count} rows")
        for number, place in states:
            if number not in self._kept or not 0 <= place < self._kept[number].num_rows:
                raise InvalidArgument(
                    f"state {number}.{place} is not kept: a fleet keeps the states of the last {self._most} "
                    "sub-environments that it saved; save it again"
                )

    def bring(self, fleet: Any, rows: NDArray[np.int64], states: Sequence[tuple[int, int]], meter: Meter) -> Any:
        """Put saved sub-environments into some places; their episodes go on.

        Args:
            fleet: Whose.
            rows: Where to.
            states: For each of them, as `check` takes them.
            meter: Of its episodes.

        Returns:
            Their last observations.
        """
        numbers, places = np.array(states, np.int64).T
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            saved = self._kept[number]
            fleet.set_state(saved.pick(places[mine]), rows[mine])
            for name, column in meter.columns.items():
                column[rows[mine]] = saved.columns[name][places[mine]]
        return fleet.engine.observe(rows)

    # ------------------------------------------------------------------ in snapshots, of kernels

    def to_plain(self) -> dict[str, Any]:
        """Return all of them as values that `pack` takes."""
        return {str(number): [state_to_plain(each.states), each.columns] for number, each in self._kept.items()}

    def load_plain(self, plain: Mapping[str, Any], forms: Mapping[str, NDArray[Any]]) -> None:
        """Undo `to_plain`; `forms` are arrays like those of a state."""
        self._kept = {
            int(number): Saved(state_from_plain(state, forms), dict(columns))
            for number, (state, columns) in plain.items()
        }


def state_to_plain(state: BatchState) -> dict[str, Any]:
    """Return a state of a kernel's fleet as values that `pack` takes."""
    return {"arrays": {name: _plain_bytes(each) for name, each in state.arrays.items()}, "params": dict(state.params)}


def state_from_plain(plain: Mapping[str, Any], forms: Mapping[str, NDArray[Any]]) -> BatchState:
    """Return the inverse of `state_to_plain`; `forms` are arrays like those of the state, of any number of rows."""
    arrays = {
        name: array.view(forms[name].dtype).reshape(-1, *forms[name].shape[1:])
        for name, array in plain["arrays"].items()
    }
    return BatchState(arrays, plain["params"])


def _plain_bytes(array: NDArray[Any]) -> NDArray[Any]:
    """Records as bytes, which can be packed."""
    return np.ascontiguousarray(array).view(np.uint8) if array.dtype.kind == "V" else array
