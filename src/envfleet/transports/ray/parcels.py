"""What travels with an actor call in place of shared memory: rows of arrays, to the worker and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arrays import FleetArrays, Outputs, Progress
from envfleet.core.messages import Request, Verb

Which: TypeAlias = slice | list[int]
"""Some rows of a worker's own, or all of them."""

ALL: Which = slice(None)


class Parcel(NamedTuple):
    """What a worker sends back for one request.

    Attributes:
        records: What it completed: (row or `ALL_ROWS`, encoded reply or `None`).
        results: Of the rows the request concerned: observations, rewards, flags; with info columns, if there are any,
            their slots and flags; with last observations if episodes ended. Empty if the request writes none.
        num_columns: Info columns among `results`.
        progress: The worker's progress line.
    """

    records: list[tuple[int, bytes | None]]
    results: list[NDArray[Any]]
    num_columns: int
    progress: NDArray[np.int64]


class Past(NamedTuple):
    """What a worker takes over from the one that was here before.

    Attributes:
        progress: Its progress line.
        observations: For each generation, the observations of its rows, one array per leaf.
    """

    progress: NDArray[np.int64]
    observations: list[list[NDArray[Any]]]


def past_of(arrays: FleetArrays, worker: int) -> Past:
    """What the owner's arrays of a worker's rows hold of its past."""
    return Past(arrays.progress[worker], [out.observations for out in arrays.outputs])


def rows_written(request: Request) -> Which | None:
    """The rows whose results a request writes; `None` for none."""
    verb, payload = request.verb, request.payload
    if verb is Verb.STEP:
        return ALL if payload is None or payload.rows is None else list(payload.rows)
    if verb is Verb.RESET:
        return list(payload.indices)
    if verb is Verb.SET_STATE:
        return [row for row, _ in payload]
    return None


def take_actions(arrays: FleetArrays, request: Request) -> list[NDArray[Any]]:
    """What a request needs of the owner's arrays: the actions of a step."""
    rows = rows_written(request)
    return [leaf[rows] for leaf in arrays.actions] if request.verb is Verb.STEP and rows is not None else []


def put_actions(arrays: FleetArrays, request: Request, actions: Sequence[NDArray[Any]]) -> None:
    """Put what `take_actions` took where the worker's group reads it."""
    rows = rows_written(request)
    for target, source in zip(arrays.actions, actions, strict=False):
        target[rows] = source


def take_results(out: Outputs, rows: Which, num_columns: int) -> list[NDArray[Any]]:
    """The results of some rows; views of `out` where all rows are meant."""
    found = [*(leaf[rows] for leaf in out.observations), out.rewards[rows], out.flags[:, rows]]
    if num_columns and out.info_values is not None and out.info_present is not None:
        found += [out.info_values[:num_columns, rows], out.info_present[:num_columns, rows]]
    if out.finals and out.flags[:, rows].any():
        found += [leaf[rows] for leaf in out.finals]
    return found


def put_results(out: Outputs, rows: Which, num_columns: int, results: Sequence[NDArray[Any]]) -> None:
    """Put what `take_results` took into the owner's arrays."""
    rest = iter(results)
    for leaf in out.observations:
        leaf[rows] = next(rest)
    out.rewards[rows], out.flags[:, rows] = next(rest), next(rest)
    if num_columns and out.info_values is not None and out.info_present is not None:
        out.info_values[:num_columns, rows] = next(rest)
        out.info_present[:num_columns, rows] = next(rest)
    for leaf, source in zip(out.finals, rest, strict=False):  # none unless episodes ended
        leaf[rows] = source


def put_progress(line: NDArray[np.int64], news: NDArray[np.int64]) -> None:
    """Update a progress line; its word for interrupts is the owner's own."""
    for word in (Progress.TURN, Progress.BUSY_NS, Progress.STEPS, Progress.ROW):
        line[word] = news[word]
