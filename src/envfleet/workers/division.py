"""Division of the fleet's requests among its workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from envfleet import errors
from envfleet.fleet import engine as seam
from envfleet.workers.messages import ResetPlan, RowState

Spans = Sequence[range]
"""Rows of each worker."""


def split(rows: seam.Rows | None, spans: Spans) -> list[tuple[int, list[int], list[int]]]:
    """Return for each worker the positions of its rows in `rows`, and those rows relative to its first row."""
    rows = np.arange(spans[-1].stop) if rows is None else rows
    holders = np.searchsorted([span.start for span in spans], rows, side="right") - 1
    divided = []
    for worker in np.unique(holders).tolist():
        places = np.flatnonzero(holders == worker)
        divided.append((worker, places.tolist(), (rows[places] - spans[worker].start).tolist()))
    return divided


def messages_of(request: seam.Request[Any], spans: Spans) -> dict[int, Any]:
    """Return the message for each worker: the plan of a reset, or a method of its group with arguments."""
    messages: dict[int, Any] = {}
    for worker, places, local in split(getattr(request, "rows", None), spans):
        if isinstance(request, seam.Reset):
            messages[worker] = _plan_reset(request, spans[worker].start, places, local)
        elif isinstance(request, seam.Call):
            messages[worker] = "call", (request.name, request.args, dict(request.kwargs), local)
        elif isinstance(request, seam.GetState):
            messages[worker] = "get_state", (local,)
        elif isinstance(request, seam.SetState):
            states = {row: request.states[place][0] for row, place in zip(local, places, strict=True)}
            messages[worker] = "set_state", (states,)
        elif isinstance(request, seam.SetAttr):
            values = request.values
            worker_values = [values[place] if isinstance(values, (list, tuple)) else values for place in places]
            messages[worker] = "set_attr", (request.name, worker_values)
    return messages


def _plan_reset(request: seam.Reset, first: int, places: list[int], local: list[int]) -> ResetPlan:
    seeds, options = request.seeds, request.options
    if isinstance(seeds, int):
        row_seeds: list[int | None] = [seeds + first + row for row in local]
    else:
        row_seeds = [None] * len(places) if seeds is None else [seeds[place] for place in places]
    each = [options[p] for p in places] if isinstance(options, Sequence) else [options or None] * len(places)
    return ResetPlan(local, row_seeds, [None if one is None else dict(one) for one in each])


def check_states(request: seam.SetState, num_envs: int) -> None:
    """Check the states of a request.

    Raises:
        InvalidArgument: The states are not one saved state per row.
    """
    count, states = num_envs if request.rows is None else len(request.rows), request.states
    expected = f"expected a list of {count} made by get_state, one per sub-environment to restore"
    if not isinstance(states, Sequence) or isinstance(states, str):
        raise errors.InvalidArgument(f"states is of type {type(states).__name__}, {expected}")
    if len(states) != count:
        raise errors.InvalidArgument(f"states has {len(states)} entries, {expected}")
    for k, state in enumerate(states):
        if not (isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], RowState)):
            raise errors.InvalidArgument(
                f"states[{k}] is of type {type(state).__name__} and not a saved state, {expected}"
            )
