"""The fleet: the one vector environment a person holds."""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from envfleet.core.engine import CLOSE_TIMEOUT_S, Call, Engine
from envfleet.core.group import RowState
from envfleet.core.messages import CallPayload, Reply, ResetPayload, Verb
from envfleet.core.recycling import make_recycler
from envfleet.core.requests import check_indices, check_mask, check_seeds
from envfleet.core.rows import Rows, StepResult, cut
from envfleet.core.sending import Batch, SendQueue
from envfleet.core.stats import FleetStats, Plan
from envfleet.errors import CallPending, CallTimeout, FleetClosed, InvalidArgument, NothingPending, ResetNeeded


class Lifecycle(enum.Enum):
    """Where a fleet stands."""

    NEW = "not reset yet"
    READY = "ready"
    SPLIT = "split into parts"
    CLOSED = "closed"


class Fleet(VectorEnv[Any, Any, Any]):
    """Many sub-environments as one; made by `envfleet.make`.

    A `gymnasium.vector.VectorEnv` with asynchronous stepping (`send`, `recv`), partial resets, episode statistics,
    saved states and failures that can be repaired. Not thread-safe: one thread at a time may use it.

    Args:
        engine: The workers.
        indices: Which of the engine's sub-environments are this fleet's; `None` for all.
        owner: The fleet this is a part of, if it is one.
    """

    def __init__(self, engine: Engine, indices: range | None = None, owner: Fleet | None = None) -> None:
        self._engine, self._owner = engine, owner
        self._rows = rows = Rows(engine, range(engine.spec.num_envs) if indices is None else indices)
        self._state = Lifecycle.NEW
        self._recycler = make_recycler(engine)
        self._queue = SendQueue(rows, self._recycler)
        self._step_call: Call | None = None
        options, spec, info = engine.options, engine.spec, engine.infos[0]
        self.num_envs = rows.num_envs
        self.batch_size = min(options.batch_size, self.num_envs)
        self.single_observation_space, self.single_action_space = spec.observation_space, spec.action_space
        self.observation_space = engine.batched_space(rows.indices)
        self.action_space = gym.vector.utils.batch_space(spec.action_space, self.num_envs)
        self.metadata = {**info.metadata, "autoreset_mode": options.autoreset_mode}
        self.spec, self.render_mode = info.spec, info.render_mode

    @property
    def _is_busy(self) -> bool:
        """Whether something sent is under way."""
        return self._step_call is not None or bool(self._queue.under_way)

    def _check(self, verb: str, is_idle: bool = True, is_started: bool = False) -> None:
        """Check that `verb` may be called now.

        Raises:
            FleetClosed: After `close`.
            FleetBroken: After a failure that was not repaired.
            CallPending: While something sent is under way, unless that is what `is_idle=False` allows.
            ResetNeeded: Before the first reset, for what needs one.
        """
        if self._state is Lifecycle.READY and self._engine.is_sound and not self._is_busy:
            return
        if self._state is Lifecycle.CLOSED or self._engine.is_closed:
            raise FleetClosed(f"{verb}() on a fleet that was closed: make a new one")
        self._engine.check_usable()
        if self._state is Lifecycle.SPLIT:
            raise CallPending(f"{verb}() on a fleet that was split: use its parts, and this one only to close them all")
        if is_idle and self._is_busy:
            raise CallPending(f"{verb}() while sub-environments are under way: call recv() until it returned them all")
        if is_started and self._state is Lifecycle.NEW:
            raise ResetNeeded(f"{verb}() before the first reset: call reset() first")
        if is_started and self._engine.is_torn:
            raise ResetNeeded(f"{verb}() after a call that was interrupted: call reset() first")

    # ------------------------------------------------------------------ reset and step

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every sub-environment, or those in `options["reset_mask"]`.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a sequence gives one seed (or `None`) each.
            options: Passed to every sub-environment, without `"reset_mask"`: a bool array `(num_envs,)` of those to
                reset. The caller's dict is not changed.

        Returns:
            Observations of all sub-environments (those not reset: their last ones) and the infos of the resets.

        Raises:
            InvalidArgument: Seeds or mask of a wrong length or type.
            SubEnvError: A sub-environment raised.
        """
        return self._finish_reset(*self._start_reset(seed, options))

    def _start_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Call, list[int]]:
        self._check("reset")
        seeds = check_seeds(seed, self.num_envs, offset=self._rows.indices.start)
        indices = list(range(self.num_envs))
        if options is not None and "reset_mask" in options:
            indices = np.flatnonzero(check_mask(options["reset_mask"], self.num_envs)).tolist()
            options = {key: value for key, value in options.items() if key != "reset_mask"}
        if len(indices) < self.num_envs:
            self._check("reset with a mask", is_started=True)
        return self._start_reset_rows(indices, [seeds[i] for i in indices], options), indices

    def _finish_reset(
        self, call: Call, indices: list[int], timeout_s: float | None = None
    ) -> tuple[Any, dict[str, Any]]:
        replies = self._finish_reset_rows(call, indices, timeout_s)
        return self._rows.observe(), self._rows.infos(replies)

    def reset_envs(
        self,
        indices: Sequence[int] | NDArray[np.integer[Any]],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some sub-environments; others may be under way meanwhile.

        Args:
            indices: Which; all of them, if there was no reset yet.
            seeds: One for each, or `None`.
            options: For each of them alike, or a sequence of one for each.

        Returns:
            Their observations and infos, aligned with `indices`; the caller's own.
        """
        self._check("reset_envs", is_idle=self._step_call is not None)
        chosen = check_indices(indices, self.num_envs)
        self._queue.check_idle(chosen)
        if seeds is not None and len(seeds) != len(chosen):
            raise InvalidArgument(
                f"seeds has {len(seeds)} entries, expected one per index ({len(chosen)}): pass a seed or None for each"
            )
        if len(chosen) < self.num_envs:
            self._check("reset_envs of some", is_idle=False, is_started=True)
        each = options if options is None or isinstance(options, dict) else tuple(options)
        if isinstance(each, tuple) and len(each) != len(chosen):
            raise InvalidArgument(
                f"options has {len(each)} entries, expected one per index ({len(chosen)}): or pass one dict for all"
            )
        call = self._start_reset_rows(chosen, list(seeds or [None] * len(chosen)), each)
        replies = self._finish_reset_rows(call, chosen, None)
        return self._rows.take(np.asarray(chosen)), self._rows.infos(replies, chosen)

    def _start_reset_rows(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None],
        options: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None,
    ) -> Call:
        rows = self._rows
        if not self._queue.under_way:  # else the others are writing the current generation
            rows.turn(len(indices))
        payloads = {
            worker: ResetPayload(
                local,
                tuple(seeds[k] for k in positions),
                tuple(options[k] for k in positions) if isinstance(options, tuple) else (options,) * len(positions),
            )
            for worker, positions, local in rows.locate(indices)
        }
        return self._engine.start(list(payloads), Verb.RESET, rows.generation, list(payloads.values()))

    def _finish_reset_rows(
        self, call: Call, indices: Sequence[int], timeout_s: float | None
    ) -> list[tuple[int, Reply]]:
        replies = self._engine.finish(call, timeout_s)
        self._rows.store(replies)
        is_whole = len(indices) == self.num_envs
        if is_whole:
            self._engine.mend()
        self._rows.episodes.on_reset(None if is_whole else np.asarray(indices, np.int64))
        if is_whole:
            self._state = Lifecycle.READY
        return replies

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once.

        Args:
            actions: One action per sub-environment, in the form of `action_space`.

        Returns:
            Observations, rewards (float64), terminated, truncated, each with leading dimension `num_envs`, and infos.
            With `copy=False` the arrays are views, valid until the next-but-one call.

        Raises:
            InvalidArgument: Actions of a wrong shape or type, or NaN among them.
            ResetNeeded: Before the first reset, or (`AutoresetMode.DISABLED`) with an episode that has ended.
            SubEnvError: Sub-environments raised; the message names them, their worker and how to run them again.
            WorkerDied: A worker ended.
            StepTimeout: A sub-environment overran `step_timeout_s`.
        """
        return self._finish_step(self._start_step(actions))

    def _start_step(self, actions: Any) -> Call:
        start_s = time.perf_counter()
        self._check("step", is_started=True)
        rows = self._rows
        if rows.is_disabled and rows.episodes.has_ended:
            rows.refuse_ended(np.arange(self.num_envs))
        leaves, objects = rows.action_layout.unbatch(actions, self.num_envs)
        for target, leaf in zip(rows.actions, leaves, strict=True):
            target[...] = leaf
        rows.generation = 1 - rows.generation
        payloads = None if rows.is_plain else rows.step_payloads(objects)
        rows.clock.copy_s += time.perf_counter() - start_s
        return self._engine.start(rows.workers, Verb.STEP, rows.generation, payloads)

    def _finish_step(self, call: Call, timeout_s: float | None = None) -> StepResult:
        replies = self._engine.finish(call, timeout_s)
        start_s = time.perf_counter()
        rows = self._rows
        if replies:
            rows.store(replies)
        out = rows.outputs[rows.generation]
        rewards, terminated, truncated = out.rewards, out.terminated, out.truncated
        ended = rows.episodes.on_step(rewards, terminated, truncated)
        if ended is not None and self._recycler is not None:
            replies = replies + self._recycler.after_step(rows, ended, None, lambda span: True)
        infos = rows.infos(replies, ended=ended, has_columns=True)
        if self._engine.options.copy:
            rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        observations = rows.observe()
        rows.clock.steps += self.num_envs
        rows.clock.copy_s += time.perf_counter() - start_s
        return observations, rewards, terminated, truncated, infos

    # ------------------------------------------------------------------ asynchronous stepping

    def send(self, actions: Any, env_indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Start stepping without waiting.

        Args:
            actions: One action per entry of `env_indices`, batched as in `action_space`.
            env_indices: Whom to step; `None` for all. None of them may be under way already.

        Raises:
            CallPending: One of them is under way: `recv` it first.
            ResetNeeded: Before the first reset, or an episode has ended and autoreset is disabled.
        """
        if env_indices is None and self.batch_size == self.num_envs:
            self._step_call = self._start_step(actions)
            return
        self._check("send", is_idle=self._step_call is not None, is_started=True)
        self._queue.send(
            actions, list(range(self.num_envs)) if env_indices is None else check_indices(env_indices, self.num_envs)
        )

    def recv(self, timeout_s: float | None = None) -> Batch:
        """Wait until `batch_size` sub-environments have stepped, or all that are under way if those are fewer.

        Those that became ready first come first, so none waits for ever. If `batch_size` is `num_envs`, the rows of a
        full batch are in the order of the sub-environments.

        Args:
            timeout_s: How long to wait; `None` for as long as it takes.

        Raises:
            NothingPending: Nothing was sent.
            TimeoutError: Not enough were ready in time. Nothing is lost: call again.
        """
        self._check("recv", is_idle=False)
        call = self._step_call
        if call is not None:
            try:
                observations, rewards, terminated, truncated, infos = self._finish_step(call, timeout_s)
            except CallTimeout:
                raise
            except BaseException:
                self._step_call = None
                raise
            self._step_call = None
            return Batch(observations, rewards, terminated, truncated, infos, np.arange(self.num_envs))
        if not self._queue.under_way:
            raise NothingPending("recv() with nothing under way: call send(actions) first")
        return self._queue.recv(self.batch_size, timeout_s)

    def split(self, num_parts: int) -> tuple[Fleet, ...]:
        """Cut the fleet into parts that step independently: act on one while the others step.

        Each part is a fleet of its own over neighbouring sub-environments (`env_indices` tells which), with its own
        `reset`, `step`, `send` and `recv`. Seeds count from the whole fleet's first sub-environment. Close the whole
        fleet, not the parts, when done; it cannot be stepped any more.

        Args:
            num_parts: How many, at most `num_envs`.

        Raises:
            InvalidArgument: More parts than sub-environments, or fewer than 1.
        """
        self._check("split")
        if not 1 <= num_parts <= self.num_envs:
            raise InvalidArgument(f"split({num_parts}): pass a number of parts from 1 to num_envs={self.num_envs}")
        start = self._rows.indices.start
        bounds = cut(self._rows.worker_spans, self.num_envs, num_parts)
        parts = tuple(Fleet(self._engine, range(start + low, start + high), owner=self) for low, high in bounds)
        self._state = Lifecycle.SPLIT
        return parts

    @property
    def env_indices(self) -> range:
        """Which sub-environments of the whole fleet these are."""
        return self._rows.indices

    # ------------------------------------------------------------------ reaching into the sub-environments

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment (the outermost wrapper that has it), or get an attribute.

        Args:
            name: Of the method or attribute.
            *args: For the method.
            **kwargs: For the method.

        Returns:
            One result per sub-environment.
        """
        return self._finish_call(self._start_call(name, args, kwargs))

    def _start_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        self._check(name)
        payloads = [(CallPayload(name, args, kwargs), local) for local in self._rows.local_rows]
        return self._engine.start(self._rows.workers, Verb.CALL, self._rows.generation, payloads)

    def _finish_call(self, call: Call, timeout_s: float | None = None) -> tuple[Any, ...]:
        values = {worker: reply.value for worker, reply in self._engine.finish(call, timeout_s)}
        return tuple(value for worker in self._rows.workers for value in values[worker])

    def apply(
        self,
        function: Callable[..., Any],
        *args: Any,
        indices: Sequence[int] | NDArray[np.integer[Any]] | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Run `function(sub_env, *args, **kwargs)` for some sub-environments, where they live.

        Args:
            function: Takes the sub-environment with its wrappers first; pickled (by cloudpickle) for other processes.
            *args: For the function.
            indices: Which; `None` for all.
            **kwargs: For the function.

        Returns:
            One result per index.
        """
        self._check("apply")
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        payload = CallPayload(function, args, kwargs)
        return self._ask_rows(Verb.CALL, chosen, lambda local, positions: (payload, local))

    def _ask_rows(
        self, verb: Verb, chosen: Sequence[int], payload_of: Callable[[tuple[int, ...], list[int]], Any]
    ) -> list[Any]:
        """Ask for one value for each of `chosen`; `payload_of` takes local rows and their positions in `chosen`."""
        payloads, places = {}, {}
        for worker, positions, local in self._rows.locate(chosen):
            payloads[worker], places[worker] = payload_of(local, positions), positions
        replies = dict(self._engine.exchange(list(payloads), verb, self._rows.generation, list(payloads.values())))
        values: list[Any] = [None] * len(chosen)
        for worker, positions in places.items():
            for k, value in zip(positions, replies[worker].value, strict=True):
                values[k] = value
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every sub-environment."""
        return self.call(name)

    @property  # type: ignore[misc]  # there is no one generator to set
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv, unlike its base
        """The generator of every sub-environment (copies, if those live in other processes)."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """The seed that every sub-environment's generator was last given."""
        return self.get_attr("np_random_seed")

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment, on the outermost wrapper that has it.

        Args:
            name: Of the attribute.
            values: A list or tuple of one value per sub-environment, or one value for all.
        """
        self._check("set_attr")
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InvalidArgument(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        payloads = [
            (name, values[span.start : span.stop], local)
            for span, local in zip(self._rows.worker_spans, self._rows.local_rows, strict=True)
        ]
        self._engine.exchange(self._rows.workers, Verb.SET_ATTR, self._rows.generation, payloads)

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment; one frame each, as its `render_mode` says."""
        self._check("render", is_started=True)
        return self.call("render")

    def get_state(self, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> list[Any]:
        """Save sub-environments in the middle of their episodes, with their wrappers and generators.

        By the environment's own `get_state`/`set_state`, else by pickling it, else (not across processes) by copying.

        Args:
            indices: Which; `None` for all.

        Returns:
            One opaque state each; they pickle, except copies.

        Raises:
            SubEnvError: From `StateUnsupported`: one can be neither saved nor copied.
        """
        self._check("get_state", is_started=True)
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        states = self._ask_rows(Verb.GET_STATE, chosen, lambda local, positions: local)
        return [(state, self._rows.episodes.get(index)) for state, index in zip(states, chosen, strict=True)]

    def set_state(self, states: Sequence[Any], indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> Any:
        """Bring saved sub-environments back; they go on exactly as they would have.

        Args:
            states: From `get_state` of this or an equal fleet, one per index.
            indices: Where to put them; `None` for all in order.

        Returns:
            The last observations of those sub-environments, aligned with `indices`.
        """
        self._check("set_state")
        chosen = list(range(self.num_envs)) if indices is None else check_indices(indices, self.num_envs)
        if len(states) != len(chosen) or not all(_is_state(state) for state in states):
            raise InvalidArgument(
                f"set_state needs {len(chosen)} states made by get_state, one per sub-environment, got {len(states)}"
            )
        if len(chosen) < self.num_envs:
            self._check("set_state of some", is_started=True)
        payloads = {}
        for worker, positions, local in self._rows.locate(chosen):
            payloads[worker] = tuple((row, states[k][0]) for row, k in zip(local, positions, strict=True))
        self._rows.store(
            self._engine.exchange(list(payloads), Verb.SET_STATE, self._rows.generation, list(payloads.values()))
        )
        for index, state in zip(chosen, states, strict=True):
            self._rows.episodes.set(index, state[1])
        self._state = Lifecycle.READY
        return self._rows.take(np.asarray(chosen))

    # ------------------------------------------------------------------ looking at it

    @property
    def plan(self) -> Plan:
        """How the sub-environments are spread, and why."""
        return self._engine.plan

    @property
    def episode_ids(self) -> NDArray[np.int64]:
        """Number of each running episode, `(num_envs,)`; fleet-wide, in the order they began; -1 before the first."""
        return self._rows.episodes.ids

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Sum of rewards of each running episode so far, `(num_envs,)`."""
        return self._rows.episodes.returns

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """Steps of each running episode so far, `(num_envs,)`."""
        return self._rows.episodes.lengths

    @property
    def terminated_indices(self) -> list[int]:
        """Sub-environments whose episode has ended (terminated or truncated) and that await a reset."""
        ended: list[int] = np.flatnonzero(self._rows.episodes.ended).tolist()
        return ended

    @property
    def active_count(self) -> int:
        """How many sub-environments are in the middle of an episode."""
        return 0 if self._state is Lifecycle.NEW else self.num_envs - len(self.terminated_indices)

    @property
    def final_observations(self) -> Any:
        """Last observations of the episodes that ended in the last step, batched as observations are.

        Valid where that step returned `terminated | truncated`.

        Raises:
            InvalidArgument: The autoreset mode is not `SAME_STEP`, the only one that hides them.
        """
        mode = self._engine.options.autoreset_mode
        if mode is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"final_observations with autoreset_mode={mode.name}: only SAME_STEP hides the last observation of an "
                "episode; in the other modes step() returns it"
            )
        return self._rows.final_observations()

    def stats(self) -> FleetStats:
        """What the fleet did so far, and where the time went."""
        workers = tuple(self._engine.worker_stats(worker) for worker in self._rows.workers)
        busy_s = sum(worker.busy_s for worker in workers)
        wait_s = self._engine.wait_s
        is_inline = self.plan.backend == "serial"
        total_s = self._rows.clock.copy_s + (busy_s if is_inline else wait_s)
        return FleetStats(
            steps=self._rows.clock.steps,
            steps_per_s=self._rows.clock.steps / total_s if total_s else 0.0,
            step_s=busy_s if is_inline else 0.0,
            wait_s=0.0 if is_inline else wait_s,
            copy_s=self._rows.clock.copy_s,
            busy_s=busy_s,
            restarts=self._engine.budget.spent,
            workers=workers,
        )

    def stacks(self) -> dict[int, str]:
        """The Python stack of every worker, now: worker -> text. Works while workers are stuck."""
        if self._engine.is_closed:
            raise FleetClosed("stacks() on a fleet that was closed: make a new one")
        return {worker: self._engine.stack(worker) for worker in self._rows.workers}

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else "custom environment"
        mode = self._engine.options.autoreset_mode.name
        where = self.plan.describe()
        if self._owner is not None:
            where = f"part {self._rows.indices.start}–{self._rows.indices.stop - 1} of {where}"
        count = "1 sub-environment" if self.num_envs == 1 else f"{self.num_envs} sub-environments"
        return f"<{type(self).__name__} {name}: {count}, {where}, {mode}, {self._state.value}>"

    # ------------------------------------------------------------------ the end

    def close(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close every sub-environment and end the workers; idempotent. A part only stops being usable.

        Args:
            timeout: Seconds for the workers to close their sub-environments (default 10), before they are ended by
                force.
            terminate: End them by force at once.
            **kwargs: Ignored; Gymnasium's wrappers pass theirs on.

        Raises:
            SubEnvError: A sub-environment raised in `close`; everything is released by then.
        """
        if self._state is Lifecycle.CLOSED:
            return
        self._state = Lifecycle.CLOSED
        self.closed = True
        if self._owner is None:
            self._engine.close(0.0 if terminate else CLOSE_TIMEOUT_S if timeout is None else timeout)

    def __enter__(self) -> Self:
        """Return the fleet itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the fleet."""
        self.close()

    def __del__(self) -> None:
        """Warn of a fleet that nobody closed; its workers are ended by the engine's finalizer."""
        if getattr(self, "_owner", self) is None and self._state is not Lifecycle.CLOSED:
            warnings.warn(
                f"{self!r} was not closed: call close() or use `with`", ResourceWarning, stacklevel=2, source=self
            )


def _is_state(state: Any) -> bool:
    return isinstance(state, tuple) and len(state) == 2 and isinstance(state[0], RowState)
