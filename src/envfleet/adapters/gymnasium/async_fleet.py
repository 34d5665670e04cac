"""A fleet of worker processes, in the shape of Gymnasium's `AsyncVectorEnv`."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any, Literal

import gymnasium as gym
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from envfleet.adapters import fleet_internals
from envfleet.adapters.gymnasium.base import FleetAsVectorEnv, MakeEnv, NotOffered, ObservationMode
from envfleet.adapters.gymnasium.processes import WorkerProcess
from envfleet.adapters.originals import raise_original, raising_originals
from envfleet.core.engine import CLOSE_TIMEOUT_S
from envfleet.core.rows import StepResult
from envfleet.errors import CallTimeout, InvalidArgument, SubEnvError
from envfleet.make import make

_UNCALLABLE = ("reset", "step", "close", "_setattr", "_check_spaces")
_CONTEXTS = (None, "forkserver", "spawn", "fork")


class AsyncFleet(FleetAsVectorEnv):
    """Sub-environments in worker processes, in the shape of Gymnasium's `AsyncVectorEnv`.

    What differs from Gymnasium's:

    - There is one worker process per usable core, not one per sub-environment: `len(envs.processes)` is the number of
      workers. Sub-environments that mostly wait (for a simulator, for the network) want `workers=len(env_fns)`.
    - After a `*_wait(timeout)` that timed out the call is still pending: wait again for its result; until then every
      other call raises `AlreadyPendingCallError`. Gymnasium forgets the call and takes its late result for that of the
      next one. `close` works at any time.
    - No sub-environment is built in the caller's process to learn the spaces from.
    - Any space works, so `CustomSpaceError` is never raised, and `shared_memory=False` changes nothing.
    - What a sub-environment raises arrives under its own type, also for types with odd constructors; what cannot be
      pickled arrives as `SubEnvError`. Its `__cause__` tells the sub-environment, the worker and the traceback there.
      What is raised in a sub-environment's `close` arrives, too, after everything is released. A worker that died is
      `WorkerDied`, not `EOFError`; afterwards the fleet is unusable and says so, and `close` returns.
    - `close` waits at most 10 s (or `timeout`) before it ends workers by force.
    - `AutoresetMode.DISABLED`: stepping an episode that has ended is `gymnasium.error.ResetNeeded`, which names it.
    - With `copy=False`, observations are views that stay valid until the next-but-one call, not the next.
    - `daemon` changes nothing: no worker outlives its owner, and every worker may start processes.
    - Actions and observations are checked. Infos keep what Gymnasium truncates (a float beside an int). A `reset_mask`
      stays in the caller's options, and the class of the environment keeps its metadata.
    - It is a `VectorEnv`, but no instance of `AsyncVectorEnv`.

    Args:
        env_fns: Callables without arguments that make one environment each.
        shared_memory: Kept as an attribute only.
        copy: Whether returned observations are the caller's own.
        context: How processes start: `"forkserver"`, `"spawn"`, `"fork"`, or `None` for the best this platform has.
        daemon: Kept as an attribute only.
        worker: Not offered; see Raises.
        observation_mode: `"same"`, `"different"` (of one shape and dtype) or a tuple of the batched space and the
            single one.
        autoreset_mode: When sub-environments are reset after an episode.
        workers: Worker processes; `None` for one per usable core.

    Attributes:
        fleet: The fleet inside, for what Gymnasium's class has not: `stats()`, `stacks()`, `plan`, …
        processes: The worker processes: `pid`, `is_alive()`, `exitcode`, `join()`, `terminate()`, …

    Raises:
        NotImplementedError: With a `worker` function: a fleet runs no worker loop but its own.
        RuntimeError: The spaces of two sub-environments differ.
        ValueError: An argument cannot be used.
    """

    def __init__(
        self,
        env_fns: Iterable[MakeEnv],
        shared_memory: bool = True,
        copy: bool = True,
        context: Literal["forkserver", "spawn", "fork"] | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        *,
        workers: int | None = None,
    ) -> None:
        if worker is not None:
            raise NotOffered(
                f"worker={worker!r}, expected None: a fleet runs no worker loop but its own. What such functions are "
                "written for it has by name: autoreset_mode= for the end of episodes, a gymnasium.Wrapper in env_fns "
                'for what happens around a step, envfleet.make(..., on_failure="restart") for environments that fail'
            )
        if context not in _CONTEXTS:
            raise InvalidArgument(f"cannot find context {context!r}: pass one of {', '.join(map(repr, _CONTEXTS))}")
        env_fns, bounds = list(env_fns), self._bounds(observation_mode)
        with raising_originals(), self._explaining_spaces(observation_mode):
            fleet = make(
                env_fns,
                backend="process",
                workers=workers,
                start_method=context,
                autoreset_mode=autoreset_mode,
                copy=copy,
                observation_mode=bounds,
                record_episodes=False,
            )
        super().__init__(fleet, env_fns, copy, observation_mode)
        self.shared_memory, self.context, self.daemon, self.worker = shared_memory, context, daemon, worker
        self._state = AsyncState.DEFAULT
        self._finish: Callable[[float | None], Any] | None = None
        self._is_late = False  # a wait for it timed out
        self.processes = [
            WorkerProcess(handle, f"Worker<{type(self).__name__}>-{stats.index}", stats.env_indices)
            for handle, stats in zip(fleet_internals.worker_handles(fleet), fleet.stats().workers, strict=True)
        ]

    @property
    def observations(self) -> Any:
        """The last observations, as views of the memory that the workers write to."""
        return fleet_internals.last_observations(self.fleet)

    # ------------------------------------------------------------------ reset

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all sub-environments, or those in `options["reset_mask"]`; see `reset_async` and `reset_wait`."""
        self.reset_async(seed=seed, options=options)
        return self.reset_wait()

    def reset_async(self, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None) -> None:
        """Start to reset sub-environments.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a list gives one seed (or `None`) each.
            options: For all sub-environments. A bool array under `"reset_mask"` tells which to reset, and is not passed
                on; the caller's dict is not changed.

        Raises:
            ClosedEnvironmentError: After `close`.
            AlreadyPendingCallError: While another call is under way.
            InvalidArgument: Seeds or mask of a wrong length or type; an `AssertionError`, too, as Gymnasium has it.
        """
        self._check_idle("reset_async", end="")
        self._check_reset(seed, options)
        self._finish = fleet_internals.start_reset(self.fleet, seed, options)
        self._state = AsyncState.WAITING_RESET

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for what `reset_async` started; see `step_wait`.

        Returns:
            Observations and infos.
        """
        result: tuple[Any, dict[str, Any]] = self._wait(AsyncState.WAITING_RESET, timeout)
        return result

    # ------------------------------------------------------------------ step

    def step(self, actions: Any) -> StepResult:
        """Step all sub-environments once; see `step_async` and `step_wait`."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start to step all sub-environments.

        Args:
            actions: A batch of actions, as in `action_space`.

        Raises:
            ClosedEnvironmentError: After `close`.
            AlreadyPendingCallError: While another call is under way.
        """
        self._check_idle("step_async")
        self._finish = fleet_internals.start_step(self.fleet, actions)
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for what `step_async` started.

        Args:
            timeout: Seconds to wait; `None` for as long as it takes.

        Returns:
            Observations, rewards (float64), terminations, truncations and infos.

        Raises:
            ClosedEnvironmentError: After `close`.
            NoAsyncCallError: Nothing was started.
            multiprocessing.TimeoutError: Not there in time. Nothing is lost: wait again.
        """
        return self._own(self._wait(AsyncState.WAITING_STEP, timeout))

    # ------------------------------------------------------------------ reaching into the sub-environments

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or get an attribute; see `call_async` and `call_wait`."""
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start to call a method of every sub-environment.

        Args:
            name: Of the method or attribute.
            *args: For the method.
            **kwargs: For the method.

        Raises:
            ClosedEnvironmentError: After `close`.
            AlreadyPendingCallError: While another call is under way.
            ValueError: A method that the fleet has to know of: `reset`, `step`, `close`.
        """
        self._check_idle("call_async")
        if name in _UNCALLABLE:
            raise InvalidArgument(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        self._finish = fleet_internals.start_call(self.fleet, name, args, kwargs)
        self._state = AsyncState.WAITING_CALL

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for what `call_async` started; see `step_wait`.

        Returns:
            One result per sub-environment.
        """
        results: tuple[Any, ...] = self._wait(AsyncState.WAITING_CALL, timeout)
        return results

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment.

        Args:
            name: Of the attribute.
            values: A list or tuple of one value per sub-environment, or one value for all.

        Raises:
            ClosedEnvironmentError: After `close`.
            AlreadyPendingCallError: While another call is under way.
            ValueError: Not one value per sub-environment.
        """
        self._check_idle("set_attr")
        super().set_attr(name, values)

    # ------------------------------------------------------------------ what is under way

    def _check_idle(self, verb: str, end: str = ".") -> None:
        self._check_open()
        if self._state is not AsyncState.DEFAULT:
            state = self._state.value
            raise AlreadyPendingCallError(
                f"Calling `{verb}` while waiting for a pending call to `{state}` to complete{end}", state
            )

    def _wait(self, state: AsyncState, timeout: float | None) -> Any:
        self._check_open()
        finish = self._finish
        if self._state is not state or finish is None:
            verb = state.value
            raise NoAsyncCallError(f"Calling `{verb}_wait` without any prior call to `{verb}_async`.", verb)
        self._is_late = False
        try:
            result = finish(timeout)
        except CallTimeout as error:  # the call stays pending
            self._is_late = True
            raise multiprocessing.TimeoutError(
                f"The call to `{state.value}_wait` has timed out after {timeout} second(s)."
            ) from error
        except SubEnvError as error:
            self._state = AsyncState.DEFAULT
            raise_original(error)
        except BaseException:
            self._state = AsyncState.DEFAULT
            raise
        self._state = AsyncState.DEFAULT
        return result

    # ------------------------------------------------------------------ the end

    def close_extras(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close the sub-environments and end the workers; called by `close`, which takes the same arguments.

        Args:
            timeout: Seconds in which a pending call must finish, and sub-environments close, before workers are ended
                by force; `None` for 10.
            terminate: End them by force at once.
            **kwargs: Ignored.

        Raises:
            Exception: What a sub-environment raised in a pending call or in its own `close`; all is released by then.
        """
        pending, self._state = self._state, AsyncState.DEFAULT
        is_pending = pending is not AsyncState.DEFAULT
        with raising_originals():
            try:
                if is_pending and not self._is_late:
                    gym.logger.warn(
                        f"Calling `close` while waiting for a pending call to `{pending.value}` to complete."
                    )
                if is_pending and not terminate and self._finish is not None:
                    self._finish(CLOSE_TIMEOUT_S if timeout is None else timeout)
            except CallTimeout:
                terminate = True
            finally:
                # A timeout of 0 is meant for the pending call; idle sub-environments may still close in peace.
                self.fleet.close(timeout=timeout or None, terminate=terminate)
