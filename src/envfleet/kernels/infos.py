"""Infos of kernels: columns that are there anyway, and what ended episodes tell, built if somebody looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.lazy_infos import LazyInfos
from envfleet.kernels.batches import EndedInStep
from envfleet.kernels.kernel import KernelSpec

_FIRST_INFO = 4  # of the arrays that a batch hands out


def info_columns(
    spec: KernelSpec, arrays: tuple[NDArray[Any], ...], rows: NDArray[np.int64] | None, num_envs: int
) -> dict[str, Any]:
    """The kernel's own infos with their masks.

    Args:
        spec: The kernel.
        arrays: What the batch handed out.
        rows: Which rows have infos; `None` for all.
        num_envs: Length of the masks.
    """
    infos: dict[str, Any] = {}
    for name, column in zip(spec.kernel.info_fields, arrays[_FIRST_INFO:], strict=True):
        mask = np.ones(num_envs, np.bool_)
        shown: Any = column
        if rows is not None:
            mask = np.zeros(num_envs, np.bool_)
            mask[rows] = True
            if isinstance(column, np.ndarray):  # zeros elsewhere, as Gymnasium has them; on a device, whatever there is
                shown = _scatter(column[rows], rows, np.zeros_like(column))
        infos[name], infos[f"_{name}"] = shown, mask
    return infos


def step_infos(
    spec: KernelSpec, arrays: tuple[NDArray[Any], ...], ended: EndedInStep | None, num_envs: int
) -> dict[str, Any]:
    """The infos of one step."""
    if ended is None:
        return info_columns(spec, arrays, None, num_envs)
    held = (*arrays,)  # a tuple of our own: while it lives, the batch writes to none of these arrays again

    def build() -> dict[str, Any]:
        episodes = ended.episodes
        rows = episodes["row"]
        if len(rows) == 0:
            return info_columns(spec, held, None, num_envs)
        mask = np.zeros(num_envs, np.bool_)
        mask[rows] = True
        infos = info_columns(spec, held, None, num_envs)
        if ended.observations is not None:
            infos |= _final_entries(rows, ended.observations, ended.infos, mask)
        infos["episode"] = {
            "r": _scatter(episodes["total"], rows, np.zeros(num_envs)),
            "l": _scatter(episodes["length"], rows, np.zeros(num_envs, np.int64)),
            "t": _scatter((ended.now - episodes["begun"]) // 1000 / 1e6, rows, np.zeros(num_envs)),
            "id": _scatter(episodes["episode"] * num_envs + rows, rows, np.full(num_envs, -1)),
        }
        infos["_episode"] = mask
        return infos

    return LazyInfos(build)


def _scatter(values: NDArray[Any], rows: NDArray[np.int64], target: NDArray[Any]) -> NDArray[Any]:
    target[rows] = values
    return target


def _final_entries(
    rows: NDArray[np.int64],
    last: NDArray[Any],
    last_infos: Mapping[str, NDArray[Any]],
    mask: NDArray[np.bool_],
) -> dict[str, Any]:
    """Gymnasium's `final_obs` and `final_info` of `SAME_STEP`."""
    observations = np.full(len(mask), None, object)
    for row, observation in zip(rows, last, strict=True):
        observations[row] = observation
    infos: dict[str, Any] = {}
    for name, values in last_infos.items():
        column = np.zeros((len(mask), *values.shape[1:]), values.dtype)
        infos[name], infos[f"_{name}"] = _scatter(values, rows, column), mask.copy()
    return {"final_obs": observations, "_final_obs": mask.copy(), "final_info": infos, "_final_info": mask.copy()}
