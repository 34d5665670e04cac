"""Infos of a call: columns of numbers that workers write, and infos that they send by mail."""

from __future__ import annotations

import operator
from typing import Any

from gymnasium.vector import AutoresetMode

from envfleet.fleet.engine import Rows
from envfleet.fleet.episodes import EpisodeStats
from envfleet.fleet.infos import SparseInfos, batch_infos
from envfleet.options import Options
from envfleet.workers.arrays import FleetArrays
from envfleet.workers.board import TABLE
from envfleet.workers.columns import ColumnReader
from envfleet.workers.env_group import EnvGroup
from envfleet.workers.partial import PartialSteps
from envfleet.workers.results import Results


class StepInfos:
    """Builder of the infos of a call.

    Args:
        partial: Rows that are under way; while there are any, the table of columns stays as it is.
        arrays: Arrays of the fleet.
        results: Results of the fleet.
        episodes: Statistics of the episodes.
        options: Options of the fleet.
        here: All sub-environments, if they are in this process.

    Attributes:
        reports_ends: True if every end of an episode has infos.
    """

    def __init__(
        self,
        partial: PartialSteps,
        arrays: FleetArrays,
        results: Results,
        episodes: EpisodeStats,
        options: Options,
        here: EnvGroup | None,
    ) -> None:
        self._partial, self._results, self._episodes, self._options = partial, results, episodes, options
        self._here = here
        self._num_envs = len(arrays.row_asked)
        self._columns = ColumnReader(arrays.info_values, arrays.info_given)
        self._published = self._columns.table.version
        self._has_final_infos = options.autoreset_mode is AutoresetMode.SAME_STEP and options.final_infos
        self.reports_ends = self._has_final_infos or options.record_episodes

    def clear(self, rows: list[int]) -> None:
        """Remove the numbers of some rows."""
        self._columns.clear(rows)

    def build(
        self, sparse: SparseInfos, ended: list[int] | None, rows: Rows | None, *, has_columns: bool
    ) -> dict[str, Any]:
        """Return the infos of a call.

        Args:
            sparse: Infos sent by mail, by row of the call.
            ended: Rows of the call with an episode that ended; `None` without such rows.
            rows: Sub-environments of the call; `None` for all.
            has_columns: True if workers have written numbers.
        """
        dense, numbers = self._columns.read(slice(None) if rows is None else rows) if has_columns else ({}, [])
        if sparse and not self._partial:
            self._columns.learn(sparse, numbers)
            self._publish()
        first_end = None
        if ended is not None and self._has_final_infos:
            first_end, indices = ended[0], ended if rows is None else rows[ended]
            final_observations = [self._results.observation_of(index, final=True) for index in indices]
            ends = [{"final_obs": observation, "final_info": {}} for observation in final_observations]
            sparse = [*zip(ended, ends, strict=True), *sparse]
        sparse.sort(key=operator.itemgetter(0))
        order = self._columns.order(sparse, numbers, first_end) if sparse and dense else ()
        if not self._options.final_infos:
            sparse = [(row, {name: info[name] for name in info if name != "final_info"}) for row, info in sparse]
        size = self._num_envs if rows is None else len(rows)
        infos = batch_infos(size, sparse, dense, order) if sparse or dense else {}
        if ended is not None and self._options.record_episodes:
            infos.update(self._episodes.ended_episodes().entries(size))
        return infos

    def _publish(self) -> None:
        """Pass the table of columns to the workers if it has changed."""
        pool, table = self._partial.pool, self._columns.table
        if self._published == table.version:
            return
        self._published = table.version
        if self._here is not None:
            self._here.columns.learn(table)
            return
        pool.transport.requests.put(len(pool.every) + self._num_envs, table)
        for line in pool.lines:
            line[TABLE] = table.version
