"""Replies of services as a fleet's arrays and infos, checked: what comes from the network may be anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envfleet.core.layout import SpaceLayout
from envfleet.core.leaves import Leaf
from envfleet.errors import WireError
from envfleet.packing.infos import infos_from_plain, take_infos
from envfleet.remote.outbox import Letter

Part = tuple[Mapping[str, Any], NDArray[np.int64]]
"""Infos of a shard in Gymnasium's form, and the row of each in the whole."""


class ReplyRows(NamedTuple):
    """What a reply tells of some sub-environments, a row of each array for each; of a reset only the first and last."""

    leaves: list[NDArray[Any]]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    infos: Mapping[str, Any]

    def take(self, places: NDArray[np.int64]) -> ReplyRows:
        """Some of them."""
        flags = self.rewards[places], self.terminated[places], self.truncated[places]
        return ReplyRows([leaf[places] for leaf in self.leaves], *flags, take_infos(self.infos, places))


def read_rows(reply: Mapping[str, Any], layout: SpaceLayout, count: int) -> ReplyRows:
    """What a reply to a step of so many sub-environments tells.

    Raises:
        WireError: It is something else.
    """
    return ReplyRows(
        read_leaves(reply.get("observations"), layout, count),
        read_array(reply, "rewards", (count,), np.float64),
        read_array(reply, "terminated", (count,), np.bool_),
        read_array(reply, "truncated", (count,), np.bool_),
        read_infos(reply, count),
    )


def read_letter(letter: Letter, reply: Mapping[str, Any]) -> ReplyRows:
    """What the reply to a letter tells; raises as `read_rows`."""
    layout, count = letter.shard.observations, len(letter.rows)
    if letter.verb == "step":
        return read_rows(reply, layout, count)
    none = np.zeros(0)
    leaves = read_leaves(reply.get("observations"), layout, count)
    return ReplyRows(leaves, none, none.astype(np.bool_), none.astype(np.bool_), read_infos(reply, count))


def gather(parts: Sequence[tuple[ReplyRows, NDArray[np.int64]]], size: int) -> ReplyRows:
    """Rows of several replies as those of one.

    Args:
        parts: Rows, and the place of each in the whole.
        size: How many places there are.
    """
    if len(parts) == 1 and np.array_equal(parts[0][1], np.arange(size)):
        return parts[0][0]._replace(infos=dict(parts[0][0].infos))
    places = np.argsort(np.concatenate([part[1] for part in parts]))
    leaves = [np.concatenate(each)[places] for each in zip(*(rows.leaves for rows, _ in parts), strict=True)]
    rewards, terminated, truncated = (np.concatenate([rows[k] for rows, _ in parts])[places] for k in (1, 2, 3))
    infos = merge_infos([(rows.infos, where) for rows, where in parts], size)
    return ReplyRows(leaves, rewards, terminated, truncated, infos)


def read_array(reply: Mapping[str, Any], name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array of a reply; read-only.

    Raises:
        WireError: It is not there, or has another shape or type.
    """
    return _checked(reply.get(name), name, shape, np.dtype(dtype))


def read_leaves(value: Any, layout: SpaceLayout, num_rows: int, name: str = "observations") -> list[NDArray[Any]]:
    """The arrays of a batched value, one for each leaf of its space; read-only.

    Raises:
        WireError: It has another structure, shape or type.
    """
    return [_checked(_part(value, leaf, name), name, (num_rows, *leaf.shape), leaf.dtype) for leaf in layout.leaves]


def _part(value: Any, leaf: Leaf, name: str) -> Any:
    try:
        for key in leaf.path:
            value = value[key]
    except (TypeError, KeyError, IndexError) as error:
        raise WireError(f"{name} have no part {leaf}") from error
    return value


def _checked(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype != dtype:
        found = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise WireError(f"{name} are {found}, expected {dtype} {shape}: the service answered something else")
    return value


def read_infos(reply: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """The infos of a reply in Gymnasium's form.

    Raises:
        WireError: They are something else.
    """
    plain = reply.get("infos")
    if not isinstance(plain, Mapping):
        raise WireError(f"infos are a {type(plain).__name__}, expected a map")
    return infos_from_plain(plain, num_rows)


def merge_infos(parts: Sequence[Part], size: int) -> dict[str, Any]:
    """Infos of several shards, or of some rows, as those of `size` rows.

    Rows that have nothing to tell hold zeros, or `None` among objects.
    """
    if len(parts) == 1 and np.array_equal(parts[0][1], np.arange(size)):
        return dict(parts[0][0])
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for infos, _ in parts for name in infos):
        columns = [(infos[name], rows) for infos, rows in parts if name in infos]
        if isinstance(columns[0][0], Mapping):
            merged[name] = merge_infos([(column, rows) for column, rows in columns], size)
        else:
            merged[name] = _join(columns, size)
    return merged


def _join(columns: Sequence[tuple[NDArray[Any], NDArray[np.int64]]], size: int) -> NDArray[Any]:
    tails = {column.shape[1:] for column, _ in columns}
    if len(tails) > 1 or any(column.dtype == object for column, _ in columns):
        joined = np.full(size, None, object)
        for column, rows in columns:
            for row, value in zip(rows.tolist(), column, strict=True):
                joined[row] = value
        return joined
    joined = np.zeros((size, *tails.pop()), np.result_type(*(column.dtype for column, _ in columns)))
    for column, rows in columns:
        joined[rows] = column
    return joined


def own_tree(layout: SpaceLayout, value: Any) -> Any:
    """One observation as it came, lists and maps of arrays, in the form of its space; the caller's own."""
    leaves = [array[np.newaxis] for array in _single_leaves(layout, value)]
    return layout.row(leaves, [], 0)


def _single_leaves(layout: SpaceLayout, value: Any) -> list[NDArray[Any]]:
    leaves = []
    for leaf in layout.leaves:
        part = _part(value, leaf, "final_obs")
        try:
            leaves.append(np.asarray(part, leaf.dtype).reshape(leaf.shape))
        except (TypeError, ValueError) as error:
            raise WireError(f"final_obs have no part {leaf}") from error
    return leaves


def final_leaves(layout: SpaceLayout, finals: NDArray[Any], rows: NDArray[np.int64]) -> list[NDArray[Any]]:
    """Last observations of ended episodes, one array for each leaf, zeros in the other rows.

    Args:
        layout: Of observations.
        finals: Gymnasium's `infos["final_obs"]`.
        rows: Where episodes ended.
    """
    arrays = [np.zeros((len(finals), *leaf.shape), leaf.dtype) for leaf in layout.leaves]
    for row in rows.tolist():
        for array, leaf in zip(arrays, _single_leaves(layout, finals[row]), strict=True):
            array[row] = leaf
    return arrays
