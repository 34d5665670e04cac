"""The fleet of a kernel: a million sub-environments as one Gymnasium vector environment."""

from __future__ import annotations

import reprlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from envfleet.core.fleet_base import Lifecycle
from envfleet.core.requests import check_mask, check_options, check_rows
from envfleet.core.rows import StepResult
from envfleet.core.sending import Batch
from envfleet.errors import EnvfleetError, InvalidArgument, KernelIndexError, NothingPending, ResetNeeded
from envfleet.kernels.batches import require_cpu
from envfleet.kernels.infos import info_columns, step_infos
from envfleet.kernels.requests import read_seeds
from envfleet.kernels.rollouts.policies import RolloutPolicy
from envfleet.kernels.rollouts.rollout import Rollout, run_rollout
from envfleet.kernels.sub_env_access import KernelSubEnvAccess


class KernelFleet(KernelSubEnvAccess):
    """Many sub-environments of one kernel, stepped by compiled code; made by `envfleet.make(..., backend="kernel")`.

    A `gymnasium.vector.VectorEnv` with partial resets, episode statistics and exact saved states. Sub-environment `i`
    depends on its seed alone, whatever the number of sub-environments and threads. Not thread-safe: one thread at a
    time may use it.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        params: Parameters by name: one value for all, or one per sub-environment.
        max_episode_steps: Steps after which an episode is truncated; `None` or -1 for never.
        autoreset_mode: Gymnasium's.
        workers: Threads; by default as many as pay.
        copy: Whether returned arrays are the caller's own; else they are valid until the next-but-one call.
        device: `"cpu"`, or `"cuda"`: results are `DeviceArray`s, which other libraries take without a copy.
        debug: Whether the kernel's functions check their indices and raise `KernelIndexError`; on the CPU only.
        seed: Of the first sub-environment at a first reset without seeds; `None` draws one.
        env_spec: Gymnasium's, if the kernel is registered.
        render_mode: `"rgb_array"` or `None`.
    """

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset every sub-environment, or those in `options["reset_mask"]`.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a sequence gives one seed (or `None`) each. Without
                a seed generators go on; at the first reset they are seeded from the fleet's own `seed`.
            options: `"reset_mask"`: a bool array `(num_envs,)` of those to reset. `"params"`: parameters by name for
                those that are reset, one value for all or one per sub-environment reset.

        Returns:
            Observations of all sub-environments (those not reset: their last ones), and infos.

        Raises:
            CallPending: What came of the last `send` was not received.
            InvalidArgument: Seeds, mask, options or parameters of a wrong length or type.
        """
        self._check("reset", is_started=False)
        check_options(options)
        options = options or {}
        unknown = set(options) - {"reset_mask", "params"}
        if unknown:
            raise InvalidArgument(
                f"options has {min(unknown)!r}, expected 'reset_mask' or 'params': a kernel's reset takes no "
                "options of its own, only parameters"
            )
        rows = None
        if "reset_mask" in options:
            rows = np.flatnonzero(check_mask(options["reset_mask"], self.num_envs))
        whole = read_seeds(seed, self.num_envs)
        seeds = None if whole is None else (whole if rows is None else (whole[0][rows], whole[1][rows]))
        if rows is not None and len(rows) < self.num_envs:
            self._check("reset with a mask")
        arrays = self._reset_rows(rows, seeds, options.get("params"))
        return arrays[0], info_columns(self._kernel, arrays, rows, self.num_envs)

    def reset_envs(
        self,
        indices: Sequence[int] | NDArray[np.integer[Any]],
        seeds: Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset some sub-environments.

        Args:
            indices: Which; all of them, if there was no reset yet.
            seeds: One for each, or `None`.
            options: `"params"`, as in `reset`.

        Returns:
            Their observations and infos, aligned with `indices`.
        """
        self._check("reset_envs", is_started=False)
        check_options(options)
        rows = check_rows(indices, self.num_envs)
        if len(rows) < self.num_envs:
            self._check("reset_envs of some")
        given = None if seeds is None else read_seeds(list(seeds), len(rows))
        arrays = self._reset_rows(rows, given, (options or {}).get("params"))
        chosen = tuple(array.take(rows, axis=0) for array in arrays)
        return chosen[0], info_columns(self._kernel, chosen, None, len(rows))

    def _reset_rows(
        self,
        rows: NDArray[np.int64] | None,
        seeds: tuple[NDArray[np.uint64], NDArray[np.bool_]] | None,
        params: Mapping[str, Any] | None,
    ) -> tuple[NDArray[Any], ...]:
        count = self.num_envs if rows is None else len(rows)
        check_options(params, "options['params']")
        if params:
            self._batch.set_params(params, rows)
        every = np.arange(self.num_envs) if rows is None else rows
        if seeds is None:
            seeds = np.zeros(count, np.uint64), np.zeros(count, np.bool_)
        if self._seeds is None:  # generators that were never seeded
            root = np.uint64(self._first_seed)
            self._seeds = root + np.arange(self.num_envs, dtype=np.uint64)
            seeds = np.where(seeds[1], seeds[0], self._seeds[every]), np.ones(count, np.bool_)
        values, is_seeded = seeds
        self._seeds[every[is_seeded]] = values[is_seeded]
        self._state = Lifecycle.NEW  # where the kernel raises, some rows are reset and some are not
        arrays = self._batch.reset(every, values, is_seeded)
        self._state = Lifecycle.READY
        return arrays

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once.

        Args:
            actions: One action per sub-environment, `(num_envs, …)`, dtype of `action_space`.

        Returns:
            Observations, rewards (float64), terminated, truncated, each with leading dimension `num_envs`, and infos.

        Raises:
            InvalidArgument: Actions of a wrong shape or type, or outside the action space; nothing was stepped.
            CallPending: What came of the last `send` was not received.
            ResetNeeded: Before the first reset, or (`AutoresetMode.DISABLED`) with an episode that has ended.
        """
        if self._state is not Lifecycle.READY or self._sent is not None:
            self._check("step")
        if self._is_disabled and self._batch.count_awaiting():
            self._refuse_ended()
        start_s = time.perf_counter()
        try:
            arrays, ended = self._batch.step(actions)
        except InvalidArgument:  # nothing was stepped
            raise
        except BaseException:  # the user's code raised, or Ctrl-C came: some rows were stepped and some were not
            self._state = Lifecycle.NEW
            raise
        self._steps += self.num_envs
        self._step_s += time.perf_counter() - start_s
        if ended is None and not self._has_infos:
            return arrays[0], arrays[1], arrays[2], arrays[3], {}
        infos = step_infos(self._kernel, arrays, ended, self.num_envs)
        return arrays[0], arrays[1], arrays[2], arrays[3], infos

    def rollout(
        self,
        policy: RolloutPolicy | NDArray[Any],
        num_steps: int,
        *,
        seed: int | None = None,
        out: Rollout | None = None,
    ) -> Rollout:
        """Step every sub-environment `num_steps` times in one compiled call, as `step` would.

        Args:
            policy: Actions `(num_steps, num_envs, …)`; or `"random"` (or `None`), uniform over the action space; or an
                `MLP`; or a function to compile as kernels are, `act(observation, rng)` which returns an int for
                `Discrete`, else `act(observation, out, rng)` which writes the action into `out`.
            num_steps: How many.
            seed: Of the policy's draws, below 2**32; sub-environment `i` draws from the generator
                `np.random.default_rng([seed, i + 1])`, begun anew in every rollout. `None`: the system's entropy.
            out: A rollout of the same shape, whose arrays are written again.

        Raises:
            InvalidArgument: In `AutoresetMode.DISABLED`, as an episode that ends could not go on; actions outside the
                action space, or a policy that does not fit it. Nothing was stepped.
            KernelError: The policy cannot be compiled.
            ResetNeeded: Before the first reset.
        """
        self._check("rollout")
        start_s = time.perf_counter()
        batch = require_cpu(self._batch, "rollout")
        try:
            rollout = run_rollout(batch, policy, num_steps, autoreset_mode=self.autoreset_mode, seed=seed, out=out)
        except BaseException as error:
            if isinstance(error, KernelIndexError) or not isinstance(error, EnvfleetError):  # as in `step`
                self._state = Lifecycle.NEW  # others are refusals, before anything was stepped
            raise
        self._steps += num_steps * self.num_envs
        self._step_s += time.perf_counter() - start_s
        return rollout

    def send(self, actions: Any, env_indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> None:
        """Step every sub-environment; `recv` hands out what comes of it.

        For code that drives fleets of workers this way. Here the step is over when `send` returns.

        Args:
            actions: As for `step`.
            env_indices: All of them in order, as `recv` hands them out, or `None`, which is the same.

        Raises:
            CallPending: What came of the last `send` was not received.
            InvalidArgument: Only some sub-environments, or in another order.
            ResetNeeded: Before the first reset.
        """
        self._check("send")
        if env_indices is not None and not np.array_equal(env_indices, np.arange(self.num_envs)):
            raise InvalidArgument(
                f"send with env_indices={reprlib.repr(env_indices)}, expected all {self.num_envs} in order, or None: a "
                "kernel's fleet steps every sub-environment at once; to step some, make the fleet with "
                "backend='serial' or 'process'"
            )
        self._sent = self.step(actions)

    def recv(self, timeout_s: float | None = None) -> Batch:  # there is nothing to wait for
        """What came of the last `send`, all sub-environments in order.

        Raises:
            NothingPending: Nothing was sent.
        """
        self._check("recv", is_started=False, is_idle=False)
        if self._sent is None:
            raise NothingPending("recv() with nothing under way: call send(actions) first")
        sent, self._sent = self._sent, None
        return Batch(*sent, np.arange(self.num_envs))

    def split(self, num_parts: int) -> NoReturn:
        """Refuse: every sub-environment of a kernel steps at once, so no part can step while another waits.

        Raises:
            InvalidArgument: Always; it says what to do instead.
        """
        raise InvalidArgument(
            f"split({num_parts!r}) of a kernel's fleet, which steps every sub-environment at once: call step() "
            "on all of them, make several fleets, or one with backend='serial' or 'process', which splits"
        )

    def _refuse_ended(self) -> None:
        ended = self.terminated_indices
        raise ResetNeeded(
            f"the episodes of sub-environments {ended[:10]}{' …' if len(ended) > 10 else ''} have ended and autoreset "
            'is disabled: reset them with reset(options={"reset_mask": mask}) or reset_envs(fleet.terminated_indices)'
        )
