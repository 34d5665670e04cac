"""From the steps of a fleet to transitions: what may be learned from, in every autoreset mode."""

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
    """M transitions of as many sub-environments; none of them joins two episodes.

    Attributes:
        observations: Acted on, `(M, …)`.
        actions: `(M, …)`.
        rewards: float64 `(M,)`.
        terminated: The episode ended here and has no future, bool `(M,)`.
        truncated: The episode was cut off here: its value goes on, bool `(M,)`.
        next_observations: What the action led to, `(M, …)`; where the episode ended its last observation, never the
            first one of the next episode.
        env_indices: The sub-environment of each, int64 `(M,)`.
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
        """Return where an episode ended, bool `(M,)`."""
        return self.terminated | self.truncated


class TransitionWriter:
    """Turns consecutive steps of a fleet into transitions.

    It remembers the last observation of every sub-environment. It holds copies, so the fleet may be one with
    `copy=False`, and packs observations of Dict and Tuple spaces as agents do.

    Args:
        fleet: Whose steps; other vector environments become one by `envfleet.adopt`.

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
        """Begin episodes: after `fleet.reset`, or after a reset of some.

        Args:
            observations: The first ones, a row for each of `env_indices`.
            env_indices: Whose; `None` for all.
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

    def step(  # what a step of a fleet returns, and what it was given
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

        In `NEXT_STEP` the step after the end of an episode only resets the row, which is no transition.

        Args:
            actions: What the fleet was given, `(rows, …)`.
            observations: What it returned, likewise all that follow.
            rewards: `(rows,)`.
            terminated: `(rows,)`.
            truncated: `(rows,)`.
            infos: Ignored.
            env_indices: The sub-environment of every row; `None` for all in order.

        Returns:
            The transitions, in the order of the rows; new arrays.

        Raises:
            InvalidArgument: Before the first `reset`, or rows that do not fit.
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
