"""What a fleet can say of a worker that did not live to tell: who was stepped, since when, and with which actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arrays import FleetArrays, PlaceWord
from envfleet.core.failures import StepInterrupted, shorten
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import StepPayload, Verb
from envfleet.core.origins import Origins
from envfleet.core.replay import DEATH, NO_BEGINNING, TOO_LONG, UNTOLD, ReplayRecord
from envfleet.core.trace import MAX_BYTES, MIN_ENTRIES, ActionLog
from envfleet.core.transport import GroupPlan
from envfleet.errors import Failure, StepTimeout, WorkerDied


class SentLog(ActionLog):
    """The actions sent to one worker, as far back as its running episodes began.

    Group steps are counted as the worker counts them, which carries out what it is sent in order. Actions that lie in
    arrays are kept as bytes, others by reference.

    Args:
        actions: The arrays through which the worker gets actions, one per leaf, its rows only.
        layout: Of one action.
        origins: Where the worker notes how its episodes begin.
        num_envs: How many sub-environments it has.
        size_bytes: What the actions may take.
    """

    def __init__(
        self,
        actions: list[NDArray[Any]],
        layout: SpaceLayout,
        origins: Origins,
        num_envs: int,
        size_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(num_envs)
        self._num_envs, self._actions, self._layout, self._origins = num_envs, actions, layout, origins
        is_single = len(actions) == 1 and not layout.num_objects
        self._single: Callable[[], bytes] | None = actions[0].tobytes if is_single else None
        self._prune_at = MIN_ENTRIES
        self.limit(sum(leaf.nbytes for leaf in actions), size_bytes)

    def note(self, payload: StepPayload | None) -> None:
        """Keep what the worker was sent just now."""
        if payload is None and self._single is not None:
            self._entries.append((None, self._single()))  # as `add` does, of which every call counts here
            self.count += 1
        elif payload is None or not payload.one_by_one:
            rows, objects = (None, []) if payload is None else payload[:2]
            self.add(rows, self._copy(slice(None) if rows is None else list(rows), objects))
        else:
            for k, row in enumerate(range(self._num_envs) if payload.rows is None else payload.rows):
                self.add((row,), self._copy([row], [[leaf[k]] for leaf in payload.objects]))
        if self.count >= self._prune_at:
            self._prune()

    def _copy(self, rows: slice | list[int], objects: list[list[Any]]) -> tuple[list[bytes], list[list[Any]]]:
        return [leaf[rows].tobytes() for leaf in self._actions], objects

    def _prune(self) -> None:
        # A worker that is beyond shared memory never writes a beginning, so its actions are of no use.
        self.forget(self.count if self._origins.is_empty else self._origins.oldest())
        self._prune_at = self.count + max(MIN_ENTRIES, len(self._entries))

    def actions_of(self, row: int, start: int, stop: int) -> list[Any] | None:
        """The actions of `row` in group steps `start` to `stop - 1`; `None` if the first of them were dropped."""
        found = self.find(row, start, stop)
        return None if found is None else [self._decode(*one) for one in found]

    def _decode(self, entry: bytes | tuple[list[bytes], list[list[Any]]], place: int) -> Any:
        leaves, objects = ([entry], []) if isinstance(entry, bytes) else entry
        arrays = [
            np.frombuffer(data, leaf.dtype).reshape(-1, *leaf.shape)[[place]]
            for data, leaf in zip(leaves, self._layout.leaves, strict=True)
        ]
        return self._layout.reader(arrays, [[leaf[place]] for leaf in objects], 1)[0]

    def steps_until(self, row: int, stop: int) -> int:
        """Steps of `row` among the group steps before number `stop`."""
        ahead = self.find(row, stop, self.count)
        return self.steps(row) - len(ahead or ())


class Recorder:
    """Knows what every worker of a fleet is doing, so that its death or a hang says which episode it happened in.

    The fleet logs the actions that it sends; the workers note in shared memory how their episodes began and which
    group step they have come to.

    Args:
        arrays: The fleet's arrays.
        groups: What each worker holds.
        layout: Of one action.

    Attributes:
        notes: One function per worker, to call with the payload of each step that it was sent.
    """

    def __init__(self, arrays: FleetArrays, groups: Sequence[GroupPlan], layout: SpaceLayout) -> None:
        if arrays.origins is None:
            raise ValueError("these arrays have no place for the beginnings of episodes")
        self._progress, self._groups = arrays.progress, groups
        self._actions, self._layout = arrays.actions, layout
        self._origins = [arrays.origins.part(slice(group.rows.start, group.rows.stop)) for group in groups]
        for origins in self._origins:
            origins.clear()
        self._logs = [self._new_log(worker) for worker in range(len(groups))]
        self.notes = [log.note for log in self._logs]

    def _new_log(self, worker: int) -> SentLog:
        rows = self._groups[worker].rows
        actions = [leaf[rows.start : rows.stop] for leaf in self._actions]
        return SentLog(actions, self._layout, self._origins[worker], len(rows), MAX_BYTES // len(self._groups))

    def restart(self, worker: int) -> None:
        """Begin anew for a worker that takes the place of another; before it is sent anything."""
        self._origins[worker].clear()
        log = self._logs[worker] = self._new_log(worker)
        self.notes[worker] = log.note
        line = self._progress[worker]
        line[PlaceWord.ROW] = line[PlaceWord.BEGUN] = 0

    def describe(self, worker: int, verb: Verb, death: WorkerDied | StepTimeout, pid: int) -> Failure | None:
        """Say what a worker that died, or is stuck, was doing; `None` if it was idle.

        Args:
            worker: Which.
            verb: What it was asked to do.
            death: Why it is given up.
            pid: Its process.
        """
        group, line = self._groups[worker], self._progress[worker]
        row = PlaceWord.row(line) if isinstance(death, WorkerDied) else death.env_index - group.rows.start
        if not 0 <= row < len(group.rows):
            return None
        index = group.rows[row]
        if isinstance(death, WorkerDied):
            type_name, message, stack = DEATH, death.cause, ""
        else:
            type_name, message, stack = StepInterrupted.__qualname__, "it ran too long", death.stack
        failure = Failure(
            index, worker, verb.name.lower(), type_name, message, stack, pid, is_timeout=isinstance(death, StepTimeout)
        )
        return (
            self._with_episode(failure, row, int(line[PlaceWord.BEGUN])) if verb in (Verb.STEP, Verb.RESET) else failure
        )

    def _with_episode(self, failure: Failure, row: int, begun: int) -> Failure:
        """Add what is known of the episode of `row`, the worker having begun so many group steps."""
        group, log = self._groups[failure.worker], self._logs[failure.worker]
        beginning = self._origins[failure.worker].read(row)
        if beginning is None:
            return dataclasses.replace(failure, no_replay=UNTOLD)
        steps = log.steps_until(row, begun) - beginning.before
        verb, step, action = "reset", None, None
        if steps:
            last = log.actions_of(row, begun - 1, begun)
            verb, step, action = "step", steps - 1, shorten(last[0]) if last else None
        origin = beginning.origin
        seed = None if origin is None else origin.last_seed
        failure = dataclasses.replace(failure, verb=verb, step=step, action=action, seed=seed)
        actions = log.actions_of(row, beginning.start, begun)
        if origin is None or actions is None:
            return dataclasses.replace(failure, no_replay=NO_BEGINNING if origin is None else TOO_LONG)
        what = verb, failure.type_name, failure.message, failure.env_index
        record = ReplayRecord(group.builders[row], origin, actions, *what, group.options.step_timeout_s).pack()
        if isinstance(record, bytes):
            return dataclasses.replace(failure, replay=record)
        return dataclasses.replace(failure, no_replay=record)
