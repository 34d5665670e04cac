"""Drop-in replacements of Gymnasium's `AsyncVectorEnv` and `SyncVectorEnv`: change the import and keep the rest.

Both are fleets, so everything of `envfleet.Fleet` works on them. For new code `envfleet.make` does more.

Examples:
    >>> import gymnasium as gym
    >>> from envfleet.adapters.gymnasium import AsyncFleet  # was: from gymnasium.vector import AsyncVectorEnv
    >>> envs = AsyncFleet([lambda: gym.make("CartPole-v1")] * 2)
    >>> observations, infos = envs.reset(seed=42)
    >>> envs.step_async(envs.action_space.sample())
    >>> observations, rewards, terminations, truncations, infos = envs.step_wait(timeout=60)
    >>> rewards
    array([1., 1.])
    >>> envs.close()
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium.vector import AutoresetMode

from envfleet.adapters.originals import raise_original, raising_originals
from envfleet.errors import CallTimeout, InvalidArgument, NothingPending, SubEnvError
from envfleet.fleet.checks import check_name, check_seconds
from envfleet.fleet.engine import Batch, Call, Pending, Reset, StepResult, read_reset
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.lifecycle import Lifecycle
from envfleet.make import make_engine
from envfleet.options import AutoresetName, read_options

_ADVICE = "call step_wait() first"
_CONTEXTS = (None, "forkserver", "spawn", "fork")


class _DropInFleet(Fleet):
    """Fleet that takes actions and raises exceptions as Gymnasium's classes do."""

    def __init__(self, env_fns: Iterable[Callable[[], gym.Env[Any, Any]]], **options: Any) -> None:
        self.env_fns = list(env_fns)
        chosen = read_options(lenient=True, **options)
        with raising_originals():
            engine = make_engine(self.env_fns, None, chosen, {})
        super().__init__(engine, chosen.batch_size)
        self._calls.on_error = _raise_original

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once; actions are neither checked nor cast."""
        return self._own(super().step(actions))

    def close(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close every sub-environment; an exception of one of them is raised after everything is released."""
        with raising_originals():
            super().close(timeout, terminate, **kwargs)

    def _own(self, result: StepResult) -> StepResult:
        """Copy rewards and flags: Gymnasium's `copy=False` is about observations only."""
        if self.engine.copy:
            return result
        observations, rewards, terminated, truncated, infos = result
        return observations, rewards.copy(), terminated.copy(), truncated.copy(), infos


def _raise_original(error: BaseException) -> None:
    if isinstance(error, SubEnvError):
        raise_original(error)


class SyncFleet(_DropInFleet):
    """Replacement of Gymnasium's `SyncVectorEnv`: sub-environments in this process, one after another.

    Differences from Gymnasium's:

    - After a sub-environment raised in `reset` or `step`, the fleet refuses to step until all are reset.
    - Invalid arguments always raise `ValueError`, also where Gymnasium asserts.
    - `AutoresetMode.DISABLED`: a step after the end of an episode raises `gymnasium.error.ResetNeeded` with its index.
    - After `close`, every call raises `FleetClosed`, a subclass of Gymnasium's `ClosedEnvironmentError`.
    - With `copy=False`, observations are views that stay valid until the next-but-one call, not the next.
    - Observations are checked, except for keys that a `Dict` space lacks.
    - A float in the infos is kept where Gymnasium would truncate it after an int.
    - A `reset_mask` stays in the caller's options, the class of the environment keeps its metadata, and `spec` is that
      of the environment.
    - It is a `VectorEnv`, but not an instance of `SyncVectorEnv`.

    Args:
        env_fns: Callables without arguments that make one environment each.
        copy: True if returned observations are the caller's own.
        observation_mode: `"same"`, `"different"` if the bounds of observation spaces differ, or a tuple of the batched
            and the single observation space.
        autoreset_mode: When sub-environments are reset after an episode.
        **options: Further options of `envfleet.make`, such as `on_failure`.

    Attributes:
        env_fns: The callables.

    Raises:
        InvalidArgument: An argument is invalid, or spaces differ.

    Examples:
        >>> import gymnasium as gym
        >>> envs = SyncFleet([lambda: gym.make("CartPole-v1")] * 3)
        >>> observations, infos = envs.reset(seed=42)
        >>> observations.shape, envs.np_random_seed
        ((3, 4), (42, 43, 44))
        >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], gym.Env[Any, Any]]],
        copy: bool = True,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | AutoresetName = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        super().__init__(
            env_fns,
            backend="serial",
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            **options,
        )

    @property
    def envs(self) -> tuple[gym.Env[Any, Any], ...]:
        """The sub-environments; a tuple, because replacing one here would have no effect."""
        return tuple(self.apply(lambda env: env))


class AsyncFleet(_DropInFleet):
    """Replacement of Gymnasium's `AsyncVectorEnv`: sub-environments in worker processes.

    Differences from Gymnasium's, in addition to those of `SyncFleet`:

    - There is one worker process per usable core, not one per sub-environment. Pass `workers=len(env_fns)` for
      sub-environments that mostly wait for a simulator or the network. `stats().workers` has the process ids; there is
      no attribute `processes`.
    - After a `*_wait(timeout)` that timed out the call is still pending: wait again for its result. Until then every
      other call except `close` raises `CallPending`, an `AlreadyPendingCallError`. Gymnasium forgets the call and
      returns its late result as that of the next one.
    - No sub-environment is built in the caller's process to learn the spaces from.
    - Exceptions of sub-environments keep their type, or become `SubEnvError` if they cannot be pickled. `__cause__`
      has the sub-environment, the worker and the traceback there. The death of a worker raises `WorkerDied`, not
      `EOFError`; afterwards every call but `close` raises.
    - `close` kills workers after at most 10 s (or `timeout`), also during a pending call.

    Args:
        env_fns: Callables without arguments that make one environment each.
        shared_memory: Ignored: parts of a fixed shape use shared memory, and any space works.
        copy: True if returned observations are the caller's own.
        context: Ignored name of a start method: workers are forked from a small server that never imports the main
            module, which is at least as safe as `"spawn"`.
        daemon: Ignored: no worker outlives its owner, and every worker may start processes.
        worker: Must be `None`.
        observation_mode: `"same"`, `"different"` if the bounds of observation spaces differ, or a tuple of the batched
            and the single observation space.
        autoreset_mode: When sub-environments are reset after an episode.
        **options: Further options of `envfleet.make`, such as `workers` and `on_failure`.

    Attributes:
        env_fns: The callables.

    Raises:
        InvalidArgument: An argument is invalid, or spaces differ.
    """

    def __init__(
        self,
        env_fns: Iterable[Callable[[], gym.Env[Any, Any]]],
        shared_memory: bool = True,  # Gymnasium's order of arguments
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: Callable[..., None] | None = None,
        observation_mode: Any = "same",
        autoreset_mode: AutoresetMode | AutoresetName = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        if worker is not None:
            raise InvalidArgument(
                f"worker={worker!r}, expected None: custom worker loops are not supported. Pass autoreset_mode for "
                'the end of episodes, on_failure="restart" for environments that fail, and put a gymnasium.Wrapper '
                "into env_fns for what happens around a step"
            )
        if context not in _CONTEXTS:
            raise InvalidArgument(f"cannot find context {context!r}: pass one of {', '.join(map(repr, _CONTEXTS))}")
        self._pending, self._after = "step", Lifecycle.READY
        self._reset_request = Reset()
        self._answer: Pending[Any] | None = None  # None for a step: `send` may have started it
        super().__init__(
            env_fns,
            backend="process",
            copy=copy,
            observation_mode=observation_mode,
            autoreset_mode=autoreset_mode,
            **options,
        )
        self._calls.advice = _ADVICE

    def step_async(self, actions: Any) -> None:
        """Start to step every sub-environment; actions are neither checked nor cast.

        Raises:
            CallPending: Another call is pending; also an `AlreadyPendingCallError`.
        """

        def send() -> Pending[Batch]:
            self.engine.send(actions)
            return self._steps()

        self._start("step", send, Lifecycle.READY)

    def step_wait(self, timeout: float | None = None) -> StepResult:
        """Wait for the step that `step_async` started.

        Args:
            timeout: Seconds to wait; `None` waits without limit.

        Returns:
            Observations, rewards (float64), terminations, truncations and infos.

        Raises:
            NothingPending: No step is pending; also a `NoAsyncCallError`.
            multiprocessing.TimeoutError: `timeout` passed. Nothing is lost: wait again.
        """
        return self._own(self._wait("step", timeout)[:5])

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        """Start to reset every sub-environment, or those in `options["reset_mask"]`.

        Raises:
            CallPending: Another call is pending; also an `AlreadyPendingCallError`.
        """
        request = self._reset_request = read_reset(seed, options, self.engine.traits)
        whole = (Lifecycle.NEW, Lifecycle.TORN) if request.rows is None else ()
        self._start("reset", lambda: self.engine.submit(request), Lifecycle.READY, *whole)

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for the reset that `reset_async` started, as `step_wait` does; return observations and infos."""
        infos = self._wait("reset", timeout)
        return self._show_reset(self._reset_request, infos)

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Start calling a method of every sub-environment, or reading an attribute.

        Raises:
            CallPending: Another call is pending; also an `AlreadyPendingCallError`.
        """
        if not callable(name):
            check_name("call_async()", name)
        request = Call(name, args, kwargs)
        self._start("call", lambda: self.engine.submit(request), Lifecycle.NEW, Lifecycle.READY)

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for the call that `call_async` started, as `step_wait` does; return one result per sub-environment."""
        return tuple(self._wait("call", timeout))

    def _steps(self) -> Pending[Batch]:
        """Return the answer to a step, which `send` may have started as well as `step_async`."""
        return Pending(lambda timeout_s: self.engine.collect(timeout_s=timeout_s))

    def _start(self, verb: str, submit: Callable[[], Pending[Any]], *allowed: Lifecycle) -> None:
        calls = self._calls
        with calls.hold(f"{verb}_async()", *allowed):
            after = calls.state if verb == "call" else Lifecycle.READY

            def start() -> None:
                self._answer = submit()
                self._pending, self._after, calls.under_way[:] = verb, after, True
                calls.advice = f"call {verb}_wait() first"

            calls.run(start, Lifecycle.PENDING)

    def _wait(self, verb: str, timeout: float | None) -> Any:
        calls = self._calls
        is_pending = calls.state is Lifecycle.PENDING
        if (is_pending and self._pending != verb) or calls.state in (Lifecycle.NEW, Lifecycle.READY):
            when = f"while a {self._pending} is pending" if is_pending else "with nothing pending"
            raise NothingPending(f"{verb}_wait() {when}: call {verb}_async() first", verb)
        if timeout is not None:
            check_seconds("timeout", timeout, is_positive=False)
        with calls.hold(f"{verb}_wait()", Lifecycle.PENDING):
            try:
                answer = self._steps() if self._answer is None else self._answer
                result = calls.run(lambda: answer.wait(timeout))
                calls.state = self._after
                return result
            except CallTimeout as error:
                raise multiprocessing.TimeoutError(
                    f"The call to `{verb}_wait` has timed out after {timeout} second(s)."
                ) from error
            except BaseException:
                if calls.state is Lifecycle.PENDING:  # the call raised without changing anything
                    calls.state = self._after
                raise
            finally:
                if calls.state is not Lifecycle.PENDING:
                    self._pending, self._after, calls.under_way[:] = "step", Lifecycle.READY, False
                    self._answer, calls.advice = None, _ADVICE
