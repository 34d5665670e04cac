"""All that adapters use of a fleet beyond its public methods, in one place."""
# ruff: noqa: SLF001  this module is where the adapters reach in, so that they do so nowhere else

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from envfleet.core.engine import Call
from envfleet.core.fleet import Fleet
from envfleet.core.rows import StepResult
from envfleet.errors import SubEnvError
from envfleet.transports.launch import WorkerHandle
from envfleet.transports.process import ProcessTransport

Reset: TypeAlias = tuple[Any, dict[str, Any]]


def start_step(fleet: Fleet, actions: Any) -> Callable[[float | None], StepResult]:
    """Start a step; returns what waits for its results, at most as many seconds as it is given.

    The second half raises `CallTimeout` if they are not there in time, and can then be called again.
    """
    with fleet._rows.clock:
        call = fleet._start_step(actions)
    return functools.partial(_finish_step, fleet, call)


def _finish_step(fleet: Fleet, call: Call, timeout_s: float | None = None) -> StepResult:
    with fleet._rows.clock:
        return fleet._finish_step(call, timeout_s)


def start_reset(
    fleet: Fleet, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
) -> Callable[[float | None], Reset]:
    """Start a reset; as `start_step`."""
    return functools.partial(fleet._finish_reset, *fleet._start_reset(seed, options))


def start_call(
    fleet: Fleet, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[float | None], tuple[Any, ...]]:
    """Start a call on every sub-environment; as `start_step`."""
    return functools.partial(fleet._finish_call, fleet._start_call(name, args, kwargs))


def last_observations(fleet: Fleet) -> Any:
    """The last observations of all sub-environments; views, also if the fleet copies."""
    rows = fleet._rows
    return rows.layout.batch(rows.outputs[rows.generation].observations, rows.objects)


def worker_handles(fleet: Fleet) -> tuple[WorkerHandle, ...]:
    """The worker processes, if there are any."""
    transport = fleet._engine.transport
    return transport.handles if isinstance(transport, ProcessTransport) else ()


def records_episodes(fleet: Fleet) -> bool:
    """Whether `infos["episode"]` tells of episodes that end."""
    return fleet._engine.options.record_episodes


def mend(fleet: Fleet) -> None:
    """Make a fleet usable again of which sub-environments raised, so that they can be reset.

    Not if a worker died, or hangs: those are gone.
    """
    if isinstance(fleet._engine.failure, SubEnvError):
        fleet._engine.failure = None
