"""The rows of a fleet: which workers hold them, the arrays they lie in, and how results are made of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.core.arrays import Outputs
from envfleet.core.engine import Call, Engine, rows_by_worker
from envfleet.core.episodes import EndedEpisodes, Episodes
from envfleet.core.info_columns import ColumnReader, ColumnSnapshot, build_infos
from envfleet.core.infos import SparseInfos
from envfleet.core.lazy_infos import LazyInfos
from envfleet.core.messages import Reply, StepPayload, Verb
from envfleet.core.stats import Clock
from envfleet.errors import ResetNeeded

StepResult: TypeAlias = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class Rows:
    """Some sub-environments of an engine, as one fleet (or a part of one) sees them.

    Owns what is known of them between calls: the current generation, object leaves, episodes.

    Args:
        engine: The workers.
        indices: Which of the engine's sub-environments.
    """

    def __init__(self, engine: Engine, indices: range) -> None:
        self.engine, self.options, self.indices = engine, engine.options, indices
        self.num_envs = len(indices)
        self.layout, self.action_layout = engine.observation_layout, engine.action_layout
        self.copies, self._is_array = engine.options.copy, engine.observation_layout.is_array
        arrays = engine.view(indices)
        self.actions, self.outputs = arrays.actions, arrays.outputs
        self._action_view = _integers_of(self.actions) if self.action_layout.is_array else None
        self.generation = 0
        self.objects: list[list[Any]] = [[None] * self.num_envs for _ in range(self.layout.num_objects)]
        self.final_objects: list[list[Any]] = [[None] * self.num_envs for _ in range(self.layout.num_objects)]
        self.episodes = Episodes(self.num_envs, self.options.autoreset_mode, indices.start, engine.spec.num_envs)
        self._has_finals = self.options.autoreset_mode is AutoresetMode.SAME_STEP
        self.is_disabled = self.options.autoreset_mode is AutoresetMode.DISABLED
        self.clock = Clock()
        self._find_workers()

    def _find_workers(self) -> None:
        """Find which workers hold these rows, and which rows of theirs."""
        rows = self.indices
        self.workers: list[int] = []
        self.local_rows: list[tuple[int, ...] | None] = []  # None: all of the worker's
        self.worker_spans: list[range] = []  # in this fleet's own indices
        for worker, held in enumerate(self.engine.worker_rows):
            start, stop = max(held.start, rows.start), min(held.stop, rows.stop)
            if start >= stop:
                continue
            is_whole = (start, stop) == (held.start, held.stop)
            self.workers.append(worker)
            self.local_rows.append(None if is_whole else tuple(range(start - held.start, stop - held.start)))
            self.worker_spans.append(range(start - rows.start, stop - rows.start))
        has_parts = any(local is not None for local in self.local_rows)
        self.is_plain = not has_parts and self.action_layout.num_objects == 0
        # A group in this thread looks up all of its actions before it steps anything, and refuses what is out of range.
        self._is_read_first = self.is_plain and self.engine.transport.step_here is not None
        values = [out.info_values for out in self.outputs if out.info_values is not None]
        present = [out.info_present for out in self.outputs if out.info_present is not None]
        spans = [(span.start, span.stop) for span in self.worker_spans]
        self._columns = ColumnReader(values, present, spans) if values else None
        self._columns_version = 0

    def refuse_ended(self, indices: NDArray[np.integer[Any]]) -> None:
        """Refuse to step sub-environments whose episode has ended, which nobody resets by itself.

        Raises:
            ResetNeeded: There are such among `indices`.
        """
        ended = indices[self.episodes.ended[indices]].tolist()
        if ended:
            raise ResetNeeded(
                f"the episodes of sub-environments {ended} have ended and autoreset is DISABLED: reset them first, "
                f'reset_envs({ended}) or reset(options={{"reset_mask": mask}})'
            )

    def locate(self, indices: Sequence[int]) -> Iterator[tuple[int, list[int], tuple[int, ...]]]:
        """For each worker that holds some of `indices`: the worker, positions in `indices`, its local rows."""
        first, held = self.indices.start, self.engine.worker_rows
        for worker, positions in rows_by_worker(held, [first + index for index in indices]).items():
            yield worker, positions, tuple(first + indices[k] - held[worker].start for k in positions)

    # ------------------------------------------------------------------ results

    def take_actions(self, actions: Any) -> list[list[Any]]:
        """Check actions of all rows and put them where the workers read them.

        Returns:
            The leaves that do not fit an array.

        Raises:
            InvalidArgument: They do not fit `action_space`; nothing was sent.
        """
        if self._action_view is not None and type(actions) is np.ndarray:
            try:
                self._action_view[:] = actions
                if self._is_read_first or self.action_layout.leaves[0].holds(self.actions[0]):
                    return []
            except (TypeError, ValueError):  # of another type or shape, which may fit all the same
                pass
        leaves, objects = self.action_layout.unbatch(actions, self.num_envs)
        for target, leaf in zip(self.actions, leaves, strict=True):
            target[...] = leaf
        return objects

    def step_payloads(self, objects: list[list[Any]]) -> list[StepPayload]:
        """Payloads, one per worker, of a step of all rows that is not the plain one."""
        return [
            StepPayload(local, [leaf[span.start : span.stop] for leaf in objects], one_by_one=False)
            for local, span in zip(self.local_rows, self.worker_spans, strict=True)
        ]

    def observe(self) -> Any:
        """All observations of the current generation; copied if the fleet copies."""
        leaves = self.outputs[self.generation].observations
        if self._is_array:
            return leaves[0].copy() if self.copies else leaves[0]
        if self.copies:
            leaves = [leaf.copy() for leaf in leaves]
        return self.layout.batch(leaves, self.objects)

    def take(self, rows: NDArray[np.integer[Any]]) -> Any:
        """Observations of some rows, copied."""
        leaves = [leaf[rows] for leaf in self.outputs[self.generation].observations]
        return self.layout.batch(leaves, [[leaf[i] for i in rows] for leaf in self.objects])

    def store(self, replies: Sequence[tuple[int, Reply]]) -> None:
        """Keep what came beside the arrays: observation leaves that are objects, and newly learnt info columns."""
        first = self.indices.start
        for worker, reply in replies:
            for index, values in reply.objects.items():
                for leaf, value in zip(self.objects, values, strict=True):
                    leaf[index - first] = value
            for index, values in reply.final_objects.items():
                for leaf, value in zip(self.final_objects, values, strict=True):
                    leaf[index - first] = value
            if reply.columns:
                self.engine.learn_columns(worker, reply.columns)

    def infos(
        self,
        replies: Sequence[tuple[int, Reply]],
        indices: Sequence[int] | None = None,
        ended: EndedEpisodes | None = None,
        has_columns: bool = False,
    ) -> dict[str, Any]:
        """Infos of a call, built when somebody looks.

        Args:
            replies: What the workers said.
            indices: The sub-environment of each row of the result; `None`: all in order.
            ended: The episodes that ended, by row.
            has_columns: Whether infos may lie in columns: after a step.
        """
        final_rows = ended.rows.tolist() if ended is not None and self._has_finals else []
        if not self.options.record_episodes:
            ended = None
        if not replies and not final_rows and not (has_columns and self.engine.columns_version):
            return {} if ended is None else LazyInfos(dict, ended)
        sparse: SparseInfos = []
        finals = self.outputs[self.generation].finals
        for k in final_rows:
            index = k if indices is None else indices[k]
            sparse.append((k, {"final_obs": self.layout.row(finals, self.final_objects, index)}))
        places = None if indices is None else {index: k for k, index in enumerate(indices)}
        first = self.indices.start
        for _, reply in replies:
            for index, info in reply.infos:
                sparse.append((index - first if places is None else places[index - first], info))
        snapshot = self._snapshot_columns(indices) if has_columns else None
        if not sparse and snapshot is None:
            return {} if ended is None else LazyInfos(dict, ended)
        size = self.num_envs if indices is None else len(indices)
        return LazyInfos(lambda: build_infos(size, sparse, snapshot), ended)

    def _snapshot_columns(self, indices: Sequence[int] | None) -> ColumnSnapshot | None:
        reader, engine = self._columns, self.engine
        if reader is None:
            return None
        if self._columns_version != engine.columns_version:
            for k, worker in enumerate(self.workers):
                reader.know(k, engine.columns[worker])
            self._columns_version = engine.columns_version
        return reader.snapshot(self.generation, None if indices is None else np.asarray(indices, np.intp))

    def final_observations(self) -> Any:
        """Last observations of the episodes that ended in the last step, batched; copied if the fleet copies."""
        finals = self.outputs[self.generation].finals
        if self.copies:
            finals = [leaf.copy() for leaf in finals]
        return self.layout.batch(finals, self.final_objects)

    def finish(self, call: Call, timeout_s: float | None = None) -> list[tuple[int, Reply]]:
        """`Engine.finish`, with the time it waits on this clock, too."""
        engine = self.engine
        before_s = engine.wait_s
        try:
            return engine.finish(call, timeout_s)
        finally:
            self.clock.wait_s += engine.wait_s - before_s

    def exchange(self, workers: Sequence[int], verb: Verb, payloads: Sequence[Any]) -> list[tuple[int, Reply]]:
        """Ask workers for something and wait for all of them."""
        return self.finish(self.engine.start(workers, verb, self.generation, payloads))

    def turn(self, num_rows: int) -> None:
        """Go on to the other generation, for a call that writes `num_rows` of the rows."""
        before = self.outputs[self.generation]
        self.generation = 1 - self.generation
        if num_rows < self.num_envs:
            carry_over(before, self.outputs[self.generation])


def _integers_of(arrays: list[NDArray[Any]]) -> Any:
    """The one array as a buffer, to which assignment checks type and shape in C; `None` unless it is of integers."""
    array: Any = arrays[0]  # numpy does not type its arrays as buffers
    return memoryview(array) if array.ndim == 1 and array.dtype.kind in "iu" else None


def carry_over(before: Outputs, after: Outputs) -> None:
    """Copy one generation of results to the other, for the rows that the next call does not write."""
    for old, new in zip(before.observations, after.observations, strict=True):
        new[...] = old
    after.clear(slice(None))


def cut(spans: Sequence[range], num_envs: int, num_parts: int) -> list[tuple[int, int]]:
    """Cut rows into about equal parts; between workers if that is possible, so that no part waits for another's."""
    edges = [span.start for span in spans] + [num_envs]
    if (len(edges) - 1) % num_parts == 0:
        every = (len(edges) - 1) // num_parts
        bounds = edges[::every]
    else:
        bounds = [num_envs * k // num_parts for k in range(num_parts + 1)]
    return list(itertools.pairwise(bounds))
