"""Return, length and events of each running episode, and the episodes that ended in a call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.envs.hosting import CountedStep, Hosting
from envfleet.service.refusals import EnvFailed

LARGEST_RETURN = 1e100
"""Largest absolute return of an episode: PostgreSQL squares returns to take means of many."""

_FIELDS = {
    "is_running": np.bool_,
    "is_ranked": np.bool_,
    "returns": np.float64,
    "lengths": np.int64,
    "first_seqs": np.int64,
    "started_at": np.float64,
}


class Meter:
    """One row per sub-environment.

    Args:
        num_envs: How many.
        hosting: What else is counted of its environment.
        lists_all: Report every ended episode instead of only ranked ones.

    Attributes:
        columns: By name, `(num_envs,)` each: `is_running` (begun and not ended), `is_ranked`, `returns`, `lengths` (in
            steps), `first_seqs` (count of the fleet at the episode's first reset), `started_at`, and `hosting`'s.
    """

    def __init__(self, num_envs: int, *, hosting: Hosting, lists_all: bool) -> None:
        self.hosting, self._lists_all = hosting, lists_all
        kinds = {**_FIELDS, **hosting.columns}
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(num_envs, kind) for name, kind in kinds.items()}

    def begin(self, rows: NDArray[Any], *, seq: int, at: float, is_ranked: Any = None) -> None:
        """Begin episodes in `rows`.

        Args:
            rows: Indices or a mask.
            seq: Number of the fleet's events so far.
            at: Present time.
            is_ranked: Whether the episodes are ranked; `None` keeps the setting of the previous ones.
        """
        for name, column in self.columns.items():
            if name != "is_ranked":
                column[rows] = 0
        self.columns["is_running"][rows] = True
        self.columns["first_seqs"][rows] = seq
        self.columns["started_at"][rows] = at
        if is_ranked is not None:
            self.columns["is_ranked"][rows] = is_ranked

    def abandon(self, rows: NDArray[np.int64], *, seq: int, at: float) -> list[dict[str, Any]]:
        """End the running episodes in `rows`, and return those that were stepped."""
        listed = self._lists_all | self.columns["is_ranked"][rows]
        left = rows[self.columns["is_running"][rows] & (self.columns["lengths"][rows] > 0) & listed]
        found = [self._describe(row, "abandoned", None, seq, at) for row in left.tolist()]
        self.columns["is_running"][rows] = False
        return found

    def step(
        self,
        rows: NDArray[np.int64],
        actions: Any,
        step: tuple[Any, NDArray[Any], NDArray[Any], NDArray[Any], Mapping[str, Any]],
        *,
        seq: int,
        at: float,
    ) -> list[dict[str, Any]]:
        """Count a step.

        Args:
            rows: Stepped rows. Rows with an ended episode are not counted.
            actions: Of each of them.
            step: Result of the step, one entry per row.
            seq: The fleet's count.
            at: The time.

        Returns:
            The episodes that ended.

        Raises:
            EnvFailed: A return is not finite any more.
        """
        _, rewards, terminated, truncated, infos = step
        counted = self.columns["is_running"][rows]
        ended = counted & (terminated | truncated)
        who = rows[counted]
        self.columns["returns"][who] += rewards[counted]
        self._check_returns(who, rewards[counted])
        self.columns["lengths"][who] += 1
        reasons = self.hosting.count(self.columns, CountedStep(rows, actions, infos, counted, ended))
        if not ended.any():
            return []
        self.columns["is_running"][rows[ended]] = False
        return [
            self._describe(
                int(rows[k]),
                "terminated" if terminated[k] else "truncated",
                None if reasons is None else reasons[k],
                seq,
                at,
            )
            for k in np.flatnonzero(ended & (self._lists_all | self.columns["is_ranked"][rows])).tolist()
        ]

    def _check_returns(self, rows: NDArray[np.int64], rewards: NDArray[Any]) -> None:
        returns = self.columns["returns"][rows]
        is_good = np.abs(returns) <= LARGEST_RETURN  # false of NaN, too
        if not is_good.all():
            place = int(np.argmin(is_good))
            raise EnvFailed(
                f"the environment gave sub-environment {rows[place]} the reward {rewards[place]:g}, so that its return "
                f"is {returns[place]:g}, which no score can hold: expected finite rewards; nothing was stepped, reset "
                "it or take another action"
            )

    def _describe(self, row: int, outcome: str, reason: Any, seq: int, at: float) -> dict[str, Any]:
        columns = self.columns
        return {
            "env_index": row,
            "is_ranked": bool(columns["is_ranked"][row]),
            "started_at": float(columns["started_at"][row]),
            "ended_at": at,
            "first_seq": int(columns["first_seqs"][row]),
            "last_seq": seq,
            "total": float(columns["returns"][row]),
            "length": int(columns["lengths"][row]),
            "outcome": outcome,
            "details": json.dumps(self.hosting.details(columns, row, reason)),
        }
