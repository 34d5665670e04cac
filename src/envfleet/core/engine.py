"""What a fleet and the parts it is split into have in common: the workers, their arrays, and one way to ask them."""

from __future__ import annotations

import collections
import dataclasses
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from envfleet.core.arrays import ArraysSpec, FleetArrays, PlaceWord
from envfleet.core.dispatch import Dispatcher, Inbox, RestartBudget
from envfleet.core.failures import sub_env_error
from envfleet.core.forks import disown_in_forks
from envfleet.core.group import GroupInfo
from envfleet.core.info_columns import ColumnSpec
from envfleet.core.layout import SpaceLayout
from envfleet.core.messages import Reply, Verb
from envfleet.core.recorder import Recorder
from envfleet.core.replay import write_replay
from envfleet.core.stats import Plan, WorkerStats
from envfleet.core.transport import GroupPlan, Transport
from envfleet.errors import CallTimeout, EnvfleetError, Failure, FleetBroken, InvalidArgument, StepTimeout, SubEnvError

CLOSE_TIMEOUT_S = 10.0

_STEP = Verb.STEP  # an enum's member is slow to look up


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How a fleet behaves, as `make` was told.

    Attributes:
        autoreset_mode: Gymnasium's.
        copy: Whether returned arrays are the caller's own.
        batch_size: Rows per `recv`.
        on_failure: What becomes of failed sub-environments and workers.
        max_restarts: Restarts allowed within an hour.
        step_timeout_s: Deadline of a sub-environment's step or reset.
        start_timeout_s: Limit for all sub-environments to be built.
        recycle_episodes: Episodes after which a worker is replaced.
        recycle_bytes: Memory above which a worker is replaced.
        has_spares: Whether every sub-environment has a second one, reset in the background.
        record_episodes: Whether `infos["episode"]` is given.
        root_seed: Seeds of rebuilt sub-environments derive from it.
    """

    autoreset_mode: AutoresetMode
    copy: bool
    batch_size: int
    on_failure: Literal["raise", "restart"]
    max_restarts: int
    step_timeout_s: float | None
    start_timeout_s: float
    recycle_episodes: int | None
    recycle_bytes: int | None
    has_spares: bool
    record_episodes: bool
    root_seed: int


@dataclasses.dataclass(slots=True)
class Call:
    """Something asked of several workers: how many have not completed yet, and what the others said."""

    verb: Verb
    missing: int
    inbox: Inbox
    replies: list[tuple[int, Reply]]


NOTHING_TO_SAY = Call(Verb.STEP, 0, collections.deque(), [])
"""A step that is complete, with no more to it than what it wrote: what most steps in the caller's own thread are."""


class Engine:
    """The workers of a fleet.

    Args:
        transport: Started.
        infos: What its groups told of themselves.
        spec: Decides the arrays.
        groups: What each worker holds.
        options: As `make` was told.
        plan: How the sub-environments are spread.
        release: Called once after the workers have ended, for what else the fleet holds.
    """

    def __init__(
        self,
        transport: Transport,
        infos: list[GroupInfo],
        spec: ArraysSpec,
        groups: Sequence[GroupPlan],
        options: EngineOptions,
        plan: Plan,
        release: Callable[[], None],
    ) -> None:
        self.spec, self.options, self.plan = spec, options, plan
        self.worker_rows = [group.rows for group in groups]
        self.observation_layout = SpaceLayout(spec.observation_space)
        self.action_layout = SpaceLayout(spec.action_space)
        self.transport, self._release = transport, release
        self.failure: EnvfleetError | None = None
        self.is_closed = self.is_torn = False
        self.is_sound = True  # not closed, torn or broken: what is asked before every step, in one word
        self.wait_s = 0.0
        self.columns: list[list[ColumnSpec]] = [[] for _ in self.worker_rows]
        self.columns_version = 0
        self.infos, self.arrays = infos, transport.attach(spec)
        self.budget = RestartBudget(options.max_restarts)
        self.dispatcher = Dispatcher(
            transport,
            self.arrays.progress,
            self.worker_rows,
            step_timeout_s=options.step_timeout_s,
            on_failure=options.on_failure,
            budget=self.budget,
            start_timeout_s=options.start_timeout_s,
            recorder=Recorder(self.arrays, groups, self.action_layout) if spec.has_origins else None,
        )
        self._step_here = transport.step_here
        # Runs when the engine is collected or the interpreter ends, should nobody call close().
        self._finalizer = weakref.finalize(self, _end, transport, release)
        self._is_disowned = False
        self._last_stats: list[WorkerStats] | None = None  # once closed
        if plan.backend != "serial" or options.has_spares:
            disown_in_forks(self)

    def batched_space(self, rows: range) -> gym.Space[Any]:
        """The batched observation space of `rows`: sub-environments may differ in their bounds."""
        spaces: list[gym.Space[Any]] = []
        for info, held in zip(self.infos, self.worker_rows, strict=True):
            found = info.observation_spaces
            spaces += found * len(held) if len(found) == 1 else found
        chosen = spaces[rows.start : rows.stop]
        if all(space == chosen[0] for space in chosen):
            return gym.vector.utils.batch_space(chosen[0], len(chosen))
        return gym.vector.utils.batch_differing_spaces(chosen)

    def view(self, rows: range) -> FleetArrays:
        """The arrays restricted to `rows`."""
        return self.transport.rows_view(slice(rows.start, rows.stop))

    def start(
        self, workers: Sequence[int], verb: Verb, generation: int = 0, payloads: Sequence[Any] | None = None
    ) -> Call:
        """Ask workers for something.

        Args:
            workers: Whom to ask.
            verb: What to do.
            generation: Which outputs to write.
            payloads: One per worker, or `None` for none.
        """
        if payloads is None and self._step_here is not None and verb is _STEP:
            try:
                reply = self._step_here(generation)
            except InvalidArgument:  # actions out of range: nothing was stepped
                raise
            except BaseException:
                self.tear(collections.deque())
                raise
            return NOTHING_TO_SAY if reply is None else Call(verb, 0, collections.deque(), [(0, reply)])
        inbox: Inbox = collections.deque()
        submit = self.dispatcher.submit
        try:
            if payloads is None:
                for worker in workers:
                    submit(inbox, worker, verb, generation)
            else:
                for worker, payload in zip(workers, payloads, strict=True):
                    submit(inbox, worker, verb, generation, payload)
        except InvalidArgument:  # it cannot be sent; if others were told to step before, the fleet is half a step on
            if verb in (Verb.STEP, Verb.RESET) and self.dispatcher.has_pending(inbox):
                self.tear(inbox)
            self.dispatcher.abandon(inbox)
            raise
        except BaseException:
            self.tear(inbox)
            raise
        return Call(verb, len(workers), inbox, [])

    def tear(self, inbox: Inbox) -> None:
        """Give up a call in the middle (Ctrl-C): nothing that still comes of it may be taken for a later one's."""
        self.is_torn, self.is_sound = True, False
        self.dispatcher.abandon(inbox)

    def finish(self, call: Call, timeout_s: float | None = None) -> list[tuple[int, Reply]]:
        """Wait until every worker asked has completed.

        Returns:
            The replies that say something, with their workers.

        Raises:
            SubEnvError: Sub-environments raised.
            WorkerDied: A worker ended.
            StepTimeout: A sub-environment overran its deadline.
            RestartBudgetSpent: A failure was one too many to repair.
            TimeoutError: `timeout_s` passed. Nothing is lost: call again.
        """
        if call is NOTHING_TO_SAY:
            return []
        try:
            self._gather(call)
            if call.missing:
                self._await(call, timeout_s)
            for _, reply in call.replies:
                self.count_restarts(reply)
        except CallTimeout:
            raise
        except EnvfleetError as error:
            # Only a call that cannot be repeated elsewhere is told of a death that was repaired: it is lost, no more.
            self.dispatcher.abandon(call.inbox)
            self.give_up(error, breaks=not getattr(error, "is_repaired", False))
        except BaseException:
            self.tear(call.inbox)
            raise
        if call.replies:
            self.raise_failures([failure for _, reply in call.replies for failure in reply.failures])
        return call.replies

    def _gather(self, call: Call) -> None:
        """Take in what the workers of a call completed."""
        while call.inbox:
            completion = call.inbox.popleft()
            call.missing -= 1
            if completion.death is not None:
                raise completion.death
            if completion.reply is not None:
                call.replies.append((completion.worker, completion.reply))

    def _await(self, call: Call, timeout_s: float | None) -> None:
        start_s = time.perf_counter()
        try:
            while call.missing:
                self.pump(start_s, timeout_s, call.verb.name.lower())
                self._gather(call)
        finally:
            self.wait_s += time.perf_counter() - start_s

    def pump(self, start_s: float, timeout_s: float | None, verb: str) -> None:
        """Wait for completions of any call, at least taking in those that are there.

        Args:
            start_s: When the wait began.
            timeout_s: How long it may last in all; `None` for as long as it takes.
            verb: What is waited for.

        Raises:
            CallTimeout: Nothing came, and the time is up.
        """
        left_s = None if timeout_s is None else max(start_s + timeout_s - time.perf_counter(), 0.0)
        came = self.dispatcher.pump(left_s)
        if not came and timeout_s is not None and time.perf_counter() - start_s >= timeout_s:
            raise CallTimeout(verb, timeout_s)

    def exchange(
        self, workers: Sequence[int], verb: Verb, generation: int = 0, payloads: Sequence[Any] | None = None
    ) -> list[tuple[int, Reply]]:
        """Ask workers for something and wait for all of them; see `start` and `finish`."""
        return self.finish(self.start(workers, verb, generation, payloads))

    def mend(self) -> None:
        """Note that every sub-environment was reset, which makes good for a call that was torn."""
        self.is_torn = False
        self.is_sound = self.failure is None and not self.is_closed

    def count_restarts(self, reply: Reply) -> None:
        """Count the sub-environments that a worker rebuilt, and leave a file to run each again.

        Raises:
            RestartBudgetSpent: It was one too many.
        """
        for failure, path in map(write_replay, reply.restarts):
            again = failure.how_to_repeat(path)
            for index, info in reply.infos:
                if again and index == failure.env_index and "env_error" in info:
                    info["env_error"] += f"\n{again}"
            self.budget.spend(SubEnvError([failure], path), failure.worker)

    def learn_columns(self, worker: int, specs: Sequence[ColumnSpec]) -> None:
        """Take in the info columns a worker announced; one that took another's place begins anew."""
        if any(spec.column == 0 for spec in specs):
            self.columns[worker] = []
        self.columns[worker] += specs
        self.columns_version += 1

    def raise_failures(self, failures: Sequence[Failure]) -> None:
        """Raise what sub-environments raised, all together; nothing to do if there is nothing.

        Raises:
            SubEnvError: From the original exception, where that survives pickling.
            StepTimeout: If it was an interrupt.
        """
        if not failures:
            return
        ordered = sorted(failures, key=lambda failure: failure.env_index)
        first, path = write_replay(ordered[0])
        ordered[0] = first
        if first.is_timeout:
            timeout_s = self.options.step_timeout_s or 0.0
            where = first.worker, first.env_index, timeout_s, first.traceback
            self.give_up(StepTimeout(*where, [first], path))
        error = sub_env_error(ordered, path)
        self.give_up(error, breaks=first.verb not in ("call", "set_attr", "get_state", "set_state"))

    def give_up(self, error: EnvfleetError, breaks: bool = True) -> NoReturn:
        """Raise `error`; unless it came of a call that steps nothing, the fleet is broken from now on."""
        if breaks and self.failure is None:
            self.failure, self.is_sound = error, False
        raise error

    def check_usable(self) -> None:
        """Check that the fleet is not broken.

        Raises:
            FleetBroken: From the failure that broke it.
        """
        if self.failure is not None:
            head = str(self.failure).splitlines()[0]
            raise FleetBroken(
                f"this fleet is broken since an earlier failure ({head}): close it and make a new one, or make it "
                'with on_failure="restart"'
            ) from self.failure

    def stack(self, worker: int) -> str:
        """The worker's Python stack, now."""
        return self.transport.stack(worker)

    def pid(self, worker: int) -> int:
        """The worker's process."""
        return self.transport.pid(worker)

    def worker_stats(self, worker: int) -> WorkerStats:
        """What the worker did so far, or before the fleet was closed."""
        if self._last_stats is not None:
            return self._last_stats[worker]
        line = self.arrays.progress[worker]
        return WorkerStats(
            worker,
            self.worker_rows[worker],
            self.transport.pid(worker),
            int(line[PlaceWord.STEPS]),
            int(line[PlaceWord.BUSY_NS]) / 1e9,
            self.dispatcher.restarts[worker],
            self.transport.place(worker),
        )

    def close(self, timeout_s: float) -> None:
        """End the workers; idempotent.

        Raises:
            SubEnvError: Sub-environments raised in `close`; everything is released by then.
        """
        if self.is_closed:
            return
        self._last_stats = [self.worker_stats(worker) for worker in range(len(self.worker_rows))]
        self.is_closed, self.is_sound = True, False
        if self._is_disowned:
            return
        self._finalizer.detach()
        try:
            failures = self.transport.close(timeout_s)
        finally:
            self._release()
        if failures:
            raise sub_env_error(failures)

    def disown(self, reason: EnvfleetError) -> None:
        """Leave the workers alone from now on: this process is a fork of the one that they answer to."""
        self._is_disowned, self.is_sound, self.failure = True, False, self.failure or reason
        self._finalizer.detach()


def _end(transport: Transport, release: Callable[[], None]) -> None:
    transport.close(0.0)
    release()


def rows_by_worker(worker_rows: Sequence[range], indices: Sequence[int]) -> dict[int, list[int]]:
    """Sort indices to workers: worker -> positions in `indices` of its sub-environments, in order."""
    starts = np.array([rows.start for rows in worker_rows])
    owners = np.searchsorted(starts, np.asarray(indices, np.int64), side="right") - 1
    found: dict[int, list[int]] = {}
    for position, worker in enumerate(owners.tolist()):
        found.setdefault(worker, []).append(position)
    return found
