"""From the steps of a fleet to transitions: what may be learned from, in every autoreset mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.agents.saving import as_array
from envfleet.errors import InvalidArgument


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

    It remembers the last observation of every sub-environment and, in `NEXT_STEP`, which of them spend their next step
    on a reset: such a step is no transition. It holds copies, so the fleet may be one with `copy=False`.

    Args:
        num_envs: Sub-environments of the fleet.
        autoreset_mode: Of the fleet.

    Examples:
        >>> import envfleet
        >>> with envfleet.make("CartPole-v1", 2, backend="serial", autoreset_mode="SAME_STEP") as fleet:
        ...     writer = TransitionWriter(fleet.num_envs, fleet.metadata["autoreset_mode"])
        ...     writer.reset(fleet.reset(seed=0)[0])
        ...     actions = fleet.action_space.sample()
        ...     len(writer.step(actions, *fleet.step(actions), final_observations=fleet.final_observations))
        2
    """

    def __init__(self, num_envs: int, autoreset_mode: AutoresetMode) -> None:
        self.num_envs, self.autoreset_mode = num_envs, autoreset_mode
        self._last: NDArray[Any] | None = None
        self._is_awaiting = np.zeros(num_envs, np.bool_)

    def reset(self, observations: NDArray[Any], env_indices: Sequence[int] | NDArray[Any] | None = None) -> None:
        """Begin episodes: after `fleet.reset`, or after a reset of some.

        Args:
            observations: The first ones, a row for each of `env_indices`.
            env_indices: Whose; `None` for all.
        """
        rows = self._rows(env_indices, len(observations))
        if self._last is None:
            if len(np.unique(rows)) < self.num_envs:
                raise InvalidArgument(
                    f"the first reset has {len(rows)} of {self.num_envs} sub-environments, expected all: reset the "
                    "whole fleet first"
                )
            self._last = np.empty((self.num_envs, *np.shape(observations)[1:]), np.asarray(observations).dtype)
        self._last[rows] = observations
        self._is_awaiting[rows] = False

    def step(  # what a step of a fleet returns, and what it was given
        self,
        actions: NDArray[Any],
        observations: NDArray[Any],
        rewards: NDArray[Any],
        terminated: NDArray[Any],
        truncated: NDArray[Any],
        infos: Mapping[str, Any],
        *,
        env_indices: Sequence[int] | NDArray[Any] | None = None,
        final_observations: NDArray[Any] | None = None,
    ) -> Transitions:
        """Take one step of the fleet, or of those sub-environments that `fleet.recv` returned.

        Args:
            actions: What the fleet was given, `(rows, …)`.
            observations: What it returned, likewise all that follow.
            rewards: `(rows,)`.
            terminated: `(rows,)`.
            truncated: `(rows,)`.
            infos: In `SAME_STEP`, `"final_obs"` is read from it, unless `final_observations` are given.
            env_indices: The sub-environment of every row; `None` for all in order.
            final_observations: In `SAME_STEP` last observations of the episodes that ended, `(rows, …)`: faster than
                infos. Other modes ignore it.

        Returns:
            The transitions, in the order of the rows; new arrays.

        Raises:
            InvalidArgument: Before the first `reset`, rows that do not fit, or no final observation where one is due.
        """
        if self._last is None:
            raise InvalidArgument("step() before the first reset(): pass the observations of fleet.reset() to reset()")
        rows = self._rows(env_indices, len(observations))
        ended = np.asarray(terminated, np.bool_) | np.asarray(truncated, np.bool_)
        arrived = np.array(observations, self._last.dtype)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            arrived[ended] = _finals(infos, ended, final_observations)
        columns = (
            self._last[rows],
            np.array(actions),
            np.array(rewards, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            arrived,
            rows,
        )
        was_awaiting = self._is_awaiting[rows]
        self._last[rows] = observations
        self._is_awaiting[rows] = ended & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        if was_awaiting.any():
            columns = tuple(column[~was_awaiting] for column in columns)  # type: ignore[assignment]  # as many as before
        return Transitions(*columns)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` takes: the last observations, and who awaits a reset."""
        last = None if self._last is None else self._last.copy()
        return {"last": last, "is_awaiting": self._is_awaiting.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the state of another writer, whose fleet's state has been taken over as well."""
        self._last = None if state["last"] is None else as_array(state["last"])
        self._is_awaiting = as_array(state["is_awaiting"])

    def _rows(self, env_indices: Sequence[int] | NDArray[Any] | None, count: int) -> NDArray[np.int64]:
        rows = np.arange(self.num_envs) if env_indices is None else np.array(env_indices, np.int64)
        if rows.shape != (count,):
            raise InvalidArgument(
                f"{count} rows of observations for {rows.size} sub-environments, expected one each: pass env_indices "
                "for a part of the fleet"
            )
        return rows


def _finals(infos: Mapping[str, Any], ended: NDArray[np.bool_], given: NDArray[Any] | None) -> NDArray[Any]:
    """Last observations of those that ended, `(number that ended, …)`."""
    if given is not None:
        return np.asarray(given)[ended]
    if "final_obs" not in infos:
        raise InvalidArgument(
            f"{np.count_nonzero(ended)} episodes ended in SAME_STEP and infos has no 'final_obs': pass "
            "final_observations=fleet.final_observations"
        )
    return np.stack([np.asarray(final) for final in infos["final_obs"][ended]])
