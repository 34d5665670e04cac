"""Steps of some sub-environments of a fleet, while the others stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.rows import StepResult
from envfleet.kernels.fleet import KernelFleet
from envfleet.packing.infos import take_infos


class Few:
    """Steps a few of many.

    A fleet of a kernel steps all it has: so those that are to be stepped move to a smaller fleet and back.

    Args:
        make: Makes a fleet like the one that is stepped, of so many sub-environments.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._small: KernelFleet | None = None  # of the number that was stepped last

    def step(self, fleet: Any, rows: NDArray[np.int64], actions: Any) -> StepResult:
        """Step some sub-environments.

        Args:
            fleet: Of which.
            rows: Which.
            actions: One for each.

        Returns:
            What came of it, in the order of `rows`.

        Raises:
            InvalidArgument: Actions that cannot be; nothing was stepped.
            ResetNeeded: One of them has ended and autoreset is disabled; likewise.
        """
        if not isinstance(fleet, KernelFleet):
            return _send(fleet, rows, actions)
        small = self._of(len(rows))
        small.set_state(fleet.get_state(rows))
        step = small.step(actions)
        fleet.set_state(small.get_state(), rows)
        return step

    def _of(self, count: int) -> KernelFleet:
        if self._small is None or self._small.num_envs != count:
            self.close()
            self._small = self._make(count)
        return self._small

    def close(self) -> None:
        """Release the smaller fleet."""
        if self._small is not None:
            self._small.close()
            self._small = None


def _send(fleet: Any, rows: NDArray[np.int64], actions: Any) -> StepResult:
    """Step some sub-environments of a fleet with workers, which tells of them in the order they are ready."""
    fleet.send(actions, rows)
    observations, rewards, terminated, truncated, infos, arrived = fleet.recv()
    if np.array_equal(arrived, rows):
        return observations, rewards, terminated, truncated, infos
    places = np.argsort(arrived)[np.argsort(np.argsort(rows))]  # of each of `rows` among those that arrived
    return (
        _take(observations, places),
        rewards[places],
        terminated[places],
        truncated[places],
        take_infos(infos, places),
    )


def _take(tree: Any, places: NDArray[np.int64]) -> Any:
    if isinstance(tree, dict):
        return {name: _take(part, places) for name, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_take(part, places) for part in tree)
    return tree[places]
