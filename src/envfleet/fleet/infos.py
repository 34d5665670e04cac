"""Infos of sub-environments in Gymnasium's dict-of-arrays form, built column by column.

The form is that of `gymnasium.vector.VectorEnv._add_info`: under each key an array with one entry per sub-environment,
and under `_key` a mask of those that reported it. Where Gymnasium would lose a value (a float in an int array, arrays
of different shapes), the array is promoted or becomes an array of objects.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

SparseInfos: TypeAlias = list[tuple[int, dict[str, Any]]]
"""Non-empty infos as (row, info). Infos of a row that occurs twice are merged in that order."""

Columns: TypeAlias = dict[str, tuple[Sequence[int], list[Any]]]
"""Transposed infos: for each key the rows that have it, and their values."""

Dense: TypeAlias = dict[str, tuple[NDArray[Any], NDArray[np.bool_], type]]
"""Finished columns: for each key its array, its mask, and the type of its values, `object` if they have several."""

_ATOMS = frozenset({int, float, bool, str, bytes, complex, type(None), np.bool_, np.int64, np.float32, np.float64})
_NUMBERS: dict[type, np.dtype[Any]] = {
    kind: np.dtype(kind)
    for kind in (bool, int, float, np.int32, np.int64, np.uint8, np.uint32, np.uint64, np.float32, np.float64)
}
_EXACT = 2**53  # above this float64 cannot represent all integers


def own_info(info: dict[str, Any]) -> dict[str, Any]:
    """Copy an info deeply, so that its sub-environment can no longer change it.

    Many environments return the same dict, or the same array, on every step. Values are copied at any depth.
    Environments, objects with a `__del__`, and objects that cannot be copied are shared.
    """
    return {key: value if type(value) in _ATOMS else _own(value) for key, value in info.items()}


def _own(value: Any) -> Any:
    if type(value) in _ATOMS:
        owned = value
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        owned = value.copy()
    elif isinstance(value, dict):
        owned = copy.copy(value)  # keeps the class: an OrderedDict stays one
        for key, item in value.items():
            owned[key] = _own(item)
    elif type(value) is list:
        owned = [_own(item) for item in value]
    elif isinstance(value, tuple):
        items = map(_own, value)
        owned = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    elif isinstance(value, gym.Env) or hasattr(type(value), "__del__"):  # a copy would release what it shares
        owned = value
    else:
        try:
            owned = copy.deepcopy(value)
        except Exception:  # noqa: BLE001  # whatever a foreign type may raise
            owned = value
    return owned


def batch_infos(
    num_envs: int,
    sparse: Iterable[tuple[int, dict[str, Any]]],
    dense: Dense | None = None,
    order: Iterable[Any] = (),
) -> dict[str, Any]:
    """Merge infos into Gymnasium's dict-of-arrays form.

    Numbers become typed arrays, zero where a value is missing. Arrays of one shape are stacked. Dicts are merged in the
    same way at any depth. Everything else, and always `"final_obs"`, becomes an array of objects, `None` where a value
    is missing. Different number types are promoted; values without a common type become an array of objects.

    Args:
        num_envs: Leading dimension of all arrays.
        sparse: Pairs of row and info, merged in their order.
        dense: Finished columns; merged with sparse values of the same key.
        order: Keys that come first, in this order; then sparse keys, in the order of their rows, and dense ones.

    Returns:
        The arrays, each with its mask under `_key`. All are new, but objects in arrays of objects are those of
        `sparse`.

    Examples:
        >>> batch_infos(3, [(0, {"lives": 2}), (2, {"lives": 2.5})])
        {'lives': array([2. , 0. , 2.5]), '_lives': array([ True, False,  True])}
    """
    columns, finished = _collect(sparse), dict(dense or {})
    for key in finished.keys() & columns.keys():
        array, mask, kind = finished.pop(key)
        rows, values = columns[key]
        known = array[mask].tolist() if kind is object else map(kind, array[mask])
        columns[key] = [*np.flatnonzero(mask).tolist(), *rows], [*known, *values]
    return _assemble(num_envs, columns, finished, order)


def scatter_infos(parts: Sequence[tuple[Mapping[str, Any], NDArray[np.int64]]], size: int) -> dict[str, Any]:
    """Merge batched infos of different rows.

    Args:
        parts: Batched infos, and for each of their rows its row in the result.
        size: Number of rows of the result.
    """
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for infos, _ in parts for name in infos):
        columns = [(infos[name], rows) for infos, rows in parts if name in infos]
        if isinstance(columns[0][0], Mapping):
            merged[name] = scatter_infos(columns, size)
            continue
        tails = {column.shape[1:] for column, _ in columns}
        if len(tails) > 1 or any(column.dtype == object for column, _ in columns):
            merged[name] = np.full(size, None, object)
            for column, rows in columns:
                for row, value in zip(rows.tolist(), column, strict=True):
                    merged[name][row] = value
        else:
            merged[name] = np.zeros((size, *tails.pop()), np.result_type(*(column.dtype for column, _ in columns)))
            for column, rows in columns:
                merged[name][rows] = column
    return merged


def take_infos(infos: Mapping[str, Any], rows: NDArray[np.int64]) -> dict[str, Any]:
    """Select rows of batched infos, in their order; a column without a value in any of them is left out."""
    selected: dict[str, Any] = {}
    for name, column in infos.items():
        if is_mask(name, infos):
            continue
        mask = infos.get(f"_{name}")
        if mask is not None:
            if not mask[rows].any():
                continue
            selected[f"_{name}"] = mask[rows]
        selected[name] = take_infos(column, rows) if isinstance(column, Mapping) else column[rows]
    return selected


def is_mask(name: Any, infos: Mapping[str, Any]) -> bool:
    """Return whether `name` is the mask of another key of `infos`."""
    return isinstance(name, str) and name.startswith("_") and name[1:] in infos  # keys need not be text


def _collect(sparse: Iterable[tuple[int, dict[str, Any]]]) -> Columns:
    """Transpose infos. Infos that all have the same keys, the usual case, share one list of rows."""
    pairs = sparse if isinstance(sparse, list) else list(sparse)
    if not pairs:
        return {}
    indices = [index for index, _ in pairs]
    infos = [info for _, info in pairs]
    # Plain dicts only: a defaultdict would invent what it lacks.
    if len(set(map(len, infos))) == 1 and set(map(type, infos)) == {dict}:
        try:
            return {key: (indices, list(map(operator.itemgetter(key), infos))) for key in infos[0]}
        except KeyError:
            pass  # as many keys, but not the same
    columns: dict[str, tuple[list[int], list[Any]]] = {}
    for index, info in pairs:
        for key, value in info.items():
            column = columns.get(key)
            if column is None:
                columns[key] = [index], [value]
            else:
                column[0].append(index)
                column[1].append(value)
    return dict(columns)


def _assemble(num_envs: int, columns: Columns, dense: Dense, order: Iterable[Any] = ()) -> dict[str, Any]:
    """Build the arrays and masks of all columns, and add the `dense` ones."""
    infos: dict[str, Any] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    last: Sequence[int] | None = None
    mask = np.zeros(num_envs, np.bool_)
    is_full = False
    for key in dict.fromkeys((*order, *columns, *dense)):
        if key in dense:
            infos[key], is_set, _ = dense[key]
            masks[f"_{key}"] = infos[f"_{key}"] = is_set
            continue
        if key not in columns:
            continue
        indices, values = columns[key]
        if indices is not last:
            last = indices
            mask = np.zeros(num_envs, np.bool_)
            mask[indices] = True
            is_full = len(indices) == num_envs and list(indices) == list(range(num_envs))
        infos[key] = _build_column(num_envs, key, None if is_full else indices, values)
        masks[f"_{key}"] = infos[f"_{key}"] = mask.copy()
    # A sub-environment may give both "x" and "_x": the mask of "x" prevails, as in Gymnasium.
    infos.update(masks)
    return infos


def _build_column(num_envs: int, key: str, indices: Sequence[int] | None, values: list[Any]) -> Any:
    """Build the array of one key; `indices=None` means one value per row."""
    if key == "final_obs":
        return _build_objects(num_envs, indices, values)
    kinds = set(map(type, values))
    if len(kinds) == 1:
        dtype = _NUMBERS.get(next(iter(kinds)))
        if dtype is not None:
            return _build_numbers(num_envs, indices, values, dtype)
    if all(issubclass(kind, dict) for kind in kinds):
        return _assemble(
            num_envs, _collect(zip(range(num_envs) if indices is None else indices, values, strict=True)), {}
        )
    if all(issubclass(kind, np.ndarray) for kind in kinds):
        return _build_arrays(num_envs, indices, values)
    if all(kind in _NUMBERS or issubclass(kind, np.number) for kind in kinds):
        common = _promote([np.dtype(kind) for kind in kinds])
        if common is not None and (len(kinds) == 1 or _keeps(common, values)):
            return _build_numbers(num_envs, indices, values, common)
    return _build_objects(num_envs, indices, values)


def _build_numbers(
    num_envs: int, indices: Sequence[int] | None, values: list[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    try:
        data = np.array(values, dtype)
    except (OverflowError, TypeError):  # a Python int beyond 64 bits; a timedelta in months next to one in days
        return _build_objects(num_envs, indices, values)
    if indices is None:
        return data
    array = np.zeros(num_envs, data.dtype)
    array[indices] = data
    return array


def _build_arrays(num_envs: int, indices: Sequence[int] | None, values: list[NDArray[Any]]) -> NDArray[Any]:
    dtypes = {value.dtype for value in values}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else _promote(list(dtypes))
    if dtype is None or len({value.shape for value in values}) > 1:
        return _build_objects(num_envs, indices, values)
    if len(dtypes) > 1 and not all(_keeps(dtype, value.ravel().tolist()) for value in values):
        return _build_objects(num_envs, indices, values)
    array = np.zeros((num_envs, *values[0].shape), dtype)
    for index, value in zip(range(num_envs) if indices is None else indices, values, strict=True):
        array[index] = value
    return array


def _build_objects(num_envs: int, indices: Sequence[int] | None, values: list[Any]) -> NDArray[Any]:
    array = np.full(num_envs, None, object)
    for index, value in zip(range(num_envs) if indices is None else indices, values, strict=True):
        array[index] = value
    return array


def _promote(dtypes: list[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return a common dtype that represents values of all `dtypes`, if there is one."""
    families = {"n" if dtype.kind in "iufc" else dtype.kind for dtype in dtypes}
    if len(families) > 1:
        return None
    if len(set(dtypes)) == 1:
        return dtypes[0]
    try:
        return np.result_type(*dtypes)
    except TypeError:  # records of unlike fields, spans of months and of days
        return None


def _keeps(dtype: np.dtype[Any], values: list[Any]) -> bool:
    """Return whether no integer among `values` loses digits in `dtype`."""
    if dtype.kind not in "fc":
        return True
    return not any(isinstance(value, int | np.integer) and abs(int(value)) > _EXACT for value in values)
