"""Conversion of infos from Gymnasium's dict of arrays to Stable-Baselines3's list of dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FINALS = ("_final_info", "final_obs", "_final_obs", "episode", "_episode")
"""Infos of the end of an episode, which do not belong to the reset after it."""

_OF_THE_STEP = ("env_error", "restarted")
_PYTHONS_OWN = frozenset({np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)})


def spread_infos(infos: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Return one info per sub-environment.

    Args:
        infos: Infos in Gymnasium's form: arrays, and under `_key` the mask of rows that have a value.
        num_envs: Number of sub-environments.

    Examples:
        >>> spread_infos({"lives": np.array([2, 0]), "_lives": np.array([True, False])}, 2)
        [{'lives': 2}, {}]
    """
    rows: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None:  # it is itself a mask
            continue
        if isinstance(values, Mapping):
            values = spread_infos(values, num_envs)  # noqa: PLW2901
        elif values.dtype in _PYTHONS_OWN and values.ndim == 1:
            values = values.tolist()  # noqa: PLW2901
        if mask.all():
            for row, value in zip(rows, values, strict=True):
                row[key] = value
        else:
            for index in np.flatnonzero(mask).tolist():
                rows[index][key] = values[index]
    return rows


def step_infos(
    infos: Mapping[str, Any], dones: NDArray[np.bool_], is_cut: NDArray[np.bool_]
) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Return the infos of a step in `SAME_STEP`.

    Args:
        infos: Infos of the fleet.
        dones: Episodes that ended.
        is_cut: Episodes that were truncated and not terminated.

    Returns:
        Infos of the step, and for each sub-environment that was reset the info of that reset.
    """
    ended = np.flatnonzero(dones).tolist()
    if not ended and not infos:
        return [{"TimeLimit.truncated": False} for _ in dones], {}
    if ended:
        infos = dict(infos)
        finals = spread_infos(infos.pop("final_info", {}), len(dones))
        for name in _FINALS:
            infos.pop(name, None)
    rows, resets = spread_infos(infos, len(dones)), {}
    for index in ended:
        resets[index], rows[index] = rows[index], finals[index]
        for key in _OF_THE_STEP:
            if key in resets[index]:
                rows[index][key] = resets[index].pop(key)
    for row, is_truncated in zip(rows, is_cut.tolist(), strict=True):
        row["TimeLimit.truncated"] = is_truncated
    return rows, resets
