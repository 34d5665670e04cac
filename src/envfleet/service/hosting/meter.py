"""Return, length and events of each running episode, and the episodes that ended in a call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envfleet.envs.hosting import CountedStep, Hosting
from envfleet.service.refusals import EnvFailed

LARGEST_RETURN = 1e100
"""Largest absolute return of an episode: PostgreSQL squares returns to take means of many."""

_write_json = json.JSONEncoder(check_circular=False).encode

_FIELDS = {
    "is_running": np.bool_,
    "places": np.int64,
    "played": np.int64,
    "seeds": np.int64,
    "returns": np.float64,
    "lengths": np.int64,
    "first_seqs": np.int64,
    "started_at": np.float64,
}


class Meter:
    """One row per sub-environment.

    Args:
        num_envs: Number of sub-environments.
        hosting: Further quantities that its environment counts.
        lists_all: Report every ended episode instead of only ranked ones.
        num_ranked: Number of ranked episodes of an attempt; row `i` plays every `num_envs`-th of them from number `i`.
        penalty: Penalty of an unfinished ranked episode.

    Attributes:
        num_ranked: Number of ranked episodes; 0 in training.
        columns: By name, `(num_envs,)` each: `is_running` (begun and not ended), `places` (of the episode in the
            attempt, −1 outside of it), `played` (ranked episodes begun so far), `seeds` (with which it was reset, −1
            after an autoreset), `returns`, `lengths` (in steps), `first_seqs` (count of the fleet at the episode's
            first reset), `started_at`, and `hosting`'s.
    """

    def __init__(
        self, num_envs: int, *, hosting: Hosting, lists_all: bool, num_ranked: int = 0, penalty: float = 0.0
    ) -> None:
        self.hosting, self._lists_all, self.num_ranked, self._penalty = hosting, lists_all, num_ranked, penalty
        kinds = {**_FIELDS, **hosting.columns}
        self.columns: dict[str, NDArray[Any]] = {name: np.zeros(num_envs, kind) for name, kind in kinds.items()}

    def begin(self, rows: NDArray[np.int64], *, seq: int, at: float, seeds: ArrayLike = -1) -> None:
        """Begin episodes in `rows`.

        Args:
            rows: Indices.
            seq: Number of the fleet's events so far.
            at: Present time.
            seeds: Their seeds, `(K,)`; -1 where the environment has drawn its own.
        """
        for name, column in self.columns.items():
            if name != "played":
                column[rows] = 0
        columns = self.columns
        places = rows + columns["played"][rows] * len(columns["played"])
        is_ranked = places < self.num_ranked
        columns["places"][rows] = np.where(is_ranked, places, -1)
        columns["played"][rows] += is_ranked
        columns["seeds"][rows] = seeds
        columns["is_running"][rows] = True
        columns["first_seqs"][rows] = seq
        columns["started_at"][rows] = at

    @property
    def num_left(self) -> int:
        """Ranked episodes that have not ended yet."""
        running = self.columns["is_running"] & (self.columns["places"] >= 0)
        return self.num_ranked - int(self.columns["played"].sum()) + int(running.sum())

    def has_more(self, row: int) -> bool:
        """Return whether a row of an attempt runs or has ranked episodes left; always True in training."""
        columns = self.columns
        left = row + columns["played"][row] * len(columns["played"]) < self.num_ranked
        return bool(not self.num_ranked or left or columns["is_running"][row])

    def unstepped_seeds(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the seeds of ranked episodes that were reset and not stepped, -1 for other rows.

        A reset of such an episode repeats its start, so that users cannot choose among starts.
        """
        fresh = self.columns["is_running"][rows] & (self.columns["lengths"][rows] == 0)
        fresh &= self.columns["places"][rows] >= 0
        seeds: NDArray[np.int64] = np.where(fresh, self.columns["seeds"][rows], -1)
        return seeds

    def abandon(
        self, rows: NDArray[np.int64], *, seq: int, at: float, includes_unstepped: bool = False
    ) -> list[dict[str, Any]]:
        """End the running episodes in `rows`, and return those that were stepped.

        Args:
            rows: Indices.
            seq: The fleet's count.
            at: The time.
            includes_unstepped: Return ranked ones without a step, too.
        """
        is_ranked = self.columns["places"][rows] >= 0
        is_stepped = (self.columns["lengths"][rows] > 0) | (is_ranked & includes_unstepped)
        left = rows[self.columns["is_running"][rows] & is_stepped & (self._lists_all | is_ranked)]
        abandoned = self._describe(left, ["abandoned"] * len(left), [None] * len(left), seq, at)
        self.columns["is_running"][rows] = False
        return abandoned

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
            actions: Actions of these rows.
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
        listed = np.flatnonzero(ended & (self._lists_all | (self.columns["places"][rows] >= 0)))
        outcomes = ["terminated" if flag else "truncated" for flag in terminated[listed].tolist()]
        known = [None] * len(listed) if reasons is None else reasons[listed].tolist()
        return self._describe(rows[listed], outcomes, known, seq, at)

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

    def _describe(
        self, rows: NDArray[np.int64], outcomes: Sequence[str], reasons: Sequence[Any], seq: int, at: float
    ) -> list[dict[str, Any]]:
        columns = self.columns
        taken = (columns[name][rows].tolist() for name in ("places", "started_at", "first_seqs", "returns", "lengths"))
        return [
            {
                "env_index": row,
                "place": None if place < 0 else place,
                "started_at": started_at,
                "ended_at": at,
                "first_seq": first_seq,
                "last_seq": seq,
                "total": total,
                "counted": total - self._penalty if outcome == "abandoned" else total,
                "length": length,
                "outcome": outcome,
                "details": _write_json(self.hosting.details(columns, row, reason)),
            }
            for row, outcome, reason, place, started_at, first_seq, total, length in zip(
                rows.tolist(), outcomes, reasons, *taken, strict=True
            )
        ]
