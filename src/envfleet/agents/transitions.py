"""Transitions for learning from the steps of a fleet, in every autoreset mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.agents.packing import Packing
from envfleet.agents.saving import as_array
from envfleet.errors import InvalidArgument
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.outcomes import final_observations, find_resets


@dataclasses.dataclass(frozen=True, eq=False)
class Transitions:
    """M transitions of M sub-environments, each within one episode.

    Attributes:
        observations: Observations before the actions, `(M, …)`.
        actions: Actions, `(M, …)`.
        rewards: Rewards, float64 `(M,)`.
        terminated: True where the episode terminated, bool `(M,)`.
        truncated: True where the episode was truncated, so that the value of the next observation counts, bool `(M,)`.
        next_observations: Observations after the actions, `(M, …)`; at the end of an episode its last observation,
            never the first one of the next episode.
        env_indices: Sub-environment of each transition, int64 `(M,)`.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    next_observations: NDArray[Any]
    env_indices: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def ended(self) -> NDArray[np.bool_]:
        """True where an episode ended, bool `(M,)`."""
        return self.terminated | self.truncated


class TransitionWriter:
    """Convert consecutive steps of a fleet to transitions.

    It keeps copies of the last observations, so the fleet can have `copy=False`, and packs observations of Dict and
    Tuple spaces as agents do.

    Args:
        fleet: Fleet that is stepped; convert other vector environments with `envfleet.adopt`.

    Examples:
        >>> import envfleet
        >>> with envfleet.make("CartPole-v1", 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        ...     writer = TransitionWriter(fleet)
        ...     writer.reset(fleet.reset(seed=0)[0])
        ...     actions = fleet.action_space.sample()
        ...     len(writer.step(actions, *fleet.step(actions)))
        2
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._pack = fleet, Packing(fleet.single_observation_space).pack
        self._last: NDArray[Any] | None = None

    def reset(self, observations: Any, env_indices: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Start episodes after a reset of all or some sub-environments.

        Args:
            observations: First observations, one row per entry of `env_indices`.
            env_indices: Sub-environments that were reset; `None` for all.
        """
        firsts = self._pack(observations)
        rows, num_envs = self._rows(env_indices, len(firsts)), self._fleet.num_envs
        if self._last is None:
            if len(np.unique(rows)) < num_envs:
                raise InvalidArgument(
                    f"the first reset has {len(rows)} of {num_envs} sub-environments, expected all: reset the whole "
                    "fleet first"
                )
            self._last = np.empty((num_envs, *firsts.shape[1:]), firsts.dtype)
        self._last[rows] = firsts

    def step(  # actions and results of a step of the fleet
        self,
        actions: NDArray[Any],
        observations: Any,
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        infos: Mapping[str, Any] | None = None,
        *,
        env_indices: Sequence[int] | NDArray[Any] | None = None,
    ) -> Transitions:
        """Add the last step of the fleet, or of those sub-environments that `fleet.recv` returned.

        In `NEXT_STEP` the step after the end of an episode only resets the row, and is not a transition.

        Args:
            actions: Actions of the step, `(rows, …)`.
            observations: Observations that the step returned, `(rows, …)`.
            rewards: Rewards, `(rows,)`.
            terminated: Terminated flags, `(rows,)`.
            truncated: Truncated flags, `(rows,)`.
            infos: Ignored.
            env_indices: Sub-environment of every row; `None` for all in order.

        Returns:
            Transitions in the order of the rows, in new arrays.

        Raises:
            InvalidArgument: `reset` was not called, or the number of rows is wrong.
        """
        if self._last is None:
            raise InvalidArgument("step() before the first reset(): pass the observations of fleet.reset() to reset()")
        engine, packed = self._fleet.engine, self._pack(observations)
        rows = self._rows(env_indices, len(packed))
        flags = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        ended, following = np.flatnonzero(flags[0] | flags[1]), np.array(packed, self._last.dtype)
        if len(ended):
            following[ended] = self._pack(final_observations(engine, observations, ended, rows))
        columns = (self._last[rows], np.array(actions), np.array(rewards, np.float64), *flags, following, rows)
        self._last[rows] = packed
        is_reset = find_resets(engine, rows)
        return Transitions(*(column[~is_reset] for column in columns) if is_reset.any() else columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the last observations, for `load_state_dict`."""
        return {"last": None if self._last is None else self._last.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of another writer; the fleet must continue from the state of its fleet as well."""
        self._last = None if state["last"] is None else as_array(state["last"])

    def _rows(self, env_indices: Sequence[int] | NDArray[Any] | None, count: int) -> NDArray[np.int64]:
        rows = np.arange(self._fleet.num_envs) if env_indices is None else np.array(env_indices, np.int64)
        if rows.shape != (count,):
            raise InvalidArgument(
                f"{count} rows of observations for {rows.size} sub-environments, expected one each: pass env_indices "
                "for a part of the fleet"
            )
        return rows
