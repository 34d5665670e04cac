"""n-step transitions of many sub-environments, written to a replay buffer."""

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
    """Combine up to n consecutive transitions of each sub-environment into one (Sutton 1988) and add it to a buffer.

    A transition is added after n rewards, or with fewer at the end of its episode; then the value of the last
    observation counts unless the episode terminated. It is one compiled call.

    Args:
        replay: Replay buffer.
        num_envs: Number of sub-environments.
        num_steps: Number n of steps; 1 adds transitions unchanged.
        gamma: Discount per step.
    """

    def __init__(self, replay: ReplayBuffer, num_envs: int, num_steps: int, gamma: float) -> None:
        self._replay, self._num_steps = replay, num_steps
        self._powers = gamma ** np.arange(num_steps + 1, dtype=np.float64)
        observation, action, *_ = replay.row_forms
        forms = ((num_steps, observation), (num_steps, action), (num_steps, (1, np.float64)), (1, observation))
        self._counts = np.zeros(num_envs, np.int64)
        # Observations, actions and rewards of steps that were not added yet, `(n, num_envs, size)` each; row [k, i] is
        # the k-th oldest of sub-environment i. The last array has the latest next observations, `(1, num_envs, size)`.
        self._kept = tuple(np.zeros((steps, num_envs, size), dtype) for steps, (size, dtype) in forms)
        self._nothing = tuple(kept[0, :0] for kept in self._kept)

    def write(self, transitions: Transitions, actions: NDArray[Any]) -> None:
        """Add the transitions of one step, at most one per sub-environment, with encoded actions."""
        columns = (transitions.observations, actions, transitions.rewards, transitions.next_observations)
        rows = tuple(
            np.ascontiguousarray(array, kept.dtype).reshape(len(array), kept.shape[2])
            for array, kept in zip(columns, self._kept, strict=True)
        )
        ends = (transitions.terminated, transitions.ended)
        if self._num_steps > 1:
            if (most := transitions.env_indices.max(initial=0)) >= len(self._counts):
                raise InvalidArgument(
                    f"a transition of sub-environment {most}, expected 0 to {len(self._counts) - 1}: create the agent "
                    f"with num_envs={most + 1}"
                )
            self._add(transitions.env_indices, ends, rows, self._kept, self._counts)
        else:  # every transition is complete
            count, kept = len(transitions), tuple(array[None] for array in rows)
            self._add(np.arange(count), ends, self._nothing, kept, np.ones(count, np.int64))

    def cut(self, env_indices: NDArray[np.int64]) -> None:
        """End unfinished episodes as truncated after their last step."""
        if self._counts[env_indices].any():
            count = len(env_indices)
            ends = (np.zeros(count, np.bool_), np.ones(count, np.bool_))
            self._add(env_indices, ends, self._nothing, self._kept, self._counts)

    def _add(
        self, env_indices: NDArray[np.int64], ends: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        rows: tuple[NDArray[Any], ...], kept: tuple[NDArray[Any], ...], counts: NDArray[np.int64],
    ) -> None:  # fmt: skip
        arrays, place = self._replay.room(len(env_indices) * self._num_steps)
        self._replay.add(arrays, _add(env_indices, ends, rows, kept, counts, self._powers, arrays, place))

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`."""
        return {"counts": self._counts.copy(), "kept": [array.copy() for array in self._kept]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self._counts, self._kept = as_array(state["counts"]), tuple(map(as_array, state["kept"]))


@part
def _copy(values: NDArray[Any], to: NDArray[Any]) -> None:
    """Copy a row by a loop, since numba's assignment of slices is much slower."""
    for place in range(len(values)):
        to[place] = values[place]


@compiled
def _add(
    rows: NDArray[np.int64], ends: tuple[NDArray[np.bool_], NDArray[np.bool_]], new: tuple[NDArray[Any], ...],
    kept: tuple[NDArray[Any], ...], counts: NDArray[np.int64], powers: NDArray[np.float64],
    held: tuple[NDArray[Any], ...], place: int,
) -> int:  # fmt: skip
    """Keep new steps, then write the oldest of each full row and all of each ended row; return the number written.

    They are written to `held` from `place` on, wrapping around at the end, oldest first.
    """
    terminated, ended = ends
    observations, actions, rewards, following = kept
    held_observations, held_actions, held_rewards, held_discounts, held_following = held
    num_steps, capacity, number = len(rewards), len(held_rewards), 0
    for index in range(len(new[0])):
        row = rows[index]
        age = counts[row]
        _copy(new[0][index], observations[age, row])
        _copy(new[1][index], actions[age, row])
        rewards[age, row, 0] = new[2][index, 0]
        _copy(new[3][index], following[0, row])
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
