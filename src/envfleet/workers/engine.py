"""The engine of Python sub-environments: actions go into arrays, workers step, results come out of arrays."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate
from numpy.typing import NDArray

from envfleet import errors
from envfleet.fleet import engine as seam
from envfleet.fleet.episodes import Episodes, EpisodeStatus
from envfleet.fleet.infos import SparseInfos, batch_infos
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.stats import FleetStats, Plan, WorkerStats
from envfleet.options import Options
from envfleet.workers.arrays import ArraysSpec
from envfleet.workers.board import BUSY_NS, COLUMNS, FLAGS, MAIL, STEPS, TABLE, Verb
from envfleet.workers.columns import ColumnReader
from envfleet.workers.crew import Crew
from envfleet.workers.division import check_states, messages_of, split
from envfleet.workers.env_checks import batch_spaces
from envfleet.workers.env_group import EnvGroup, GroupPlan, Reply
from envfleet.workers.partial import Loss, PartialSteps
from envfleet.workers.replay import write_replay
from envfleet.workers.state import rng_state_of
from envfleet.workers.transport import Transport

_GIVE_UP_S = 1.0
"""Seconds for sub-environments to close that were built when others could not be, or when the program exits."""

_FEW = 4096
"""Actions times sub-environments up to which looking each up beats comparing arrays."""

_LOSSES = (errors.StartTimeout, errors.StepTimeout, errors.WorkerDied, errors.WorkersUnplaced)
_BREAKING = (errors.FleetClosed, errors.RestartBudgetSpent, *_LOSSES)


class _Open(NamedTuple):
    """A request that workers were asked to carry out by mail, and that is not collected yet."""

    request: seam.Request
    messages: Mapping[int, Any]


class WorkersEngine(seam.Engine):
    """Sub-environments in workers.

    Args:
        plans: What each worker is built from; their rows are all rows in order.
        plan: How they are spread.
        options: Of the fleet; `seed` is set.
        transport: Carries the workers; not started yet. The engine closes it.

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
        self._episodes = Episodes(num_envs, self._mode, describes=options.record_episodes)
        self._seeds: list[int | None] = [None] * num_envs
        # Not a method: a cycle of engine and crew would keep the arrays until a garbage collection.
        self._crew = Crew(plans, options, transport, functools.partial(_describe_rows, self._episodes, self._seeds))
        self._generation = self._steps = self._own_ns = 0
        self._ended_by = [0] * len(plans)  # episodes that ended since a worker was built
        self._open: _Open | None = None
        self._is_stepping = False  # all workers, by one request to each
        self._last_look: FleetStats | None = None
        self._finalizer = weakref.finalize(self, _end, transport, os.getpid())
        if transport.can_kill:
            _open_at_exit().add(self)
        try:
            infos = self._crew.build()
            batched_space = batch_spaces(infos, same_bounds=options.observation_mode == "same")
            space, action_space = infos[0].spaces[0]
            self._allocate(space, action_space, transport)
        except BaseException as error:
            self._crew.close(_GIVE_UP_S if isinstance(error, Exception) else 0.0)  # Ctrl-C: at once
            self._finalizer.detach()
            raise
        self._here: EnvGroup | None = None if transport.server is None else transport.server.group
        self.traits = seam.Traits(
            plan=plan,
            num_envs=num_envs,
            single_observation_space=space,
            single_action_space=action_space,
            autoreset_mode=self._mode,
            observation_space=batched_space,
            env_spec=infos[0].spec,
            render_mode=infos[0].render_mode,
            metadata=infos[0].metadata,
            is_bound_to_process=self._here is None,
        )

    def _allocate(self, space: Any, action_space: Any, transport: Transport) -> None:
        is_lenient, is_same_step = self._options.lenient_actions, self._mode is AutoresetMode.SAME_STEP
        self._layout, self._action_layout = SpaceLayout(space), SpaceLayout(action_space, is_checked=not is_lenient)
        self._action_space = batch_space(action_space, self._num_envs)
        spec = ArraysSpec(self._layout, self._action_layout, self._num_envs, has_finals=is_same_step)
        arrays = self._arrays = transport.allocate(spec)
        self._columns = ColumnReader(arrays.info_values, arrays.info_given)
        num_objects = self._layout.num_objects
        self._objects: list[list[Any]] = [[None] * self._num_envs for _ in range(num_objects)]
        self._final_objects: list[list[Any]] = [[None] * self._num_envs for _ in range(num_objects)]
        self._integers, self._are_allowed = _read_integers(action_space, arrays.actions, self._action_layout)
        self._has_final_infos = is_same_step and self._options.final_infos
        self._tells_ends = self._has_final_infos or self._options.record_episodes
        self._partial = PartialSteps(self._crew, arrays, self._options.batch_size or self._num_envs)
        self._crew.attach(spec)

    # ------------------------------------------------------------------------------------------ a step of all

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        crew = self._crew
        if crew.lost or crew.rebuilding:
            self.submit(seam.Step(actions))
            batch: seam.Batch = self.collect()
            return batch[:5]
        start_ns, waiting = time.perf_counter_ns(), crew.waiting
        waited_ns = waiting.waited_ns
        message = self._take_actions(actions, self._here is not None)
        generation = 1 - self._generation
        if self._here is not None:
            reply = self._here.step(generation, None, *message or ())
            self._generation = generation
            result = self._finish_step([] if reply is None else [reply], self._here.columns.is_dirty)
        elif message is None:
            self._generation = generation
            flags = crew.step(generation)
            if flags < 0:
                self._is_stepping = True
                result = self._collect_step(None)
            else:
                replies = list(crew.replies(crew.every).values()) if flags & MAIL else []
                result = self._finish_step(replies, bool(flags & COLUMNS))
        else:
            self._ask_step(message)
            result = self._collect_step(None)
        self._own_ns += time.perf_counter_ns() - start_ns - waiting.waited_ns + waited_ns
        return result

    def _take_actions(self, actions: Any, are_checked_later: bool = False) -> tuple[Any, Any] | None:
        """Check actions of all rows and put them where the workers read them.

        Args:
            actions: Batched.
            are_checked_later: Whether whoever reads them checks their range.

        Returns:
            Action leaves that are objects, and actions that fit no array, to go by mail; usually there are none.
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
        if self._options.lenient_actions:
            given = getattr(actions, "dtype", None), getattr(actions, "shape", None)
            if layout.is_array and type(actions) is np.ndarray and given == (arrays[0].dtype, arrays[0].shape):
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
        crew, generation = self._crew, 1 - self._generation
        if message is None:
            crew.ask(crew.every, Verb.STEP, generation)
        else:
            objects, values = message
            messages = {}
            for worker, rows in enumerate(crew.spans):
                span = slice(rows.start, rows.stop)
                messages[worker] = [leaf[span] for leaf in objects], None if values is None else values[span]
            crew.send(Verb.STEP_BY_MAIL, messages, generation)
        self._generation, self._is_stepping = generation, True

    def _collect_step(self, timeout_s: float | None) -> seam.StepResult:
        crew, flags = self._crew, 0
        done = crew.finish([worker for worker in crew.every if worker not in crew.rebuilding], timeout_s=timeout_s)
        for worker in done:
            flags |= crew.lines[worker][FLAGS]
        replies = list(crew.replies(done).values()) if flags & ~COLUMNS else []
        self._is_stepping = False
        if crew.lost:
            lost = {row: Loss(crew.lost.pop(row), 1 - self._generation) for row in list(crew.lost)}
            replies.append(Reply(infos=self._answer_lost(lost)))
        return self._finish_step(replies, bool(flags & COLUMNS))

    def _finish_step(self, replies: list[Reply], has_columns: bool) -> seam.StepResult:
        if replies:
            self._take_in(replies)
        out = self._arrays.outputs[self._generation]
        rewards, flags = out.rewards, out.flags
        ended = self._episodes.on_step(rewards, flags)
        infos: dict[str, Any] = {}
        if replies or has_columns or (ended is not None and self._tells_ends):
            infos = self._infos([entry for reply in replies for entry in reply.infos], ended, None, has_columns)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle(ended)
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
        if sparse and self._columns.learn(sparse) and not self._partial:
            crew, table = self._crew, self._columns.table
            if self._here is not None:
                self._here.columns.learn(table)
            else:
                crew.transport.requests.put(len(crew.every) + self._num_envs, table)
                for line in crew.lines:
                    line[TABLE] = len(table)
        if ended is not None and self._has_final_infos:
            finals = self._arrays.outputs[self._generation].finals
            for place in ended:
                index = place if rows is None else rows[place]
                sparse.append((place, {"final_obs": self._layout.row(finals, self._final_objects, index)}))
        dense = self._columns.read(slice(None) if rows is None else rows) if has_columns else {}
        if not self._options.final_infos:
            sparse = [(row, {name: info[name] for name in info if name != "final_info"}) for row, info in sparse]
        size = self._num_envs if rows is None else len(rows)
        infos = batch_infos(size, sparse, dense) if sparse or dense else {}
        if ended is not None and self._episodes.described is not None:
            infos.update(self._episodes.described.entries(size))
        return infos

    def _take_in(self, replies: Sequence[Reply]) -> None:
        """Keep observation leaves that are objects, count restarts, and raise failures."""
        failures: list[errors.Failure] = []
        for reply in replies:
            for target, found in ((self._objects, reply.objects), (self._final_objects, reply.final_objects)):
                for index, values in found.items():
                    for leaf, value in zip(target, values, strict=True):
                        leaf[index] = value
            for failure, path in map(write_replay, reply.restarts):
                again = failure.how_to_repeat(path)
                for index, info in reply.infos:
                    if again and index == failure.env_index and "env_error" in info:
                        info["env_error"] += f"\n{again}"
                self._crew.spend(failure.worker, errors.SubEnvError([failure], path))
            failures += reply.failures
        if failures:
            failures.sort(key=lambda failure: failure.env_index)
            failures[0], path = write_replay(failures[0])
            raise errors.SubEnvError(failures, path)

    # ---------------------------------------------------------------------------------- workers that come and go

    def _answer_lost(self, lost: Mapping[int, Loss]) -> SparseInfos:
        """Answer rows whose worker was lost: the last observation again, reward 0, truncated.

        An episode that had ended already is not ended twice: its row is reset, as it would have been.
        """
        out, rows = self._arrays.outputs[self._generation], sorted(lost)
        for row in rows:
            last = self._arrays.outputs[lost[row].before]
            for leaf, old in zip(out.observations, last.observations, strict=True):
                leaf[row] = old[row]
        for final, leaf in zip(out.finals, out.observations, strict=False):
            final[rows] = leaf[rows]
        for finals, values in zip(self._final_objects, self._objects, strict=True):
            for row in rows:
                finals[row] = values[row]
        self._columns.clear(rows)
        infos: SparseInfos = [(row, {"env_error": lost[row].why.summary, "restarted": True}) for row in rows]
        ended = [row for row in rows if self._mode is AutoresetMode.NEXT_STEP and row in self._episodes.over]
        renewed = rows if self._mode is AutoresetMode.SAME_STEP else ended
        if renewed:
            replies = list(self._finish(self._ask(seam.Reset(np.array(renewed)))).values())
            self._take_in(replies)
            infos += [entry for reply in replies for entry in reply.infos]
        out.clear(rows)
        out.flags[1, [row for row in rows if row not in ended]] = True
        return infos

    def _recycle(self, ended: list[int]) -> None:
        """Replace workers that have ended enough episodes; each has one row, whose generator goes with it."""
        for row in ended:
            worker = int(self._partial.worker_of[row])
            self._ended_by[worker] += 1
            if self._ended_by[worker] >= (self._options.recycle_episodes or 0):
                self._ended_by[worker] = 0
                try:
                    replies = self._finish(self._ask(seam.Call(rng_state_of, rows=np.array([row]))))
                except _LOSSES:
                    if self._options.on_failure == "raise":
                        raise
                else:
                    self._crew.recycle(worker, tuple(value for reply in replies.values() for value in reply.value))

    # ----------------------------------------------------------------------------------------------- requests

    def submit(self, request: seam.Request) -> None:
        """Start a request."""
        if isinstance(request, seam.Step):
            start_ns, waited_ns = time.perf_counter_ns(), self._crew.waiting.waited_ns
            self._submit_step(request)
            waited_ns = self._crew.waiting.waited_ns - waited_ns
            self._own_ns += time.perf_counter_ns() - start_ns - waited_ns
            return
        if isinstance(request, seam.SetState):
            check_states(request, self._num_envs)
        if isinstance(request, (seam.Reset, seam.SetState)):
            is_whole = request.rows is None or len(request.rows) == self._num_envs
            if is_whole:  # whatever was under way, and interrupted, ends here
                self._crew.settle()
                self._partial.forget()
                self._crew.lost.clear()
            if not self.copy and not self._partial:
                self._turn(is_whole)
        self._open = self._ask(request)

    def _submit_step(self, request: seam.Step) -> None:
        is_plain = not (self._options.batch_size or self._crew.lost or self._crew.rebuilding)
        if request.rows is None and is_plain:
            self._ask_step(self._take_actions(request.actions))
            return
        rows = np.arange(self._num_envs) if request.rows is None else request.rows
        if self._mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended, rows)
        leaves, objects = self._action_layout.unbatch(request.actions, len(rows))
        if not self.copy and not self._partial:
            self._turn(is_whole=False)
        for target, leaf in zip(self._arrays.actions, leaves, strict=True):
            target[rows] = leaf
        self._partial.send(rows, objects, self._generation)

    def _ask(self, request: seam.Request, messages: Mapping[int, Any] | None = None) -> _Open:
        """Ask workers for their part of a request."""
        crew, is_reset = self._crew, isinstance(request, seam.Reset)
        messages = messages or messages_of(request, crew.spans, self._generation)
        crew.send(Verb.RESET if is_reset else Verb.CALL, messages, self._generation)
        for worker, plan in messages.items() if is_reset else ():
            for place, seed in zip(plan.rows, plan.seeds, strict=True):
                row = crew.spans[worker][place]
                crew.lost.pop(row, None)  # a row that is reset need not be told that it was lost
                self._seeds[row] = self._seeds[row] if seed is None else seed
        return _Open(request, messages)

    def _finish(self, opened: _Open, timeout_s: float | None = None) -> dict[int, Reply]:
        """Wait for a request by mail; a reset is made again by the successors of workers that were lost."""
        crew, (request, messages) = self._crew, opened
        left, replies = dict(messages), dict[int, Reply]()
        while left:
            done = crew.finish(list(left), timeout_s=timeout_s)
            replies.update(crew.replies(done))
            lost, left = [worker for worker in left if worker not in done], dict[int, Any]()
            if isinstance(request, seam.Reset) and crew.lost:
                for worker, plan in messages.items():
                    if any(crew.spans[worker][place] in crew.lost for place in plan.rows):
                        left[worker] = plan
                self._ask(request, left)
            elif lost:
                raise crew.lost[crew.spans[lost[0]].start]
        return replies

    def collect(self, count: int | None = None, rows: seam.Rows | None = None, timeout_s: float | None = None) -> Any:
        """Wait for what was submitted."""
        start_ns, waited_ns = time.perf_counter_ns(), self._crew.waiting.waited_ns
        if self._open is not None:
            opened, self._open = self._open, None
            try:
                replies = self._finish(opened, timeout_s)
            except errors.CallTimeout:
                self._open = opened
                raise
            return self._read(opened.request, replies)
        every = np.arange(self._num_envs)
        rows = every if rows is None and count is None else rows
        if self._is_stepping and rows is not None and not np.array_equal(rows, every):
            self._partial.take_over(self._generation)
            self._is_stepping = False
        if self._is_stepping:
            batch = seam.Batch(*self._collect_step(timeout_s), every)
        else:
            batch = self._collect_rows(count, rows, timeout_s)
        waited_ns = self._crew.waiting.waited_ns - waited_ns
        self._own_ns += time.perf_counter_ns() - start_ns - waited_ns
        return batch

    def _collect_rows(self, count: int | None, rows: seam.Rows | None, timeout_s: float | None) -> seam.Batch:
        found = self._partial.collect(count, rows, timeout_s)
        self._take_in(found.replies)
        rows, infos = found.rows, found.infos
        if found.lost:
            infos += self._answer_lost(found.lost)
        out, places = self._arrays.outputs[self._generation], {row: k for k, row in enumerate(rows.tolist())}
        rewards, terminated, truncated = out.rewards[rows], out.flags[0, rows], out.flags[1, rows]
        ended = self._episodes.on_step(rewards, out.flags[:, rows], rows)
        self._steps += len(rows)
        told = self._infos([(places[row], info) for row, info in infos], ended, rows, True)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle(rows[ended].tolist())
        return seam.Batch(self.observe(rows), rewards, terminated, truncated, told, rows)

    def _read(self, request: seam.Request, replies: Mapping[int, Reply]) -> Any:
        """Turn what workers replied into the result of a request."""
        self._take_in(list(replies.values()))
        rows = getattr(request, "rows", None)
        every = range(self._num_envs) if rows is None else rows.tolist()
        if isinstance(request, seam.Reset):
            self._episodes.begin(every)
            places = {row: place for place, row in enumerate(every)}
            told = [(places[row], info) for reply in replies.values() for row, info in reply.infos]
            return self._infos(told, None, rows, False)
        if isinstance(request, seam.SetState):
            for row, state in zip(every, request.states, strict=True):
                self._episodes.restore(row, state[1])
                self._crew.lost.pop(row, None)
            return None
        if isinstance(request, seam.SetAttr):
            return None
        values: list[Any] = [None] * len(every)
        for worker, mine, _ in split(rows, self._crew.spans):
            for place, value in zip(mine, replies[worker].value, strict=True):
                values[place] = value
        if isinstance(request, seam.GetState):
            return [(state, self._episodes.save(row)) for state, row in zip(values, every, strict=True)]
        return values

    def _turn(self, is_whole: bool) -> None:
        """Continue in the other generation, so that views that the caller holds survive this call, too."""
        before, after = self._arrays.outputs[self._generation], self._arrays.outputs[1 - self._generation]
        if not is_whole:
            for old, new in zip(before.observations, after.observations, strict=True):
                new[...] = old
            after.clear(slice(None))
        self._generation = 1 - self._generation

    # ------------------------------------------------------------------------------------------------- the rest

    def episodes(self) -> EpisodeStatus:
        """Return where every episode stands."""
        return self._episodes.status()

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
            self._open, self._is_stepping = None, False
        return state

    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics."""
        if self._last_look is not None:
            return self._last_look
        crew = self._crew
        workers = tuple(
            WorkerStats(
                index=worker,
                env_indices=crew.spans[worker],
                pid=crew.transport.pid(worker),
                steps=crew.lines[worker][STEPS],
                busy_s=crew.lines[worker][BUSY_NS] / 1e9,
                restarts=crew.restarts[worker],
                place=crew.transport.place(worker),
                stack=crew.transport.stack(worker) if stacks else "",
            )
            for worker in crew.every
        )
        busy_s, own_s = sum(worker.busy_s for worker in workers), self._own_ns / 1e9
        step_s, wait_s = (0.0, crew.waiting.waited_ns / 1e9) if self._here is None else (busy_s, 0.0)
        total_s = own_s + wait_s
        return FleetStats(
            steps=self._steps,
            steps_per_s=self._steps / total_s if total_s else 0.0,
            step_s=step_s,
            wait_s=wait_s,
            copy_s=max(own_s - step_s, 0.0),
            busy_s=busy_s,
            restarts=sum(crew.restarts.values()),
            workers=workers,
        )

    def describe(self) -> str:
        """Return where the sub-environments are."""
        note = self._crew.transport.note
        return f"{self.traits.plan.describe()} ({note})" if note else self.traits.plan.describe()

    def abort(self) -> None:
        """End all workers at once; from any thread."""
        self._crew.abort()

    def close(self, timeout_s: float) -> list[errors.Failure]:
        """Close every sub-environment and end the workers."""
        if not self._is_open():
            self._finalizer.detach()
            return []
        self._last_look = self.look()
        failures = [failure for reply in self._crew.close(timeout_s) for failure in reply.failures]
        self._finalizer.detach()
        return failures

    def _is_open(self) -> bool:
        """Return whether there are workers to close, and not those of a process that this one is a fork of."""
        peeked = self._finalizer.peek()
        return peeked is not None and peeked[2][-1] == os.getpid()


def _describe_rows(episodes: Episodes, seeds: Sequence[int | None], rows: range) -> str:
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
                    engine._crew.close(max(0.0, deadline_s - time.monotonic()))  # noqa: SLF001

    atexit.register(close_all)
    return engines


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
