"""From the infos of a fleet, a dict of arrays, to those of Stable-Baselines3, a list of dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FINALS = ("final_obs", "_final_obs", "final_info", "_final_info")
_TOLD_OF_THE_STEP = ("env_error", "restarted")
_PYTHONS_OWN = frozenset({np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)})


def spread_infos(infos: Mapping[str, Any], num_envs: int) -> list[dict[str, Any]]:
    """Give every sub-environment its own info.

    Args:
        infos: In Gymnasium's form: arrays, and under `_key` the mask of who gave a value.
        num_envs: How many.

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
    infos: Mapping[str, Any], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], age_s: float
) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    """Make the infos of a step with autoreset in the same step.

    Args:
        infos: Of the fleet.
        terminated: Which episodes terminated.
        truncated: Which were truncated.
        age_s: Seconds since the vector environment was made, for `info["episode"]["t"]`, as `Monitor` has it.

    Returns:
        The infos, and for each sub-environment that was reset the info of that reset.
    """
    num_envs, ended = len(terminated), np.flatnonzero(terminated | truncated).tolist()
    if not ended and not infos:
        return [{"TimeLimit.truncated": False} for _ in range(num_envs)], {}
    if not ended:
        rows = spread_infos(infos, num_envs)
        for row in rows:
            row["TimeLimit.truncated"] = False
        return rows, {}
    rest = {key: value for key, value in infos.items() if key not in _FINALS}
    # The entry that a fleet makes has an "id"; that of a sub-environment of its own is an info as any other.
    episode = rest.pop("episode") if "id" in rest.get("episode", ()) else None
    rows, finals = spread_infos(rest, num_envs), spread_infos(infos.get("final_info", {}), num_envs)
    resets = {}
    for index in ended:
        resets[index], rows[index] = rows[index], finals[index]
        for key in _TOLD_OF_THE_STEP:
            if key in resets[index]:
                rows[index][key] = resets[index].pop(key)
        rows[index]["terminal_observation"] = infos["final_obs"][index]
        if episode is not None and "episode" not in rows[index]:
            rows[index]["episode"] = {
                "r": round(float(episode["r"][index]), 6),
                "l": int(episode["l"][index]),
                "t": round(age_s, 6),
            }
    for row, is_cut in zip(rows, (truncated & ~terminated).tolist(), strict=True):
        row["TimeLimit.truncated"] = is_cut
    return rows, resets
