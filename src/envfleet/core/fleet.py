"""The fleet: the one vector environment a person holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.core.arguments import check_whole
from envfleet.core.engine import NOTHING_TO_SAY, Call
from envfleet.core.fleet_base import Lifecycle
from envfleet.core.messages import Reply, ResetPayload, Verb
from envfleet.core.requests import check_each_seed, check_indices, check_mask, check_options, check_seeds
from envfleet.core.rows import StepResult, cut
from envfleet.core.second_ends import reset_ended
from envfleet.core.sending import Batch
from envfleet.core.sub_env_access import SubEnvAccess
from envfleet.errors import CallTimeout, InvalidArgument, NothingPending

_READY, _STEP = Lifecycle.READY, Verb.STEP  # an enum's member is slow to look up


class Fleet(SubEnvAccess):
    """Many sub-environments as one; made by `envfleet.make`.

    A `gymnasium.vector.VectorEnv` with asynchronous stepping (`send`, `recv`), partial resets, episode statistics,
    saved states and failures that can be repaired. Not thread-safe: one thread at a time may use it.

    Args:
        engine: The workers.
        indices: Which of the engine's sub-environments are this fleet's; `None` for all.
        owner: The fleet this is a part of, if it is one.
    """

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
            InvalidArgument: Seeds, mask or options of a wrong length or type.
            SubEnvError: A sub-environment raised.
        """
        return self._finish_reset(*self._start_reset(seed, options))

    def _start_reset(
        self, seed: int | Sequence[int | None] | None, options: dict[str, Any] | None
    ) -> tuple[Call, list[int]]:
        self._check("reset")
        check_options(options)
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
        seeds: Sequence[int | None] | NDArray[np.integer[Any]] | None = None,
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
        each_seed = [None] * len(chosen) if seeds is None else check_each_seed(seeds, len(chosen), "indices", "seeds")
        if len(chosen) < self.num_envs:
            self._check("reset_envs of some", is_idle=False, is_started=True)
        each = tuple(options) if isinstance(options, (Sequence, np.ndarray)) else options
        for one in each if isinstance(each, tuple) else (each,):
            check_options(one)
        if isinstance(each, tuple) and len(each) != len(chosen):
            raise InvalidArgument(
                f"options has {len(each)} entries, expected one per index ({len(chosen)}): or pass one dict for all"
            )
        call = self._start_reset_rows(chosen, each_seed, each)
        replies = self._finish_reset_rows(call, chosen, None)
        return self._rows.take(np.asarray(chosen)), self._rows.infos(replies, chosen)

    def _start_reset_rows(
        self,
        indices: Sequence[int],
        seeds: Sequence[int | None],
        options: dict[str, Any] | tuple[dict[str, Any] | None, ...] | None,
    ) -> Call:
        rows, before = self._rows, self._rows.generation
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
        try:
            return self._engine.start(list(payloads), Verb.RESET, rows.generation, list(payloads.values()))
        except InvalidArgument:
            rows.generation = before
            raise

    def _finish_reset_rows(
        self, call: Call, indices: Sequence[int], timeout_s: float | None
    ) -> list[tuple[int, Reply]]:
        replies = self._rows.finish(call, timeout_s)
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
            actions: One action per sub-environment, in the form of `action_space`; also of those that are only reset.

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
        clock = self._rows.clock  # as `with clock` does, which takes longer
        start_s = time.perf_counter() - clock.wait_s
        result = self._finish_step(self._start_step(actions))
        clock.own_s += time.perf_counter() - clock.wait_s - start_s
        return result

    def _start_step(self, actions: Any, verb: str = "step") -> Call:
        engine, rows = self._engine, self._rows
        if self._state is not _READY or not engine.is_sound or self._step_call is not None or self._queue.under_way:
            self._check(verb, is_started=True)
        if rows.is_disabled and rows.episodes.has_ended:
            rows.refuse_ended(np.arange(self.num_envs))
        objects = rows.take_actions(actions)
        generation = 1 - rows.generation
        payloads = None if rows.is_plain else rows.step_payloads(objects)
        call = engine.start(rows.workers, _STEP, generation, payloads)
        rows.generation = generation
        return call

    def _finish_step(self, call: Call, timeout_s: float | None = None) -> StepResult:
        engine, rows = self._engine, self._rows
        replies = [] if call is NOTHING_TO_SAY else rows.finish(call, timeout_s)
        if replies:
            rows.store(replies)
            replies = replies + reset_ended(rows)
        out = rows.outputs[rows.generation]
        rewards, terminated, truncated = out.rewards, out.terminated, out.truncated
        ended = rows.episodes.on_step(rewards, terminated, truncated)
        if ended is not None and self._recycler is not None:
            replies = replies + self._recycler.after_step(rows, ended, None, lambda span: True)
        infos: dict[str, Any] = {}
        if ended is not None or replies or engine.columns_version:
            infos = rows.infos(replies, ended=ended, has_columns=True)
        if rows.copies:
            rewards, terminated, truncated = rewards.copy(), terminated.copy(), truncated.copy()
        rows.clock.steps += self.num_envs
        return rows.observe(), rewards, terminated, truncated, infos

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
        with self._rows.clock:
            if env_indices is None and self.batch_size == self.num_envs:
                self._step_call = self._start_step(actions, "send")
                return
            self._check("send", is_idle=self._step_call is not None, is_started=True)
            everyone = range(self.num_envs)
            self._queue.send(
                actions, list(everyone) if env_indices is None else check_indices(env_indices, self.num_envs)
            )

    def recv(self, timeout_s: float | None = None) -> Batch:
        """Wait until `batch_size` sub-environments have stepped, or all that are under way if those are fewer.

        Those that became ready first come first, so none waits for ever. If `batch_size` is `num_envs`, the rows of a
        full batch are in the order of the sub-environments.

        Args:
            timeout_s: How long to wait; `None` for as long as it takes. A worker found dead (`on_failure="restart"`) is
                replaced first, for which it has `start_timeout_s`.

        Raises:
            NothingPending: Nothing was sent.
            TimeoutError: Not enough were ready in time. Nothing is lost: call again.
        """
        self._check("recv", is_idle=False)
        with self._rows.clock:
            return self._recv(timeout_s)

    def _recv(self, timeout_s: float | None) -> Batch:
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
        num_parts = check_whole("num_parts", num_parts, 1, self.num_envs, most_name="num_envs")
        start = self._rows.indices.start
        bounds = cut(self._rows.worker_spans, self.num_envs, num_parts)
        parts = tuple(Fleet(self._engine, range(start + low, start + high), owner=self) for low, high in bounds)
        self._state = Lifecycle.SPLIT
        return parts

    @property
    def env_indices(self) -> range:
        """Which sub-environments of the whole fleet these are."""
        return self._rows.indices
