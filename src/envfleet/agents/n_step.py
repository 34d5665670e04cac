"""Transitions over n steps, for many sub-environments at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        self._counts = np.zeros(num_envs, np.int64)
        # Of sub-environment i, row [k, i] of each is its k-th oldest transition that has not left.
        self._columns: dict[str, NDArray[Any]] = {}
        self._powers = gamma ** np.arange(num_steps + 1, dtype=np.float64)

    def push(self, transitions: Transitions) -> Discounted:
        """Take one step's transitions, at most one per sub-environment; return those that leave."""
        gamma, ended = self.gamma, transitions.ended
        if self.num_steps == 1:
            discounts = np.where(transitions.terminated, 0.0, gamma)
            return Discounted(transitions.observations, transitions.actions, transitions.rewards, discounts,
                              transitions.next_observations)  # fmt: skip
        rows = transitions.env_indices
        self._store(transitions)
        counts = self._counts[rows]
        is_full = counts == self.num_steps
        # The oldest of those that are full, and all that an ended episode still holds.
        leaving = [is_full | ended, *(ended & (counts > age) for age in range(1, self.num_steps))]
        parts = [
            self._leave(age, rows, transitions.terminated, chosen)
            for age, chosen in enumerate(leaving)
            if not age or chosen.any()
        ]
        going_on = rows[is_full & ~ended]
        for column in self._columns.values():
            column[:-1, going_on] = column[1:, going_on]
        self._counts[going_on] -= 1
        self._counts[rows[ended]] = 0
        return _join(parts)

    def cut(self, env_indices: NDArray[Any]) -> Discounted | None:
        """End running episodes that nobody will finish, as truncated after their last step; return what leaves."""
        rows = np.asarray(env_indices, np.int64)
        if not self._columns or not self._counts[rows].any():
            return None
        nobody = np.zeros(len(rows), np.bool_)
        parts = [self._leave(age, rows, nobody, self._counts[rows] > age) for age in range(self.num_steps)]
        self._counts[rows] = 0
        return _join(parts)

    def _store(self, transitions: Transitions) -> None:
        names = ("observations", "actions", "rewards", "next_observations")
        if not self._columns:
            arrays = {name: np.asarray(getattr(transitions, name)) for name in names}
            shape = (self.num_steps, self.num_envs)
            self._columns = {name: np.zeros((*shape, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        rows = transitions.env_indices
        for name in names:
            self._columns[name][self._counts[rows], rows] = getattr(transitions, name)
        self._counts[rows] += 1

    def _leave(
        self, age: int, rows: NDArray[np.int64], terminated: NDArray[np.bool_], chosen: NDArray[np.bool_]
    ) -> Discounted:
        """Return the transitions of place `age` of the chosen rows, with all rewards that came since."""
        rows, terminated = rows[chosen], terminated[chosen]
        steps = self._counts[rows] - age
        rewards = self._columns["rewards"][:, rows]
        ages = np.arange(self.num_steps)[:, None]
        weights = np.where((ages >= age) & (ages < self._counts[rows]), self._powers[np.maximum(ages - age, 0)], 0.0)
        return Discounted(
            observations=self._columns["observations"][age, rows],
            actions=self._columns["actions"][age, rows],
            rewards=(weights * rewards).sum(axis=0),
            discounts=np.where(terminated, 0.0, self._powers[steps]),
            next_observations=self._columns["next_observations"][self._counts[rows] - 1, rows],
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"counts": self._counts.copy(), "columns": {name: array.copy() for name, array in self._columns.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another was."""
        self._counts = as_array(state["counts"])
        self._columns = {name: as_array(array) for name, array in state["columns"].items()}


def _join(parts: list[Discounted]) -> Discounted:
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in dataclasses.fields(Discounted)]
    return Discounted(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
