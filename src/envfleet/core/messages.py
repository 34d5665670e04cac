"""Everything that crosses between a fleet and its workers and is not an array: requests, replies, completions."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from typing import Any, NamedTuple

from envfleet.core.info_columns import ColumnSpec
from envfleet.core.infos import SparseInfos
from envfleet.errors import EnvfleetError, Failure


class Verb(enum.IntEnum):
    """What a worker is asked to do."""

    STEP = 1
    RESET = 2
    CALL = 3
    SET_ATTR = 4
    GET_STATE = 5
    SET_STATE = 6
    CLOSE = 7


class Request(NamedTuple):
    """One order to one worker.

    Attributes:
        verb: What to do.
        seq: Number of the call this belongs to; the completion repeats it, so late ones are recognised.
        generation: Which of the two generations of output arrays to write.
        payload: What the verb needs; `None` for a `STEP` of every sub-environment of the worker, or a `CLOSE` that may
            take as long as it usually does (else seconds).
    """

    verb: Verb
    seq: int
    generation: int = 0
    payload: Any = None


class StepPayload(NamedTuple):
    """Payload of a `STEP` that is not the plain one.

    Attributes:
        rows: Local indices of the sub-environments to step, in order; `None` for all.
        objects: Action leaves that do not fit an array, each with one value per row stepped.
        one_by_one: Complete every row by itself instead of all at once.
    """

    rows: tuple[int, ...] | None
    objects: list[list[Any]]
    one_by_one: bool


class ResetPayload(NamedTuple):
    """Payload of `RESET`: local indices, and seed and options for each."""

    indices: tuple[int, ...]
    seeds: tuple[int | None, ...]
    options: tuple[dict[str, Any] | None, ...]


class CallPayload(NamedTuple):
    """Payload of `CALL`: attribute or method to look up, or a function of the sub-environment; and its arguments."""

    name: str | Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclasses.dataclass(slots=True)
class Reply:
    """What a worker has to say beyond the arrays it wrote; most steps need none.

    Attributes:
        value: Result of the verb, one entry per sub-environment it concerned.
        infos: Non-empty infos as (index in the fleet, info).
        failures: Sub-environments that raised and were not rebuilt.
        restarts: Sub-environments that raised and were rebuilt in place.
        objects: Observation leaves that do not fit an array, by index in the fleet.
        final_objects: The same of the last observations of episodes that ended (`SAME_STEP`).
        columns: Info columns learnt since the last reply.
    """

    value: Any = None
    infos: SparseInfos = dataclasses.field(default_factory=list)
    failures: list[Failure] = dataclasses.field(default_factory=list)
    restarts: list[Failure] = dataclasses.field(default_factory=list)
    objects: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    final_objects: dict[int, list[Any]] = dataclasses.field(default_factory=dict)
    columns: list[ColumnSpec] = dataclasses.field(default_factory=list)


ALL_ROWS = 0xFFFF_FFFF


class Completion(NamedTuple):
    """A worker finished a request, or one row of it, or ended.

    Attributes:
        worker: Index of the worker.
        seq: The request's number.
        row: Local index of the sub-environment that finished, or `ALL_ROWS`.
        reply: What it had to say, if anything.
        death: Set when the worker ended instead.
    """

    worker: int
    seq: int
    row: int
    reply: Reply | None = None
    death: EnvfleetError | None = None
