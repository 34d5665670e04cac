"""The engine of Python sub-environments: actions go into arrays, workers step, results come out of arrays."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import operator
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envfleet import errors
from envfleet.fleet import engine as seam
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStats, EpisodeStatus
from envfleet.fleet.infos import SparseInfos, batch_infos
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.stats import FleetStats, Plan, WorkerStats
from envfleet.options import Options
from envfleet.workers.arrays import ArraysSpec
from envfleet.workers.board import BUSY_NS, COLUMNS, FLAGS, MAIL, STEPS, TABLE, Verb
from envfleet.workers.columns import ColumnReader
from envfleet.workers.division import check_states, messages_of, split
from envfleet.workers.env_checks import batch_spaces
from envfleet.workers.env_group import EnvGroup
from envfleet.workers.messages import GroupPlan, Reply
from envfleet.workers.partial import PartialSteps
from envfleet.workers.replay import write_replay
from envfleet.workers.state import rng_state_of
from envfleet.workers.transport import Transport
from envfleet.workers.worker_pool import WorkerPool

_GIVE_UP_S = 1.0
"""Seconds for sub-environments to close after a failed start, or when the program exits."""

_FEW = 4096
"""Actions times sub-environments up to which looking each up beats comparing arrays."""

_LOSSES = (errors.StartTimeout, errors.StepTimeout, errors.WorkerDied, errors.WorkersUnplaced)
_BREAKING = (errors.FleetClosed, errors.RestartBudgetSpent, *_LOSSES)


class _Mailed(NamedTuple):
    """A request that workers received by mail.

    Attributes:
        request: The request.
        messages: Mail to each worker.
        objects: Observation leaves that the request itself brings, by row, where they are objects.
    """

    request: seam.Request[Any]
    messages: Mapping[int, Any]
    objects: Mapping[int, list[Any]]


class WorkersEngine(seam.Engine):
    """Sub-environments in workers.

    One generation of the outputs holds what calls have returned, the last observation of each row among it. Workers
    write into the other one only, which `_show` makes the first, whole or by rows, once their work is complete. So
    a row whose worker is lost while it writes ends with the last observation that was returned.

    Args:
        plans: Plan of each worker; together they have all rows in order.
        plan: Distribution of sub-environments over workers.
        options: Options of the fleet; `seed` is set.
        transport: Transport of the workers, not started yet; closed by the engine.

    Raises:
        SubEnvError: A sub-environment could not be built.
        InvalidArgument: Sub-environments do not fit together, or there are too few file descriptors.
        StartTimeout: Not all were built in time.
        WorkerDied: A worker ended while building.
        OutOfMemory: There is too little memory for the arrays.
    """

    def __init__(self, plans: Sequence[GroupPlan], plan: Plan, options: Options, transport: Transport) -> None:
        self._options, self.copy, self._mode = options, options.copy, options.autoreset_mode
        self._num_envs = num_envs = plans[-1].rows.stop
        self._episodes = EpisodeStats(num_envs, self._mode)
        # Not a method: a cycle of engine and pool would keep the arrays until a garbage collection.
        self._pool = WorkerPool(plans, options, transport, functools.partial(_describe_rows, self._episodes))
        self._generation = self._steps = self._own_ns = 0
        self._is_stepping = False  # all workers, by one request to each
        self._last_look: FleetStats | None = None
        self._finalizer = weakref.finalize(self, _end, transport, os.getpid())
        if transport.can_kill:
            _open_at_exit().add(self)
        try:
            infos = self._pool.build()
            batched_space, space = batch_spaces(infos, options.observation_mode)
            action_space = infos[0].spaces[0][1]
            self._reward_space = infos[0].reward_spaces[0]
            self._allocate(space, action_space, transport)
        except BaseException as error:
            self._pool.close(_GIVE_UP_S if isinstance(error, Exception) else 0.0)  # Ctrl-C: at once
            self._finalizer.detach()
            raise
        self._here: EnvGroup | None = None if transport.server is None else transport.server.group
        self.traits = seam.Traits(
            plan=dataclasses.replace(plan, reason="; ".join(filter(None, (plan.reason, transport.remark)))),
            num_envs=num_envs,
            single_observation_space=space,
            single_action_space=action_space,
            autoreset_mode=self._mode,
            observation_space=batched_space,
            reward_space=self._reward_space,
            env_spec=infos[0].spec,
            render_mode=infos[0].render_mode,
            metadata=infos[0].metadata,
            is_bound_to_process=self._here is None,
        )

    def _allocate(self, space: Any, action_space: Any, transport: Transport) -> None:
        is_lenient, is_same_step = self._options.lenient, self._mode is AutoresetMode.SAME_STEP
        self._layout = SpaceLayout(space, takes_more_keys=is_lenient)
        self._action_layout = SpaceLayout(action_space, is_checked=not is_lenient)
        self._action_space = batch_space(action_space, self._num_envs)
        rewards = () if self._reward_space is None else (self._reward_space.shape, str(self._reward_space.dtype))
        spec = ArraysSpec(self._layout, self._action_layout, self._num_envs, is_same_step, *rewards)
        self._episodes.shape_rewards(spec.reward_shape)
        arrays = self._arrays = transport.allocate(spec)
        self._columns = ColumnReader(arrays.info_values, arrays.info_given)
        self._published = self._columns.table.version
        num_objects = self._layout.num_objects
        self._objects: list[list[Any]] = [[None] * self._num_envs for _ in range(num_objects)]
        self._final_objects: list[list[Any]] = [[None] * self._num_envs for _ in range(num_objects)]
        self._integers, self._are_allowed = _read_integers(action_space, arrays.actions, self._action_layout)
        self._has_final_infos = is_same_step and self._options.final_infos
        self._tells_ends = self._has_final_infos or self._options.record_episodes
        self._partial = PartialSteps(self._pool, arrays, self._options.batch_size or self._num_envs)
        self._pool.attach(spec)

    # ------------------------------------------------------------------------------------------ a step of all

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        pool = self._pool
        if pool.lost or pool.rebuilding:
            self.send(actions)
            return self.collect()[:5]
        start_ns, waiter = time.perf_counter_ns(), pool.waiter
        waited_ns = waiter.waited_ns
        message = self._take_actions(actions, self._here is not None)
        generation = 1 - self._generation
        if self._here is not None:
            reply = self._here.step(generation, None, *message or ())
            result = self._finish_step([] if reply is None else [reply], self._here.columns.is_dirty)
        elif message is None:
            flags = pool.step(generation)
            if flags < 0:
                self._is_stepping = True
                result = self._collect_step(None)
            else:
                replies = list(pool.replies(pool.every).values()) if flags & MAIL else []
                result = self._finish_step(replies, bool(flags & COLUMNS))
        else:
            self._ask_step(message)
            result = self._collect_step(None)
        self._own_ns += time.perf_counter_ns() - start_ns - waiter.waited_ns + waited_ns
        return result

    def _take_actions(self, actions: Any, are_checked_later: bool = False) -> tuple[Any, Any] | None:
        """Check actions of all rows and put them where the workers read them.

        Args:
            actions: Batched.
            are_checked_later: Whether the reader of the actions checks their range.

        Returns:
            Action leaves that are objects, and actions that fit no array, to send by mail; usually `None`.
        """
        if self._episodes.over and self._mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended)
        arrays, layout = self._arrays.actions, self._action_layout
        if self._integers is not None and type(actions) is np.ndarray:
            try:
                self._integers[:] = actions  # checks type and shape in C
                if are_checked_later or self._are_allowed():
                    return None
            except (TypeError, ValueError):
                pass
        if self._options.lenient:
            form = getattr(actions, "dtype", None), getattr(actions, "shape", None)
            if layout.is_array and type(actions) is np.ndarray and form == (arrays[0].dtype, arrays[0].shape):
                arrays[0][...] = actions
                return None
            try:
                values = list(iterate(self._action_space, actions))
            except TypeError as error:
                raise errors.ActionsNotBatched(
                    f"actions={actions!r:.100}: pass one for each of the {self._num_envs} sub-environments, batched"
                ) from error
            if len(values) != self._num_envs:
                raise errors.InvalidArgument(
                    f"{len(values)} actions were given, expected one for each of {self._num_envs}"
                )
            return (), values
        leaves, objects = layout.unbatch(actions, self._num_envs)
        for target, leaf in zip(arrays, leaves, strict=True):
            target[...] = leaf
        return (objects, None) if objects else None

    def _ask_step(self, message: tuple[Any, Any] | None) -> None:
        """Ask every worker to step all its rows."""
        pool, generation = self._pool, 1 - self._generation
        if message is None:
            pool.ask(pool.every, Verb.STEP, generation)
        else:
            objects, values = message
            messages = {}
            for worker, rows in enumerate(pool.spans):
                span = slice(rows.start, rows.stop)
                messages[worker] = [leaf[span] for leaf in objects], None if values is None else values[span]
            pool.send(Verb.STEP_BY_MAIL, messages, generation)
        self._is_stepping = True

    def _collect_step(self, timeout_s: float | None) -> seam.StepResult:
        pool, flags, start_s = self._pool, 0, time.monotonic()
        done = pool.finish([worker for worker in pool.every if worker not in pool.rebuilding], timeout_s=timeout_s)
        self._await_renewed(pool.lost, start_s, timeout_s)
        for worker in done:
            flags |= pool.lines[worker][FLAGS]
        replies = list(pool.replies(done).values()) if flags & ~COLUMNS else []
        self._is_stepping = False
        lost, pool.lost = pool.lost, {}
        if lost:
            replies.append(Reply(infos=self._answer_lost(lost)))
        return self._finish_step(replies, bool(flags & COLUMNS), lost)

    def _finish_step(self, replies: list[Reply], has_columns: bool, lost: Collection[int] = ()) -> seam.StepResult:
        if replies:
            self._take_in(replies)
        self._generation = 1 - self._generation
        out = self._arrays.outputs[self._generation]
        rewards, flags = out.rewards, out.flags
        ended = self._episodes.on_step(rewards, flags)
        infos: dict[str, Any] = {}
        if replies or has_columns or (ended is not None and self._tells_ends):
            infos = self._infos([entry for reply in replies for entry in reply.infos], ended, None, has_columns)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle([row for row in ended if row not in lost])
        if self.copy:
            rewards, flags = rewards.copy(), flags.copy()
        self._steps += self._num_envs
        if self.copy and self._layout.is_array:
            return out.observations[0].copy(), rewards, flags[0], flags[1], infos
        return self.observe(), rewards, flags[0], flags[1], infos

    def observe(self, rows: seam.Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations."""
        out = self._arrays.outputs[self._generation]
        leaves, objects = (out.finals, self._final_objects) if final else (out.observations, self._objects)
        if rows is not None:
            return self._layout.batch([leaf[rows] for leaf in leaves], [[leaf[i] for i in rows] for leaf in objects])
        if self._layout.is_array:
            return leaves[0].copy() if self.copy else leaves[0]
        return self._layout.batch([leaf.copy() for leaf in leaves] if self.copy else leaves, objects)

    def _infos(
        self, sparse: SparseInfos, ended: list[int] | None, rows: seam.Rows | None, has_columns: bool
    ) -> dict[str, Any]:
        """Build the infos of a call; `sparse` and `ended` count in rows of the call."""
        dense, numbers = self._columns.read(slice(None) if rows is None else rows) if has_columns else ({}, [])
        if sparse and not self._partial:  # rows that are under way use the table as it is
            self._columns.learn(sparse, numbers)
            self._publish_columns()
        first_end = None
        if ended is not None and self._has_final_infos:
            first_end, finals = ended[0], self._arrays.outputs[self._generation].finals
            indices = ended if rows is None else rows[ended]
            final_observations = [self._layout.row(finals, self._final_objects, index) for index in indices]
            ends = [{"final_obs": observation, "final_info": {}} for observation in final_observations]
            sparse = [*zip(ended, ends, strict=True), *sparse]
        sparse.sort(key=operator.itemgetter(0))
        order = self._columns.order(sparse, numbers, first_end) if sparse and dense else ()
        if not self._options.final_infos:
            sparse = [(row, {name: info[name] for name in info if name != "final_info"}) for row, info in sparse]
        size = self._num_envs if rows is None else len(rows)
        infos = batch_infos(size, sparse, dense, order) if sparse or dense else {}
        if ended is not None and self._options.record_episodes:
            infos.update(self._episodes.ended_episodes().entries(size))
        return infos

    def _publish_columns(self) -> None:
        """Pass the table of columns to the workers if it has changed."""
        pool, table = self._pool, self._columns.table
        if self._published == table.version:
            return
        self._published = table.version
        if self._here is not None:
            self._here.columns.learn(table)
            return
        pool.transport.requests.put(len(pool.every) + self._num_envs, table)
        for line in pool.lines:
            line[TABLE] = table.version

    def _take_in(self, replies: Sequence[Reply]) -> None:
        """Answer rows that were rebuilt, keep leaves that are objects, count restarts, and raise failures."""
        failures: list[errors.Failure] = []
        for reply in replies:
            if reply.restarts:
                is_same_step = self._mode is AutoresetMode.SAME_STEP
                rebuilt = [failure.env_index for failure in reply.restarts if failure.verb == "step"]
                (reply.final_objects if is_same_step else reply.objects).update(self._repeat(rebuilt))
            for target, objects in ((self._objects, reply.objects), (self._final_objects, reply.final_objects)):
                _assign(target, objects)
            for row, seed in reply.seeds.items():
                self._pool.seeds[row] = seed
            for failure, path in map(write_replay, reply.restarts):
                again = failure.how_to_repeat(path)
                for index, info in reply.infos:
                    if again and index == failure.env_index and "env_error" in info:
                        info["env_error"] += f"\n{again}"
                self._pool.spend(failure.worker, errors.SubEnvError([failure], path))
            failures += reply.failures
        if failures:
            failures.sort(key=lambda failure: failure.env_index)
            failures[0], path = write_replay(failures[0])
            raise errors.SubEnvError(failures, path)

    # ---------------------------------------------------------------------------------- workers that come and go

    def _renewed_among(self, lost: Iterable[int]) -> list[int]:
        """Return those of some lost rows that are reset in the step that reports the loss."""
        if self._mode is AutoresetMode.NEXT_STEP:
            return [row for row in lost if row in self._episodes.over]
        return list(lost) if self._mode is AutoresetMode.SAME_STEP else []

    def _await_renewed(self, lost: Iterable[int], start_s: float, timeout_s: float | None) -> None:
        """Wait for successors that have to reset lost rows.

        Raises:
            CallTimeout: They were not built within `timeout_s` of `start_s`.
        """
        rows = self._renewed_among(lost)
        left_s = None if timeout_s is None else max(0.0, start_s + timeout_s - time.monotonic())
        try:
            self._pool.await_rebuilt(self._partial.worker_of[rows].tolist() if rows else (), left_s)
        except errors.CallTimeout as error:
            raise errors.CallTimeout(error.verb, timeout_s or 0.0) from None

    def _answer_lost(self, lost: Mapping[int, errors.EnvfleetError]) -> SparseInfos:
        """Answer rows of lost workers: the last observation again, reward 0, truncated.

        An episode that had ended already is not ended twice: its row is reset, as it would have been.
        """
        rows = sorted(lost)
        _assign(self._final_objects, self._repeat(rows))
        self._columns.clear(rows)
        infos: SparseInfos = [(row, {"env_error": lost[row].summary, "restarted": True}) for row in rows]
        renewed = self._renewed_among(rows)
        if renewed:
            replies = list(self._finish(self._ask(seam.Reset(np.array(renewed)))).values())
            self._take_in(replies)
            infos += [entry for reply in replies for entry in reply.infos]
        out = self._arrays.outputs[1 - self._generation]
        out.clear(rows)
        has_ended = renewed if self._mode is AutoresetMode.NEXT_STEP else ()
        out.flags[1, [row for row in rows if row not in has_ended]] = True
        return infos

    def _repeat(self, rows: list[int]) -> dict[int, list[Any]]:
        """Have episodes end with the last observations that were shown; returns leaves that are objects, by row."""
        shown, out = self._arrays.outputs[self._generation], self._arrays.outputs[1 - self._generation]
        ends = out.finals if self._mode is AutoresetMode.SAME_STEP else out.observations
        for end, last in zip(ends, shown.observations, strict=True):
            end[rows] = last[rows]
        return {row: [leaf[row] for leaf in self._objects] for row in rows if self._objects}

    def _show(self, rows: seam.Rows | None, ended: seam.Rows | Sequence[int] = ()) -> None:
        """Take what workers have written for some rows, or all, as what is shown; `ended` rows have finals, too."""
        shown, written = self._arrays.outputs[self._generation], self._arrays.outputs[1 - self._generation]
        if rows is not None and (self.copy or self._partial):
            _copy_rows(written.observations, shown.observations, rows)
            _copy_rows(written.finals, shown.finals, ended)
            return
        if rows is not None:  # so that views that the caller holds survive this call, too
            rest = np.delete(np.arange(self._num_envs), rows)
            _copy_rows(shown.observations, written.observations, rest)
            _copy_rows(shown.finals, written.finals, rest)
        self._generation = 1 - self._generation

    def _recycle(self, ended: list[int]) -> None:
        """Replace workers that have ended enough episodes; each has one row, and its generator is kept."""
        for row in ended:
            worker = int(self._partial.worker_of[row])
            self._pool.ended[worker] += 1
            if self._pool.ended[worker] >= (self._options.recycle_episodes or 0):
                try:
                    replies = self._finish(self._ask(seam.Call(rng_state_of, rows=np.array([row]))))
                except _LOSSES:
                    if self._options.on_failure == "raise":
                        raise
                else:
                    self._pool.recycle(worker, tuple(value for reply in replies.values() for value in reply.value))

    # ----------------------------------------------------------------------------------------------- requests

    def send(self, actions: Any, rows: seam.Rows | None = None) -> None:
        """Start to step `rows`, or all."""
        start_ns, waited_ns = time.perf_counter_ns(), self._pool.waiter.waited_ns
        self._send_step(actions, rows)
        waited_ns = self._pool.waiter.waited_ns - waited_ns
        self._own_ns += time.perf_counter_ns() - start_ns - waited_ns

    def submit(self, request: seam.Request[seam.Answer]) -> seam.Pending[seam.Answer]:
        """Start a request."""
        if isinstance(request, seam.SetState):
            check_states(request, self._num_envs)
        rows = request.rows if isinstance(request, (seam.Reset, seam.SetState)) else ()
        if rows is None or len(rows) == self._num_envs:
            self._pool.settle()  # whatever was under way, and interrupted, ends here
            self._partial.forget()
            self._pool.lost.clear()
        objects = self._write_states(request) if isinstance(request, seam.SetState) else {}
        mailed = self._ask(request)._replace(objects=objects)
        return seam.Pending(lambda timeout_s: self._read(mailed, self._finish(mailed, timeout_s)))

    def _send_step(self, actions: Any, rows: seam.Rows | None) -> None:
        is_plain = not (self._options.batch_size or self._pool.lost or self._pool.rebuilding)
        if rows is None and is_plain:
            self._ask_step(self._take_actions(actions))
            return
        rows = np.arange(self._num_envs) if rows is None else rows
        if self._mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended, rows)
        leaves, objects = self._action_layout.unbatch(actions, len(rows))
        for target, leaf in zip(self._arrays.actions, leaves, strict=True):
            target[rows] = leaf
        self._partial.send(rows, objects, 1 - self._generation)

    def _write_states(self, request: seam.SetState) -> dict[int, list[Any]]:
        """Write the observations of saved states, to be shown once workers have the rest; returns those objects are."""
        objects: list[list[Any]] = [[None] * self._num_envs for _ in self._objects]
        write = self._layout.writer(self._arrays.outputs[1 - self._generation].observations, objects)
        rows = range(self._num_envs) if request.rows is None else request.rows.tolist()
        for row, (state, _) in zip(rows, request.states, strict=True):
            try:
                write(row, state.observation)
            except errors.ObservationError as error:
                raise errors.InvalidArgument(
                    f"the state for sub-environment {row} does not fit ({error}): pass states of the same environment"
                ) from error
        return {row: [leaf[row] for leaf in objects] for row in rows if objects}

    def _ask(self, request: seam.Request[Any]) -> _Mailed:
        """Ask workers for their part of a request."""
        mailed = _Mailed(request, messages_of(request, self._pool.spans), {})
        self._send(mailed, mailed.messages)
        return mailed

    def _send(self, mailed: _Mailed, workers: Collection[int]) -> None:
        verb = Verb.RESET if isinstance(mailed.request, seam.Reset) else Verb.CALL
        self._pool.send(verb, {worker: mailed.messages[worker] for worker in workers}, 1 - self._generation)
        for worker in workers:
            for row, seed in self._renewed(mailed, worker).items():
                self._pool.lost.pop(row, None)  # a new episode supersedes a pending loss
                self._pool.seeds[row] = seed

    def _renewed(self, mailed: _Mailed, worker: int) -> dict[int, int | None]:
        """Return the rows of a worker that a request gives another episode, and the seed that each has after it."""
        message, span = mailed.messages[worker], self._pool.spans[worker]
        if isinstance(mailed.request, seam.Reset):
            seeds = {span[place]: seed for place, seed in zip(message.rows, message.seeds, strict=True)}
            return {row: self._pool.seeds[row] if seed is None else seed for row, seed in seeds.items()}
        if isinstance(mailed.request, seam.SetState):
            (states,) = message[1]
            return dict.fromkeys(span[place] for place in states)
        return {}

    def _finish(self, mailed: _Mailed, timeout_s: float | None = None) -> dict[int, Reply]:
        """Wait for a request by mail.

        Successors of workers that were lost repeat a reset, and a `SetState`, of the rows that were lost with them.
        """
        pool, replies, left = self._pool, dict[int, Reply](), list(mailed.messages)
        while left:
            done = pool.finish(left, timeout_s=timeout_s)
            replies.update(pool.replies(done))
            lost = [worker for worker in left if worker not in done]
            left = [one for one in mailed.messages if not pool.lost.keys().isdisjoint(self._renewed(mailed, one))]
            if left:
                self._send(mailed, left)
            elif lost:
                raise pool.lost[pool.spans[lost[0]].start]
        return replies

    def collect(
        self, count: int | None = None, rows: seam.Rows | None = None, timeout_s: float | None = None
    ) -> seam.Batch:
        """Wait for steps that were sent."""
        start_ns, waited_ns = time.perf_counter_ns(), self._pool.waiter.waited_ns
        every = np.arange(self._num_envs)
        rows = every if rows is None and count is None else rows
        if self._is_stepping and rows is not None and not np.array_equal(rows, every):
            self._partial.take_over()
            self._is_stepping = False
        if self._is_stepping:
            batch = seam.Batch(*self._collect_step(timeout_s), every)
        else:
            batch = self._collect_rows(count, rows, timeout_s)
        waited_ns = self._pool.waiter.waited_ns - waited_ns
        self._own_ns += time.perf_counter_ns() - start_ns - waited_ns
        return batch

    def _collect_rows(self, count: int | None, rows: seam.Rows | None, timeout_s: float | None) -> seam.Batch:
        start_s = time.monotonic()
        rows = self._partial.wait(count, rows, timeout_s)
        self._await_renewed(self._partial.lost_among(rows), start_s, timeout_s)
        replies, lost = self._partial.take(rows)
        if lost:
            replies.append(Reply(infos=self._answer_lost(lost)))
        self._take_in(replies)
        out, places = self._arrays.outputs[1 - self._generation], {row: k for k, row in enumerate(rows.tolist())}
        rewards, flags = out.rewards[rows], out.flags[:, rows]
        ended = self._episodes.on_step(rewards, flags, rows)
        self._show(None if len(rows) == self._num_envs else rows, () if ended is None else rows[ended])
        self._steps += len(rows)
        infos = [(places[row], info) for reply in replies for row, info in reply.infos]
        step_infos = self._infos(infos, ended, rows, True)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle([row for row in rows[ended].tolist() if row not in lost])
        return seam.Batch(self.observe(rows), rewards, flags[0], flags[1], step_infos, rows)

    def _read(self, mailed: _Mailed, replies: Mapping[int, Reply]) -> Any:
        """Turn what workers replied into the result of a request."""
        request = mailed.request
        rows = getattr(request, "rows", None)
        every = range(self._num_envs) if rows is None else rows.tolist()
        if isinstance(request, seam.SetState):
            self._restore(request, mailed.objects, replies)
        self._take_in(list(replies.values()))
        if isinstance(request, seam.Reset):
            self._show(None if len(every) == self._num_envs else rows)
            self._episodes.begin(every)
            places = {row: place for place, row in enumerate(every)}
            infos = [(places[row], info) for reply in replies.values() for row, info in reply.infos]
            return self._infos(infos, None, rows, False)
        if isinstance(request, (seam.SetAttr, seam.SetState)):
            return None
        values: list[Any] = [None] * len(every)
        for worker, mine, _ in split(rows, self._pool.spans):
            for place, value in zip(mine, replies[worker].value, strict=True):
                values[place] = value
        if isinstance(request, seam.GetState):
            shown = self._arrays.outputs[self._generation].observations
            for place, row in enumerate(every):
                observation = self._layout.row(shown, self._objects, row)
                values[place] = values[place]._replace(observation=observation), self._episodes.save(row)
        return values

    def _restore(self, request: seam.SetState, objects: Mapping[int, list[Any]], replies: Mapping[int, Reply]) -> None:
        """Continue the episodes of saved states, but for those that workers could not take."""
        failed = {failure.env_index for reply in replies.values() for failure in reply.failures}
        every = range(self._num_envs) if request.rows is None else request.rows.tolist()
        rows = [row for row in every if row not in failed]
        for row, (_, episode) in zip(every, request.states, strict=True):
            if row not in failed:
                self._episodes.restore(row, episode)
        _assign(self._objects, {row: values for row, values in objects.items() if row not in failed})
        self._show(None if len(rows) == self._num_envs else np.array(rows, np.int64))

    # ------------------------------------------------------------------------------------------------- the rest

    def episodes(self) -> EpisodeStatus:
        """Return the present state of every episode."""
        return self._episodes.status()

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step."""
        return self._episodes.ended_episodes()

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`."""
        if isinstance(error, _LOSSES) and self._options.on_failure == "restart":
            return None  # that call is lost, and nothing else
        if isinstance(error, errors.SubEnvError) and error.verb in ("call", "set_attr", "get_state", "set_state"):
            return None
        if isinstance(error, _BREAKING):
            return Lifecycle.CLOSED if isinstance(error, errors.FleetClosed) else Lifecycle.BROKEN
        if isinstance(error, errors.SubEnvError) and any(failure.verb == "make" for failure in error.failures):
            return Lifecycle.BROKEN
        state = super().state_after(error)
        if state is Lifecycle.TORN:
            self._is_stepping = False
        return state

    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics."""
        if self._last_look is not None:
            return self._last_look
        pool = self._pool
        workers = tuple(
            WorkerStats(
                index=worker,
                env_indices=pool.spans[worker],
                pid=pool.transport.pid(worker),
                steps=pool.lines[worker][STEPS],
                busy_s=pool.lines[worker][BUSY_NS] / 1e9,
                restarts=pool.restarts[worker],
                place=pool.transport.place(worker),
                stack=pool.transport.stack(worker) if stacks else "",
            )
            for worker in pool.every
        )
        busy_s, own_s = sum(worker.busy_s for worker in workers), self._own_ns / 1e9
        step_s, wait_s = (0.0, pool.waiter.waited_ns / 1e9) if self._here is None else (busy_s, 0.0)
        total_s = own_s + wait_s
        return FleetStats(
            steps=self._steps,
            steps_per_s=self._steps / total_s if total_s else 0.0,
            step_s=step_s,
            wait_s=wait_s,
            copy_s=max(own_s - step_s, 0.0),
            busy_s=busy_s,
            restarts=sum(pool.restarts.values()),
            workers=workers,
        )

    def describe(self) -> str:
        """Return where the sub-environments are."""
        note = self._pool.transport.note
        return f"{self.traits.plan.describe()} ({note})" if note else self.traits.plan.describe()

    def abort(self) -> None:
        """End all workers at once; from any thread."""
        self._pool.abort()

    def close(self, timeout_s: float) -> list[errors.Failure]:
        """Close every sub-environment and end the workers."""
        if not self._is_open():
            self._finalizer.detach()
            return []
        self._last_look = self.look()
        failures = [failure for reply in self._pool.close(timeout_s) for failure in reply.failures]
        self._finalizer.detach()
        return failures

    def _is_open(self) -> bool:
        """Return whether there are workers to close, and not those of a process that this one is a fork of."""
        peeked = self._finalizer.peek()
        return peeked is not None and peeked[2][-1] == os.getpid()


def _describe_rows(episodes: EpisodeStats, seeds: Sequence[int | None], rows: range) -> str:
    status = episodes.status()
    seeded = [f", last seeded with {seeds[row]}" if seeds[row] is not None else "" for row in rows]
    lines = [f"{row} {errors.after_steps(status.lengths[row])}{seed}" for row, seed in zip(rows, seeded, strict=True)]
    return "; ".join(lines[:8]) + (" …" if len(lines) > 8 else "")


@functools.cache
def _open_at_exit() -> weakref.WeakSet[WorkersEngine]:
    """Return a set of engines whose sub-environments are closed when the interpreter exits.

    First called after the first finalizer was made, and thus before all finalizers at exit, which end workers at once.
    """
    engines: weakref.WeakSet[WorkersEngine] = weakref.WeakSet()

    def close_all() -> None:
        deadline_s = time.monotonic() + _GIVE_UP_S
        for engine in list(engines):
            if engine._is_open():  # noqa: SLF001  # this module's own
                with contextlib.suppress(Exception):
                    engine._pool.close(max(0.0, deadline_s - time.monotonic()))  # noqa: SLF001

    atexit.register(close_all)
    return engines


def _assign(columns: Sequence[list[Any]], rows: Mapping[int, list[Any]]) -> None:
    for row, values in rows.items():
        for column, value in zip(columns, values, strict=True):
            column[row] = value


def _copy_rows(sources: Sequence[NDArray[Any]], targets: Sequence[NDArray[Any]], rows: Any) -> None:
    for source, target in zip(sources, targets, strict=True):
        target[rows] = source[rows]


def _end(transport: Transport, pid: int) -> None:
    if pid == os.getpid():
        transport.close(0.0)


def _read_integers(space: Any, arrays: Sequence[NDArray[Any]], layout: SpaceLayout) -> tuple[Any, Callable[[], bool]]:
    """Find how to take one integer per row fast.

    Returns:
        The one array as a buffer, to which assignment checks type and shape in C, and a check of whether what it holds
        is in the space; `None` unless actions are such integers.
    """
    if not layout.is_array or arrays[0].ndim != 1 or arrays[0].dtype.kind not in "iu":
        return None, lambda: False
    array: Any = arrays[0]
    integers = memoryview(array)
    if not isinstance(space, gym.spaces.Discrete) or len(integers) * int(space.n) > _FEW:
        return integers, lambda: layout.leaves[0].holds(array)
    allowed = frozenset(range(int(space.start), int(space.start) + int(space.n)))
    return integers, functools.partial(allowed.issuperset, integers)  # for few, a tenth of the time of comparing arrays
