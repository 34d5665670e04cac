"""Infos of kernels in Gymnasium's form: fields of the state, last observations, ended episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.batch_base import EndedRows, to_episodes
from envfleet.kernels.kernel import KernelSpec
from envfleet.options import Options


class KernelInfos:
    """Infos of resets and steps. The mask in which every row is set is shared and read-only.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
    """

    def __init__(self, spec: KernelSpec, num_envs: int, options: Options) -> None:
        self._names, self._num_envs = spec.info_fields, num_envs
        self._records = options.record_episodes
        self._unpack, self._has_parts = spec.observation.unpack, bool(spec.observation.parts)
        self._all = np.ones(num_envs, np.bool_)
        self._all.flags.writeable = False

    def reset(self, arrays: Sequence[Any], rows: NDArray[np.int64] | None) -> dict[str, Any]:
        """Return the infos of a reset of the given rows, or of all."""
        infos = self.step(arrays, None)
        return infos if rows is None else {name: column.take(rows, axis=0) for name, column in infos.items()}

    def step(self, arrays: Sequence[Any], ended: EndedRows | None) -> dict[str, Any]:
        """Return the infos of a step and of the episodes that ended in it, if they were gathered."""
        infos: dict[str, Any] = {}
        for name, column in zip(self._names, arrays[4:], strict=True):
            infos[name], infos[f"_{name}"] = column, self._all
        if ended is None:
            return infos
        if ended.observations is not None:
            infos |= self._finals(ended.episodes["row"], ended.observations, ended.infos)
        if self._records:
            infos |= to_episodes(ended.episodes, ended.now, self._num_envs).entries(self._num_envs)
        return infos

    def _finals(self, rows: NDArray[np.int64], last: NDArray[Any], infos: Mapping[str, Any]) -> dict[str, Any]:
        """Return Gymnasium's `final_obs` and `final_info`."""
        mask = np.zeros(self._num_envs, np.bool_)
        mask[rows] = True
        observations = np.empty(self._num_envs, object)  # of None
        is_int = last.ndim == 1 and last.dtype.kind in "iu"
        each = last.tolist() if is_int else map(self._unpack, last) if self._has_parts else last
        observations[rows] = np.fromiter(each, object, len(last))
        final: dict[str, Any] = {}
        for name, values in infos.items():
            final[name] = np.zeros((self._num_envs, *values.shape[1:]), values.dtype)
            final[name][rows] = values
            final[f"_{name}"] = mask.copy()
        return {"final_obs": observations, "_final_obs": mask, "final_info": final, "_final_info": mask.copy()}
