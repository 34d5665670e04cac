"""The engine of Python sub-environments: actions go into arrays, workers step, results come out of arrays."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import os
import time
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet import errors
from envfleet.fleet import engine as seam
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStats, EpisodeStatus
from envfleet.fleet.infos import SparseInfos
from envfleet.fleet.layout import SpaceLayout
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.options import Options
from envfleet.workers.action_writer import ActionWriter
from envfleet.workers.arrays import ArraysSpec
from envfleet.workers.board import COLUMNS, FLAGS, MAIL, Verb
from envfleet.workers.division import check_states, split
from envfleet.workers.env_checks import batch_spaces
from envfleet.workers.env_group import EnvGroup
from envfleet.workers.mail import Mail, Mailed
from envfleet.workers.messages import GroupPlan, Reply
from envfleet.workers.partial import PartialSteps
from envfleet.workers.replay import write_replay
from envfleet.workers.results import Objects, Results
from envfleet.workers.state import rng_state_of
from envfleet.workers.step_infos import StepInfos
from envfleet.workers.transport import Transport
from envfleet.workers.worker_pool import WorkerPool

_GIVE_UP_S = 1.0
"""Seconds for sub-environments to close after a failed start, or when the program exits."""

_LOSSES = (errors.StartTimeout, errors.StepTimeout, errors.WorkerDied, errors.WorkersUnplaced)
_BREAKING = (errors.FleetClosed, errors.RestartBudgetSpent, *_LOSSES)


class WorkersEngine(seam.Engine):
    """Sub-environments in workers.

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
        self._steps = self._own_ns = 0
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
            self._here: EnvGroup | None = None if transport.server is None else transport.server.group
            self._allocate(space, action_space, transport)
        except BaseException as error:
            self._pool.close(_GIVE_UP_S if isinstance(error, Exception) else 0.0)  # Ctrl-C: at once
            self._finalizer.detach()
            raise
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
        options, is_same_step = self._options, self._mode is AutoresetMode.SAME_STEP
        layout = SpaceLayout(space, takes_more_keys=options.lenient)
        actions = SpaceLayout(action_space, is_checked=not options.lenient)
        rewards = () if self._reward_space is None else (self._reward_space.shape, str(self._reward_space.dtype))
        spec = ArraysSpec(layout, actions, self._num_envs, is_same_step, *rewards)
        self._episodes.shape_rewards(spec.reward_shape)
        arrays = transport.allocate(spec)
        self._is_array = layout.is_array
        self._actions = ActionWriter(actions, arrays.actions, self._num_envs, is_lenient=options.lenient)
        self._results = Results(arrays, layout, self._num_envs, copy=options.copy)
        self._partial = PartialSteps(self._pool, arrays, options.batch_size or self._num_envs)
        self._infos = StepInfos(self._partial, arrays, self._results, self._episodes, options, self._here)
        self._mail = Mail(self._pool, self._results)
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
        if self._episodes.over and self._mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended)
        message = self._actions.write(actions, are_checked_later=self._here is not None)
        generation = 1 - self._results.generation
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

    def _ask_step(self, message: tuple[Any, Any] | None) -> None:
        """Ask every worker to step all its rows."""
        pool, generation = self._pool, 1 - self._results.generation
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
        self._results.generation = generation = 1 - self._results.generation
        out = self._results.outputs[generation]
        rewards, flags = out.rewards, out.flags
        ended = self._episodes.on_step(rewards, flags)
        infos: dict[str, Any] = {}
        if replies or has_columns or (ended is not None and self._infos.reports_ends):
            sparse = [entry for reply in replies for entry in reply.infos]
            infos = self._infos.build(sparse, ended, None, has_columns=has_columns)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle([row for row in ended if row not in lost])
        if self.copy:
            rewards, flags = rewards.copy(), flags.copy()
        self._steps += self._num_envs
        if self.copy and self._is_array:
            return out.observations[0].copy(), rewards, flags[0], flags[1], infos
        return self.observe(), rewards, flags[0], flags[1], infos

    def observe(self, rows: seam.Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations."""
        return self._results.observe(rows, final=final)

    def _take_in(self, replies: Sequence[Reply]) -> None:
        """Answer rows that were rebuilt, keep leaves that are objects, count restarts, and raise failures."""
        failures: list[errors.Failure] = []
        for reply in replies:
            if reply.restarts:
                is_same_step = self._mode is AutoresetMode.SAME_STEP
                rebuilt = [failure.env_index for failure in reply.restarts if failure.verb == "step"]
                repeated = self._results.repeat(rebuilt, is_same_step=is_same_step)
                (reply.final_objects if is_same_step else reply.objects).update(repeated)
            self._results.assign(reply.objects)
            self._results.assign(reply.final_objects, final=True)
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
        repeated = self._results.repeat(rows, is_same_step=self._mode is AutoresetMode.SAME_STEP)
        self._results.assign(repeated, final=True)
        self._infos.clear(rows)
        infos: SparseInfos = [(row, {"env_error": lost[row].summary, "restarted": True}) for row in rows]
        renewed = self._renewed_among(rows)
        if renewed:
            replies = list(self._mail.finish(self._mail.ask(seam.Reset(np.array(renewed)))).values())
            self._take_in(replies)
            infos += [entry for reply in replies for entry in reply.infos]
        out = self._results.written
        out.clear(rows)
        has_ended = renewed if self._mode is AutoresetMode.NEXT_STEP else ()
        out.flags[1, [row for row in rows if row not in has_ended]] = True
        return infos

    def _recycle(self, ended: list[int]) -> None:
        """Replace workers that have ended enough episodes; each has one row, and its generator is kept."""
        for row in ended:
            worker = int(self._partial.worker_of[row])
            self._pool.ended[worker] += 1
            if self._pool.ended[worker] >= (self._options.recycle_episodes or 0):
                try:
                    replies = self._mail.finish(self._mail.ask(seam.Call(rng_state_of, rows=np.array([row]))))
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
        objects: Objects = {}
        if isinstance(request, seam.SetState):
            observations = [state.observation for state, _ in request.states]
            objects = self._results.write_states(dict(zip(self._list(request.rows), observations, strict=True)))
        mailed = self._mail.ask(request, objects)
        return seam.Pending(lambda timeout_s: self._read(mailed, self._mail.finish(mailed, timeout_s)))

    def _send_step(self, actions: Any, rows: seam.Rows | None) -> None:
        is_plain = not (self._options.batch_size or self._pool.lost or self._pool.rebuilding)
        if self._mode is AutoresetMode.DISABLED:
            refuse_ended(self._episodes.ended, rows)
        if rows is None and is_plain:
            self._ask_step(self._actions.write(actions))
            return
        rows = np.arange(self._num_envs) if rows is None else rows
        self._partial.send(rows, self._actions.write_rows(actions, rows), 1 - self._results.generation)

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
        out, places = self._results.written, {row: k for k, row in enumerate(rows.tolist())}
        rewards, flags = out.rewards[rows], out.flags[:, rows]
        ended = self._episodes.on_step(rewards, flags, rows)
        self._show(rows, () if ended is None else rows[ended])
        self._steps += len(rows)
        infos = [(places[row], info) for reply in replies for row, info in reply.infos]
        step_infos = self._infos.build(infos, ended, rows, has_columns=True)
        if ended is not None and self._options.recycle_episodes is not None:
            self._recycle([row for row in rows[ended].tolist() if row not in lost])
        return seam.Batch(self.observe(rows), rewards, flags[0], flags[1], step_infos, rows)

    def _read(self, mailed: Mailed, replies: Mapping[int, Reply]) -> Any:
        """Turn what workers replied into the result of a request."""
        request = mailed.request
        rows = getattr(request, "rows", None)
        every = self._list(rows)
        if isinstance(request, seam.SetState):
            self._restore(request, mailed.objects, replies)
        self._take_in(list(replies.values()))
        if isinstance(request, seam.Reset):
            self._show(np.arange(self._num_envs) if rows is None else rows)
            self._episodes.begin(every)
            places = {row: place for place, row in enumerate(every)}
            infos = [(places[row], info) for reply in replies.values() for row, info in reply.infos]
            return self._infos.build(infos, None, rows, has_columns=False)
        if isinstance(request, (seam.SetAttr, seam.SetState)):
            return None
        values: list[Any] = [None] * len(every)
        for worker, worker_places, _ in split(rows, self._pool.spans):
            for place, value in zip(worker_places, replies[worker].value, strict=True):
                values[place] = value
        if isinstance(request, seam.GetState):
            for place, row in enumerate(every):
                observation = self._results.observation_of(row)
                values[place] = values[place]._replace(observation=observation), self._episodes.save(row)
        return values

    def _restore(self, request: seam.SetState, objects: Mapping[int, list[Any]], replies: Mapping[int, Reply]) -> None:
        """Continue the episodes of saved states, except for those that workers could not load."""
        failed = {failure.env_index for reply in replies.values() for failure in reply.failures}
        every = self._list(request.rows)
        rows = [row for row in every if row not in failed]
        for row, (_, episode) in zip(every, request.states, strict=True):
            if row not in failed:
                self._episodes.restore(row, episode)
        self._results.assign({row: values for row, values in objects.items() if row not in failed})
        self._show(np.array(rows, np.int64))

    def _show(self, rows: seam.Rows, ended: seam.Rows | Sequence[int] = ()) -> None:
        """Show what workers have written for some rows; `ended` rows also have a last observation."""
        is_whole, in_place = len(rows) == self._num_envs, self.copy or bool(self._partial)
        self._results.show(None if is_whole else rows, ended, in_place=in_place)

    def _list(self, rows: seam.Rows | None) -> Sequence[int]:
        return range(self._num_envs) if rows is None else rows.tolist()

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
        workers = pool.look(stacks=stacks)
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
        """Return whether this process, and not one that it is a fork of, has workers to close."""
        peeked = self._finalizer.peek()
        return peeked is not None and peeked[2][-1] == os.getpid()


def _describe_rows(episodes: EpisodeStats, seeds: Sequence[int | None], rows: range) -> str:
    status = episodes.status()
    seeded = [f", last seeded with {seeds[row]}" if seeds[row] is not None else "" for row in rows]
    lines = [f"{row} {errors.after_steps(status.lengths[row])}{seed}" for row, seed in zip(rows, seeded, strict=True)]
    return "; ".join(lines[:8]) + (" …" if len(lines) > 8 else "")


@functools.cache
def _open_at_exit() -> weakref.WeakSet[WorkersEngine]:
    """Return the set of engines that close their sub-environments when the interpreter exits.

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


def _end(transport: Transport, pid: int) -> None:
    if pid == os.getpid():
        transport.close(0.0)
