"""Infos of tasks in Gymnasium's form, where resets and steps have different keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.batch_base import EndedRows
from envfleet.kernels.infos import KernelInfos
from envfleet.options import Options
from envfleet.physics.batch import TaskBatch

DIVERGED = "MuJoCo warned that the simulation diverged, and reset it"


class TaskInfos(KernelInfos):
    """Infos of resets and steps of a task.

    Args:
        batch: The sub-environments.
        options: Options of the fleet.
    """

    def __init__(self, batch: TaskBatch, options: Options) -> None:
        super().__init__(batch.spec, batch.num_envs, options)
        self._batch, self._of_resets = batch, frozenset(batch.spec.reset_info_fields)
        self._ends_diverged = options.on_failure == "restart"

    def reset(self, arrays: Sequence[Any], rows: NDArray[np.int64] | None) -> dict[str, Any]:
        """Return the infos of a reset of `rows`, or of all."""
        infos = super().step(arrays, None)
        of_resets = {name: column for name, column in infos.items() if name.removeprefix("_") in self._of_resets}
        return of_resets if rows is None else {name: column.take(rows, axis=0) for name, column in of_resets.items()}

    def step(self, arrays: Sequence[Any], ended: EndedRows | None) -> dict[str, Any]:
        """Return the infos of a step; rows that were reset in it have those of a reset."""
        infos = super().step(arrays, ended)
        if self._batch.was_reset.any():
            was_reset = self._batch.was_reset != 0
            for name in self._names:
                if name in self._of_resets:
                    continue
                infos[name][was_reset] = 0
                infos[f"_{name}"] = ~was_reset
                if was_reset.all():
                    del infos[name], infos[f"_{name}"]
        if self._ends_diverged and self._batch.diverged.any():
            infos |= self._failures(self._batch.diverged != 0)
        return infos

    def _failures(self, rows: NDArray[np.bool_]) -> dict[str, Any]:
        messages = np.full(self._num_envs, None, object)
        messages[rows] = DIVERGED
        return {"env_error": messages, "_env_error": rows, "restarted": rows.copy(), "_restarted": rows.copy()}
