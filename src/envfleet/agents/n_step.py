"""Transitions over n steps, for many sub-environments at once, on their way into a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents.compiled import compiled, part
from envfleet.agents.replay import ReplayBuffer
from envfleet.agents.saving import as_array
from envfleet.agents.transitions import Transitions
from envfleet.errors import InvalidArgument


class NStepWriter:
    """Joins up to n consecutive transitions of each sub-environment into one (Sutton 1988), and adds it to a buffer.

    A transition is added when n rewards have been seen, or when its episode ends: then with fewer, and the last
    observation's value counts unless the episode terminated. One compiled call does all of it.

    Args:
        replay: The buffer.
        num_envs: Sub-environments.
        num_steps: n; 1 adds transitions as they are.
        gamma: Discount per step.
    """

    def __init__(self, replay: ReplayBuffer, num_envs: int, num_steps: int, gamma: float) -> None:
        self._replay, self._num_steps = replay, num_steps
        self._powers = gamma ** np.arange(num_steps + 1, dtype=np.float64)
        observation, action, *_ = replay.row_forms
        forms = ((num_steps, observation), (num_steps, action), (num_steps, (1, np.float64)), (1, observation))
        self._counts = np.zeros(num_envs, np.int64)
        # Observations, actions and rewards of what was not added yet, `(n, num_envs, size)` each; row [k, i] is the
        # k-th oldest of sub-environment i. Last come the latest next observations, `(1, num_envs, size)`.
        self._kept = tuple(np.zeros((steps, num_envs, size), dtype) for steps, (size, dtype) in forms)
        self._nothing = tuple(kept[0, :0] for kept in self._kept)

    def write(self, transitions: Transitions, actions: NDArray[Any]) -> None:
        """Take one step's transitions, at most one per sub-environment, with actions as they are learned."""
        given = (transitions.observations, actions, transitions.rewards, transitions.next_observations)
        rows = tuple(
            np.ascontiguousarray(array, kept.dtype).reshape(len(array), kept.shape[2])
            for array, kept in zip(given, self._kept, strict=True)
        )
        ends = (transitions.terminated, transitions.ended)
        if self._num_steps > 1:
            if (most := transitions.env_indices.max(initial=0)) >= len(self._counts):
                raise InvalidArgument(f"transitions of sub-environment {most}: make the agent with num_envs={most + 1}")
            self._add(transitions.env_indices, ends, rows, self._kept, self._counts)
        else:  # as if each had waited in a row of its own
            count, kept = len(transitions), tuple(array[None] for array in rows)
            self._add(np.arange(count), ends, self._nothing, kept, np.ones(count, np.int64))

    def cut(self, env_indices: NDArray[np.int64]) -> None:
        """End running episodes that nobody will finish, as truncated after their last step."""
        if self._counts[env_indices].any():
            count = len(env_indices)
            ends = (np.zeros(count, np.bool_), np.ones(count, np.bool_))
            self._add(env_indices, ends, self._nothing, self._kept, self._counts)

    def _add(
        self, env_indices: NDArray[np.int64], ends: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        given: tuple[NDArray[Any], ...], kept: tuple[NDArray[Any], ...], counts: NDArray[np.int64],
    ) -> None:  # fmt: skip
        arrays, place = self._replay.room(len(env_indices) * self._num_steps)
        self._replay.add(arrays, _add(env_indices, ends, given, kept, counts, self._powers, arrays, place))

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes."""
        return {"counts": self._counts.copy(), "kept": [array.copy() for array in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another."""
        self._counts, self._kept = as_array(state["counts"]), tuple(map(as_array, state["kept"]))


@part
def _copy(values: NDArray[Any], to: NDArray[Any]) -> None:
    """Copy a row; an assignment of numba's takes many times as long."""
    for place in range(len(values)):
        to[place] = values[place]


@compiled
def _add(
    rows: NDArray[np.int64], ends: tuple[NDArray[np.bool_], NDArray[np.bool_]], given: tuple[NDArray[Any], ...],
    kept: tuple[NDArray[Any], ...], counts: NDArray[np.int64], powers: NDArray[np.float64],
    held: tuple[NDArray[Any], ...], place: int,
) -> int:  # fmt: skip
    """Keep what is given, then add the oldest of each row that is full, and all of those that ended; return how many.

    They are held from `place` on, around the end, the oldest of all rows first.
    """
    terminated, ended = ends
    observations, actions, rewards, following = kept
    held_observations, held_actions, held_rewards, held_discounts, held_following = held
    num_steps, capacity, number = len(rewards), len(held_rewards), 0
    for index in range(len(given[0])):
        row = rows[index]
        age = counts[row]
        _copy(given[0][index], observations[age, row])
        _copy(given[1][index], actions[age, row])
        rewards[age, row, 0] = given[2][index, 0]
        _copy(given[3][index], following[0, row])
        counts[row] = age + 1
    for age in range(num_steps):
        for index, row in enumerate(rows):
            count = counts[row]
            if age >= (count if ended[index] else count // num_steps):
                continue
            total, to = 0.0, (place + number) % capacity
            for step in range(age, count):
                total += powers[step - age] * rewards[step, row, 0]
            _copy(observations[age, row], held_observations[to])
            _copy(actions[age, row], held_actions[to])
            held_rewards[to, 0], held_discounts[to, 0] = total, 0.0 if terminated[index] else powers[count - age]
            _copy(following[0, row], held_following[to])
            number += 1
    for index, row in enumerate(rows):
        if ended[index]:
            counts[row] = 0
        elif counts[row] == num_steps:  # the oldest was added, and what stays moves up
            counts[row] -= 1
            for step in range(counts[row]):
                _copy(observations[step + 1, row], observations[step, row])
                _copy(actions[step + 1, row], actions[step, row])
                rewards[step, row, 0] = rewards[step + 1, row, 0]
    return number
