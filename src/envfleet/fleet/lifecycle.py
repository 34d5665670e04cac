"""States of a fleet, and the errors for calls that are invalid in a state."""

from __future__ import annotations

import enum
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import CallPending, FleetBroken, FleetClosed, NothingPending, ResetNeeded


class Lifecycle(enum.Enum):
    """State of a fleet. The value is shown in its `repr`."""

    NEW = "not reset yet"
    READY = "ready"
    PENDING = "under way"
    TORN = "interrupted"
    BROKEN = "broken"
    CLOSED = "closed"


def refuse(call: str, state: Lifecycle, failure: BaseException | None, advice: str = "") -> NoReturn:
    """Raise the error for a call that is not possible in `state`.

    Args:
        call: The call as its user wrote it, such as `"step()"`.
        state: State of the fleet.
        failure: Error that broke the fleet, if it is broken.
        advice: Advice on how to finish the pending steps.
    """
    if state is Lifecycle.CLOSED:
        raise FleetClosed(f"{call} on a closed fleet: make a new one")
    if state is Lifecycle.BROKEN:
        if isinstance(failure, FleetBroken):  # it says itself what to do
            raise FleetBroken(f"{call}: {failure}")
        reason = str(failure).splitlines()[0] if failure is not None else "of an unknown cause"
        raise FleetBroken(
            f'{call} on a fleet that is broken ({reason}): close it and make a new one; on_failure="restart" replaces '
            "workers and sub-environments that fail"
        ) from failure
    if call == "recv()":
        raise NothingPending("recv() with nothing under way: call send(actions) first")
    if state is Lifecycle.PENDING:
        raise CallPending(f"{call} while sub-environments are under way: {advice}")
    if state is Lifecycle.TORN:
        raise ResetNeeded(
            f"{call} after a call that failed or was interrupted: reset all sub-environments with reset() first"
        )
    raise ResetNeeded(f"{call} before the first reset: call reset() first")


def refuse_busy(call: str) -> NoReturn:
    """Raise the error for a call while another thread is in the same fleet."""
    raise CallPending(
        f"{call} while another thread is in this fleet: call it from one thread at a time, or make a fleet per thread"
    )


def refuse_ended(ended: NDArray[np.bool_], rows: NDArray[np.int64] | None = None) -> None:
    """Check that no episode of `rows`, or of all rows, has ended, in a fleet without autoreset.

    Raises:
        ResetNeeded: Episodes have ended; the message has their rows.
    """
    ended_rows = np.flatnonzero(ended) if rows is None else rows[ended[rows]]
    if len(ended_rows):
        names = f"{ended_rows[:10].tolist()}{' …' if len(ended_rows) > 10 else ''}"
        raise ResetNeeded(
            f"the episodes of sub-environments {names} have ended and autoreset is DISABLED: reset them first with "
            'reset_envs(fleet.terminated_indices) or reset(options={"reset_mask": mask})'
        )
