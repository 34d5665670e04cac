"""Gymnasium's infos of a vector environment on the wire: only the rows that have something to tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import WireError


def infos_to_plain(infos: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """Columns of infos as values that `pack` takes.

    Args:
        infos: Gymnasium's form: `{"name": column, "_name": mask, …}`; a column is an array `(num_envs, …)`, an array of
            objects, or such a dict.
        num_envs: How many sub-environments.

    Returns:
        By name: `{"rows": indices or None for all, "values": …}`, where values are an array or a list of those rows
        (`"is_object": True` where the column was one of objects), or `{"rows": …, "columns": {…}}` for a dict. What
        does not consist of numbers, texts and arrays is sent as text. `"is_masked": True` marks a column of a dict that
        has a mask of its own.
    """
    plain: dict[str, Any] = {}
    for name, column in infos.items():
        if _is_mask(name, infos):
            continue
        mask = infos.get(f"_{name}")
        plain[name] = _column(column, None if mask is None else np.asarray(mask, np.bool_), num_envs)
    return plain


def _column(column: Any, mask: NDArray[np.bool_] | None, num_envs: int) -> dict[str, Any]:
    rows = None if mask is None or mask.all() else np.flatnonzero(mask).astype(np.uint32)
    if isinstance(column, Mapping):
        inner = {key: _inner(key, column, mask, num_envs) for key in column if not _is_mask(key, column)}
        return {"rows": rows, "columns": inner}
    array = column if isinstance(column, np.ndarray) else _objects(column)
    chosen = array if rows is None else array[rows]
    if array.dtype.kind in "biuf":
        return {"rows": rows, "values": chosen}
    return {"rows": rows, "values": _stacked(chosen.tolist()), "is_object": True}


def _inner(key: str, columns: Mapping[str, Any], mask: NDArray[np.bool_] | None, num_envs: int) -> dict[str, Any]:
    """A column of a dict: with the rows of its own mask if it has one, else with the dict's."""
    own = columns.get(f"_{key}")
    if own is None:
        return _column(columns[key], mask, num_envs)
    return {**_column(columns[key], np.asarray(own, np.bool_), num_envs), "is_masked": True}


def _is_mask(name: str, infos: Mapping[str, Any]) -> bool:
    return name.startswith("_") and name[1:] in infos


def _objects(values: Any) -> NDArray[Any]:
    array = np.empty(len(values), object)
    for k, value in enumerate(values):
        array[k] = value
    return array


def _stacked(values: list[Any]) -> Any:
    """One array of arrays that are alike, which is shorter; else a list of what can be sent."""
    first = values[0] if values else None
    if isinstance(first, np.ndarray) and first.dtype.kind in "biuf":
        form = first.shape, first.dtype
        if all(isinstance(value, np.ndarray) and (value.shape, value.dtype) == form for value in values):
            return np.stack(values)
    return [_sendable(value) for value in values]


def _sendable(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        return value
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "biuf" else [_sendable(each) for each in value.tolist()]
    if isinstance(value, Mapping):
        return {str(key): _sendable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sendable(each) for each in value]
    return repr(value)


def take_infos(infos: Mapping[str, Any], rows: NDArray[np.int64]) -> dict[str, Any]:
    """Infos of some rows, in their order; a column that has nothing to tell of them is left out.

    Args:
        infos: Gymnasium's form.
        rows: Which.
    """
    taken: dict[str, Any] = {}
    for name, column in infos.items():
        if _is_mask(name, infos):
            continue
        mask = infos.get(f"_{name}")
        if mask is not None:
            taken_mask = np.asarray(mask, np.bool_)[rows]
            if not taken_mask.any():
                continue
            taken[f"_{name}"] = taken_mask
        if isinstance(column, Mapping):
            taken[name] = take_infos(column, rows)
        else:
            taken[name] = (column if isinstance(column, np.ndarray) else _objects(column))[rows]
    return taken


def infos_from_plain(plain: Mapping[str, Any], num_envs: int) -> dict[str, Any]:
    """The inverse of `infos_to_plain`: rows that had nothing to tell hold zeros, or `None` among objects.

    Raises:
        WireError: It is something else.
    """
    infos: dict[str, Any] = {}
    try:
        for name, column in plain.items():
            infos[name], infos[f"_{name}"] = _dense(column, num_envs), _mask(column, num_envs)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise WireError(f"the infos cannot be read: {type(error).__name__}: {error}") from error
    return infos


def _mask(column: Mapping[str, Any], num_envs: int) -> NDArray[np.bool_]:
    rows = column["rows"]
    mask = np.full(num_envs, rows is None)
    if rows is not None:
        mask[rows] = True
    return mask


def _dense(column: Mapping[str, Any], num_envs: int) -> Any:
    rows = column["rows"]
    if "columns" in column:
        inner: dict[str, Any] = {}
        for key, value in column["columns"].items():
            inner[key] = _dense(value, num_envs)
            if value.get("is_masked"):
                inner[f"_{key}"] = _mask(value, num_envs)
        return inner
    values = column["values"]
    if column.get("is_object"):
        array = np.full(num_envs, None, object)
        for row, value in zip(range(num_envs) if rows is None else rows, values, strict=True):
            array[row] = value
        return array
    if rows is None:
        return np.array(values)
    dense = np.zeros((num_envs, *values.shape[1:]), values.dtype)
    dense[rows] = values
    return dense
