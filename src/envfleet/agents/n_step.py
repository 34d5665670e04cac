"""Transitions over n steps, for many sub-environments at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.agents.compiled import compiled
from envfleet.agents.saving import as_array
from envfleet.agents.transitions import Transitions


@dataclasses.dataclass(frozen=True, eq=False)
class Discounted:
    """M transitions whose value is `rewards + discounts * V(next_observations)`.

    Attributes:
        observations: `(M, …)`.
        actions: `(M, …)`.
        rewards: Discounted sum over up to n steps, float64 `(M,)`.
        discounts: `gamma ** steps`, 0 where the episode terminated, float64 `(M,)`.
        next_observations: After those steps, `(M, …)`.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    discounts: NDArray[np.float64]
    next_observations: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rewards)


class NStep:
    """Joins up to n consecutive transitions of each sub-environment into one (Sutton 1988).

    A transition leaves when n rewards have been seen, or when its episode ends: then with fewer, and the last
    observation's value counts unless the episode terminated.

    Args:
        num_envs: Sub-environments.
        num_steps: n; 1 passes transitions on as they are.
        gamma: Discount per step.
    """

    def __init__(self, num_envs: int, num_steps: int, gamma: float) -> None:
        self.num_envs, self.num_steps, self.gamma = num_envs, num_steps, gamma
        self._powers = gamma ** np.arange(num_steps + 1, dtype=np.float64)
        self._counts = np.zeros(num_envs, np.int64)
        # Of sub-environment i, row [k, i] is its k-th oldest transition that has not left; [0, i] its last observation.
        self._kept: _Columns | None = None
        self._shapes: list[tuple[int, ...]] = []

    def push(self, transitions: Transitions, actions: NDArray[Any]) -> Discounted:
        """Take one step's transitions, at most one per sub-environment, with actions as they are learned.

        Returns:
            Those that leave.
        """
        if self.num_steps == 1:
            discounts = np.where(transitions.terminated, 0.0, self.gamma)
            return Discounted(transitions.observations, actions, transitions.rewards, discounts,
                              transitions.next_observations)  # fmt: skip
        count, rows = len(transitions), transitions.env_indices
        arrays = [transitions.observations, actions, transitions.rewards, transitions.next_observations]
        if self._kept is None:
            self._shapes = [array.shape[1:] for array in arrays]
            forms = [(self.num_envs, math.prod(shape)) for shape in self._shapes]  # of what belongs to a transition
            lengths = (self.num_steps, self.num_steps, self.num_steps, 1)
            self._kept = _Columns(
                *(np.zeros((n, *form), array.dtype) for n, form, array in zip(lengths, forms, arrays, strict=True))
            )
        given = [
            np.ascontiguousarray(array).reshape(count, kept.shape[2])
            for array, kept in zip(arrays, self._kept, strict=True)
        ]
        _store(rows, self._counts, _Columns(*given), self._kept)
        return self._leave(self._kept, rows, transitions.terminated, transitions.ended)

    def cut(self, env_indices: NDArray[Any]) -> Discounted | None:
        """End running episodes that nobody will finish, as truncated after their last step; return what leaves."""
        rows = np.asarray(env_indices, np.int64)
        if self._kept is None or not self._counts[rows].any():
            return None
        return self._leave(self._kept, rows, np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_))

    def _leave(
        self, kept: _Columns, rows: NDArray[np.int64], terminated: NDArray[np.bool_], ended: NDArray[np.bool_]
    ) -> Discounted:
        columns = _leave(rows, terminated, ended, self._counts, self._powers, kept)
        observations, actions, rewards, discounts, next_observations = columns
        of_observation, of_action, _, _ = self._shapes
        count = len(rewards)
        return Discounted(
            observations.reshape(count, *of_observation),
            actions.reshape(count, *of_action),
            rewards,
            discounts,
            next_observations.reshape(count, *of_observation),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        columns = {} if self._kept is None else self._kept._asdict()
        return {
            "counts": self._counts.copy(),
            "columns": {name: array.copy() for name, array in columns.items()},
            "shapes": [list(shape) for shape in self._shapes],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._counts = as_array(state["counts"])
        self._shapes = [tuple(shape) for shape in state["shapes"]]
        columns = {name: as_array(column) for name, column in state["columns"].items()}
        self._kept = _Columns(**columns) if columns else None


class _Columns(NamedTuple):
    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    next_observations: NDArray[Any]


@compiled
def _store(rows: NDArray[np.int64], counts: NDArray[np.int64], given: _Columns, kept: _Columns) -> None:
    for place, row in enumerate(rows):
        count = counts[row]
        kept.observations[count, row] = given.observations[place]
        kept.actions[count, row] = given.actions[place]
        kept.rewards[count, row] = given.rewards[place]
        kept.next_observations[0, row] = given.next_observations[place]
        counts[row] = count + 1


@compiled
def _leave(
    rows: NDArray[np.int64], terminated: NDArray[np.bool_], ended: NDArray[np.bool_], counts: NDArray[np.int64],
    powers: NDArray[np.float64], kept: _Columns,
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Take out the oldest of each row that is full, and all of those that ended, the oldest of all rows first."""
    observations, actions, rewards, last = kept
    num_steps, total = len(observations), 0
    for place, row in enumerate(rows):
        total += counts[row] if ended[place] else int(counts[row] == num_steps)
    left = np.empty((total, observations.shape[2]), observations.dtype)
    left_actions = np.empty((total, actions.shape[2]), actions.dtype)
    left_next = np.empty((total, last.shape[2]), last.dtype)
    sums, discounts, number = np.zeros(total), np.zeros(total), 0
    for age in range(num_steps):
        for place, row in enumerate(rows):
            count = counts[row]
            if not (ended[place] and count > age) and not (age == 0 and count == num_steps):
                continue
            for step in range(age, count):
                sums[number] += powers[step - age] * rewards[step, row, 0]
            discounts[number] = 0.0 if terminated[place] else powers[count - age]
            left[number], left_actions[number] = observations[age, row], actions[age, row]
            left_next[number] = last[0, row]
            number += 1
    for place, row in enumerate(rows):
        if ended[place]:
            counts[row] = 0
        elif counts[row] == num_steps:
            for step in range(num_steps - 1):
                observations[step, row], actions[step, row] = observations[step + 1, row], actions[step + 1, row]
                rewards[step, row] = rewards[step + 1, row]
            counts[row] -= 1
    return left, left_actions, sums, discounts, left_next
