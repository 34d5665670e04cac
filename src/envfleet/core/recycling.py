"""Replace worker processes now and then, at the end of episodes, so that what their code leaks does not add up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.engine import Engine
from envfleet.core.episodes import EndedEpisodes
from envfleet.core.group import RowState
from envfleet.core.messages import Reply, ResetPayload, Verb
from envfleet.core.rows import Rows
from envfleet.errors import SubEnvError

FRESH = RowState(None, None, True, 0)


class Recycler:
    """Decides when workers are replaced, and does it.

    A worker is due once its sub-environments have ended `after_episodes` episodes, or its process has grown above
    `above_bytes`. It is replaced right after a step in which one of its episodes ended. Sub-environments at the end of
    an episode are built afresh; those in the middle of one move with their state. If a state cannot be moved, the
    worker stays until all its sub-environments end at once.

    Args:
        engine: The workers.
        after_episodes: Episodes of a worker, or `None`.
        above_bytes: Resident memory of a worker's process, or `None`.
    """

    def __init__(self, engine: Engine, after_episodes: int | None, above_bytes: int | None) -> None:
        self._engine = engine
        self._after_episodes, self._above_bytes = after_episodes, above_bytes
        self._episodes = [0] * len(engine.worker_rows)

    def after_step(
        self, rows: Rows, ended: EndedEpisodes, indices: NDArray[np.int64] | None, is_idle: Callable[[range], bool]
    ) -> list[tuple[int, Reply]]:
        """Replace the workers that are due.

        Args:
            rows: The fleet's rows; its current generation holds the results of the step.
            ended: The episodes that ended in the step.
            indices: The sub-environment of each row of the step; `None` for all in order.
            is_idle: Whether none of a worker's sub-environments is under way.

        Returns:
            What the new workers have to say: infos of resets (`SAME_STEP`).
        """
        just_ended = ended.rows if indices is None else indices[ended.rows]
        replies: list[tuple[int, Reply]] = []
        for worker, local, span in zip(rows.workers, rows.local_rows, rows.worker_spans, strict=True):
            here = [int(i) for i in just_ended if int(i) in span]
            self._episodes[worker] += len(here)
            if here and local is None and self._is_due(worker) and is_idle(span):
                replies += self._recycle(rows, worker, span, here)
        return replies

    def _is_due(self, worker: int) -> bool:
        if self._after_episodes is not None and self._episodes[worker] >= self._after_episodes:
            return True
        return self._above_bytes is not None and resident_bytes(self._engine.pid(worker)) > self._above_bytes

    def _recycle(self, rows: Rows, worker: int, span: range, just_ended: list[int]) -> list[tuple[int, Reply]]:
        engine, generation = self._engine, rows.generation
        fresh = set(just_ended).union(i for i in np.flatnonzero(rows.episodes.ended).tolist() if i in span)
        moving = [i - span.start for i in span if i not in fresh]
        states = []
        if moving:
            try:
                states = engine.exchange([worker], Verb.GET_STATE, generation, [moving])[0][1].value
            except SubEnvError:
                return []
        out, rows_slice = rows.outputs[generation], slice(span.start, span.stop)
        flags = [array[rows_slice].copy() for array in (out.rewards, out.flags[0], out.flags[1])]
        engine.dispatcher.replace(worker)
        self._episodes[worker] = 0
        begun = [(i - span.start, FRESH) for i in sorted(fresh)]
        engine.exchange([worker], Verb.SET_STATE, generation, [[*zip(moving, states, strict=True), *begun]])
        replies = []
        if rows.options.autoreset_mode is AutoresetMode.SAME_STEP:
            payload = ResetPayload(tuple(i for i, _ in begun), (None,) * len(begun), (None,) * len(begun))
            replies = engine.exchange([worker], Verb.RESET, generation, [payload])
            rows.store(replies)
        for array, kept in zip((out.rewards, out.flags[0], out.flags[1]), flags, strict=True):
            array[rows_slice] = kept
        return replies


def make_recycler(engine: Engine) -> Recycler | None:
    """The recycler that the fleet's options ask for, if any."""
    options = engine.options
    if options.recycle_episodes is None and options.recycle_bytes is None:
        return None
    return Recycler(engine, options.recycle_episodes, options.recycle_bytes)


def resident_bytes(pid: int) -> int:
    """Memory a process holds in RAM, from `/proc`; 0 if it has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
