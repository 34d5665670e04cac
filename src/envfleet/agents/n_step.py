"""Transitions over n steps, for many sub-environments at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.agents.compiled import compiled
from envfleet.agents.saving import as_array
from envfleet.agents.transitions import Transitions


class Discounted(NamedTuple):
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
        self._num_steps, self._powers = num_steps, gamma ** np.arange(num_steps + 1, dtype=np.float64)
        self._counts = np.zeros(num_envs, np.int64)
        # Observations, actions and rewards of what has not left, `(num_steps, num_envs, …)` each; row [k, i] is the
        # k-th oldest of sub-environment i. Last come the latest next observations, `(1, num_envs, …)`.
        self._kept: tuple[NDArray[Any], ...] = ()

    def push(self, transitions: Transitions, actions: NDArray[Any]) -> Discounted:
        """Take one step's transitions, at most one per sub-environment, with actions as they are learned.

        Returns:
            Those that leave.
        """
        rows, terminated = transitions.env_indices, transitions.terminated
        given = (transitions.observations, actions, transitions.rewards, transitions.next_observations)
        if self._num_steps == 1:
            return Discounted(*given[:3], np.where(terminated, 0.0, self._powers[1]), given[3])
        if not self._kept:
            n, num_envs = self._num_steps, len(self._counts)
            forms = zip((n, n, n, 1), given, strict=True)
            self._kept = tuple(np.zeros((steps, num_envs, *array.shape[1:]), array.dtype) for steps, array in forms)
        counts = self._counts[rows]
        for kept, array in zip(self._kept, given, strict=True):
            kept[counts if len(kept) > 1 else 0, rows] = array
        self._counts[rows] = counts + 1
        return Discounted(*_leave(rows, terminated, transitions.ended, self._counts, self._powers, self._kept))

    def cut(self, env_indices: NDArray[Any]) -> Discounted | None:
        """End running episodes that nobody will finish, as truncated after their last step; return what leaves."""
        rows = np.asarray(env_indices, np.int64)
        if not self._counts[rows].any():
            return None
        terminated, ended = np.zeros(len(rows), np.bool_), np.ones(len(rows), np.bool_)
        return Discounted(*_leave(rows, terminated, ended, self._counts, self._powers, self._kept))

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"counts": self._counts.copy(), "kept": [array.copy() for array in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self._counts, kept = as_array(state["counts"]), [as_array(array) for array in state["kept"]]
        rows = np.arange(len(self._counts))  # older files have the next observations of all steps
        latest = (array[np.minimum(self._counts, len(array)) - 1, rows][None] for array in kept[3:])
        self._kept = (*kept[:3], *latest)


@compiled
def _leave(
    rows: NDArray[np.int64], terminated: NDArray[np.bool_], ended: NDArray[np.bool_], counts: NDArray[np.int64],
    powers: NDArray[np.float64], kept: tuple[NDArray[Any], ...],
) -> tuple[NDArray[Any], ...]:  # fmt: skip
    """Take out the oldest of each row that is full, and all of those that ended, the oldest of all rows first."""
    rewards = kept[2]
    observations, actions, following = _flat(kept[0]), _flat(kept[1]), _flat(kept[3])
    num_steps = len(rewards)
    leaving = np.where(ended, counts[rows], counts[rows] // num_steps)
    total, number = leaving.sum(), 0
    left = np.empty((total, observations.shape[2]), observations.dtype)
    left_actions = np.empty((total, actions.shape[2]), actions.dtype)
    left_following = np.empty((total, following.shape[2]), following.dtype)
    sums, discounts = np.zeros(total), np.empty(total)
    for age in range(num_steps):
        for place, row in enumerate(rows):
            if age >= leaving[place]:
                continue
            count = counts[row]
            for step in range(age, count):
                sums[number] += powers[step - age] * rewards[step, row]
            discounts[number] = 0.0 if terminated[place] else powers[count - age]
            left[number], left_actions[number] = observations[age, row], actions[age, row]
            left_following[number] = following[0, row]
            number += 1
    for place, row in enumerate(rows):
        counts[row] -= leaving[place]
        for step in range(counts[row] if leaving[place] else 0):  # what stays moves up
            observations[step, row], actions[step, row] = observations[step + 1, row], actions[step + 1, row]
            rewards[step, row] = rewards[step + 1, row]
    return (
        left.reshape((total, *kept[0].shape[2:])), left_actions.reshape((total, *kept[1].shape[2:])), sums, discounts,
        left_following.reshape((total, *kept[3].shape[2:])),
    )  # fmt: skip


@compiled
def _flat(held: NDArray[Any]) -> NDArray[Any]:
    """Return an array with one dimension after its first two, whose rows are copied several times as fast."""
    return held.reshape(held.shape[0], held.shape[1], held.size // (held.shape[0] * held.shape[1]))
