"""`Fleet`: a `gymnasium.vector.VectorEnv` of many sub-environments, on any backend."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never, Self, SupportsIndex

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument, SubEnvError
from envfleet.fleet import engine as seam
from envfleet.fleet.checks import check_name, check_options, check_rows, check_seconds, check_seeds, check_values
from envfleet.fleet.engine import Batch, Engine, Reset, StepResult, read_reset
from envfleet.fleet.evaluating import Progress, play_episodes
from envfleet.fleet.guard import RESTARTABLE, CallGuard
from envfleet.fleet.infos import scatter_infos
from envfleet.fleet.lifecycle import Lifecycle, refuse_busy
from envfleet.fleet.rollout import Rollout
from envfleet.fleet.rollout_loop import step_rollout
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.html import html_table

Indices = Sequence[int] | NDArray[np.integer[Any]]

_READY, _TORN = Lifecycle.READY, Lifecycle.TORN


class Fleet(VectorEnv[Any, Any, Any]):
    """Vectorized environment, made by `envfleet.make`, `envfleet.connect` or `envfleet.adopt`.

    Call it from one thread at a time. Only `stats`, `stacks` and `close(terminate=True)` may be called from others.

    Args:
        engine: Engine that runs the sub-environments; the fleet closes it.
        batch_size: Rows that `recv` waits for, from 1 to `num_envs`; all by default.

    Attributes:
        num_envs: Number of sub-environments.
        single_observation_space: Observation space of one sub-environment.
        single_action_space: Action space of one sub-environment.
        observation_space: Batched observation space.
        action_space: Batched action space.
        reward_space: Reward space of one sub-environment, a Box, if rewards are vectors, as in MO-Gymnasium; else
            `None`.
        metadata: Metadata of the environment, with the autoreset mode.
        spec: Gymnasium's spec, or `None`.
        render_mode: Render mode of the sub-environments.
        autoreset_mode: Time of the reset after the end of an episode.
        batch_size: Rows that `recv` waits for.
        engine: Engine that runs the sub-environments; has the attributes of its backend, such as `params` of a kernel.
    """

    def __init__(self, engine: Engine, batch_size: int | None = None) -> None:
        traits = engine.traits
        self._calls = CallGuard(engine, "call recv() until it returned them all")
        self.engine, self._engine_step = engine, engine.step
        self.num_envs = traits.num_envs
        self.single_observation_space = traits.single_observation_space
        self.single_action_space = traits.single_action_space
        space = traits.observation_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs) if space is None else space
        self.action_space = batch_space(traits.single_action_space, self.num_envs)
        self.reward_space = traits.reward_space
        self.autoreset_mode = traits.autoreset_mode
        self.metadata = {**traits.metadata, "autoreset_mode": traits.autoreset_mode}
        self.spec, self.render_mode = traits.env_spec, traits.render_mode
        self.batch_size = batch_size or self.num_envs

    # ------------------------------------------------------------------------------------------------ stepping

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset every sub-environment, or those in `options["reset_mask"]`.

        Args:
            seed: An int gives sub-environment `i` the seed `seed + i`; a list has one seed, or `None`, for each.
            options: Options of the sub-environments: one dict for all, or, where they are Python objects (backends
                serial, thread, process and ray), a list with a dict or `None` for each. A dict may have
                `"reset_mask"`, a bool array `(num_envs,)`.

        Returns:
            Observations of all sub-environments, and infos.

        Raises:
            InvalidArgument: Seeds, mask or options are invalid; nothing was reset.
            SubEnvError: A sub-environment raised.
            WorkerDied: A worker ended.
        """
        request = read_reset(seed, options, self.engine.traits)
        call = "reset()" if request.rows is None else "reset() with a mask"
        return self._show_reset(request, self._calls.reset(call, request, _READY))

    def _show_reset(self, request: Reset, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return observations and infos of all rows after a reset."""
        rows = request.rows
        return self.engine.observe(), infos if rows is None else scatter_infos([(infos, rows)], self.num_envs)

    def reset_envs(
        self,
        indices: Indices,
        seeds: Sequence[int | None] | NDArray[np.integer[Any]] | None = None,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some sub-environments, while steps of others may be pending.

        Args:
            indices: Indices of the sub-environments, each once.
            seeds: A seed or `None` for each of them.
            options: One dict for all of them, or, where they are Python objects, a list with a dict or `None` for each.

        Returns:
            Observations and infos, one row per index.

        Raises:
            InvalidArgument: Indices, seeds or options are invalid; nothing was reset.
            CallPending: Steps of some of them are pending.
        """
        rows = check_rows(indices, self.num_envs)
        check_options(options, len(rows) if self.engine.traits.has_objects else None)
        checked_seeds = check_seeds(seeds, len(rows), one_for_all=False, per="indices")
        request = Reset(None if self._is_every_row(rows) else rows, checked_seeds, options)
        infos = self._calls.reset("reset_envs()", request, _READY, Lifecycle.PENDING)
        return self.engine.observe(rows), infos

    def _is_every_row(self, rows: NDArray[np.int64]) -> bool:
        return np.array_equal(rows, np.arange(self.num_envs))

    def step(self, actions: Any) -> StepResult:
        """Step every sub-environment once.

        Args:
            actions: One action per sub-environment, as `action_space` batches them.

        Returns:
            Observations, rewards (float64), terminated, truncated, each with leading dimension `num_envs`, and infos.
            Rewards are float64 `(num_envs,)`, or `(num_envs, k)` of the dtype of the environment's `reward_space`.

        Raises:
            InvalidArgument: The actions are invalid; nothing was stepped.
            SubEnvError: A sub-environment raised; the message names it and its worker.
            WorkerDied: A worker ended.
            StepTimeout: A sub-environment exceeded `step_timeout_s`.
            ResetNeeded: The fleet was never reset, or an episode has ended and autoreset is `DISABLED`.
        """
        calls = self._calls
        if not calls.lock.acquire(False):
            refuse_busy("step()")
        if calls.state is not _READY:
            calls.lock.release()
            calls.refuse("step()")
        calls.state = _TORN  # what an interruption at any point leaves behind
        try:
            result = self._engine_step(actions)
            calls.state = _READY
            return result
        except BaseException as error:
            calls.note(error, _READY)
            raise
        finally:
            calls.lock.release()

    def rollout(self, policy: Any, num_steps: int, *, seed: int | None = None, out: Rollout | None = None) -> Rollout:
        """Step every sub-environment `num_steps` times; kernels do it in one compiled call.

        Args:
            policy: `"random"`, actions `(T, N, …)`, or a callable that takes a batch of observations and returns
                actions. A kernel also takes a network (`envfleet.kernels.MLP`), which is compiled.
            num_steps: Number of steps, T.
            seed: Seed of the policy's random numbers, from 0 to 2**32 - 1; `None` draws one.
            out: Earlier rollout of the same shape; its arrays are reused.

        Returns:
            The steps as arrays `(T, N, …)`.
        """
        with self._calls.hold("rollout()", _READY):
            engine = self.engine
            run = engine.rollout if engine.traits.has_rollouts else functools.partial(step_rollout, engine)
            return self._calls.run(lambda: run(policy, num_steps, seed, out))

    def evaluate(
        self, policy: Any, episodes: int | None = None, *, progress: Progress | None = None
    ) -> NDArray[np.float64]:
        """Play whole episodes with a policy, the same number (or one more) in each sub-environment.

        With a ranked fleet of a service (`connect(..., mode="ranked")`) this is exactly its attempt. The fleet is reset
        first; a policy with a method `begin` gets the mask of beginning episodes, bool `(num_envs,)`.

        Args:
            policy: Function of batched observations that returns actions, an agent of envfleet, or a model of
                Stable-Baselines3.
            episodes: Number of episodes; not needed with a ranked fleet.
            progress: Called after episodes end with a text and the share of finished episodes.

        Returns:
            Their returns, float64 `(episodes,)`.

        Raises:
            InvalidArgument: The number of episodes is invalid, the attempt has begun, or `policy` is not one.
        """
        return play_episodes(self, policy, episodes, progress)

    def send(self, actions: Any, env_indices: Indices | None = None) -> None:
        """Start stepping without waiting; `recv` returns the results.

        Args:
            actions: One action per sub-environment that steps, batched.
            env_indices: Sub-environments to step, in the order of `actions`; all by default.

        Raises:
            InvalidArgument: Actions or indices are invalid, or the engine steps all rows at once; nothing was sent.
            CallPending: Steps of some of them are pending already.
        """
        with self._calls.hold("send()", Lifecycle.READY, Lifecycle.PENDING):
            rows = None if env_indices is None else check_rows(env_indices, self.num_envs)
            if rows is not None and self._is_every_row(rows):
                rows = None
            if rows is not None:
                self.engine.traits.require("has_partial_steps", f"send() of {len(rows)} of {self.num_envs}")
            self._calls.send(actions, rows)

    def recv(self, timeout_s: float | None = None, env_indices: Indices | None = None) -> Batch:
        """Wait until sub-environments have stepped.

        Args:
            timeout_s: Timeout in seconds.
            env_indices: Sub-environments to wait for; by default the first `batch_size` that finish, or all pending
                ones if those are fewer.

        Returns:
            One row per sub-environment; `env_indices` of the batch has their indices.

        Raises:
            InvalidArgument: The timeout or the indices are invalid; pending steps stay pending.
            NothingPending: No step is pending.
            CallTimeout: `timeout_s` passed; nothing is lost, call it again.
        """
        with self._calls.hold("recv()", Lifecycle.PENDING):
            if timeout_s is not None:
                check_seconds("timeout_s", timeout_s, is_positive=False)
            rows = None if env_indices is None else check_rows(env_indices, self.num_envs)
            if rows is not None and len(rows) < self.num_envs:
                self.engine.traits.require("has_partial_steps", f"recv() of {len(rows)} of {self.num_envs}")
            return self._calls.receive(self.batch_size, rows, timeout_s)

    # ------------------------------------------------------------------------------------- one sub-environment each

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment (the outermost wrapper that has it), or get an attribute.

        Returns:
            One value per sub-environment.

        Raises:
            SubEnvError: A sub-environment raised.
        """
        if not callable(name):
            check_name("call()", name)
        with self._calls.hold("call()", Lifecycle.NEW, _READY):
            return (*self._calls.request(seam.Call(name, args, kwargs)),)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get an attribute of every sub-environment."""
        check_name("get_attr()", name)
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment, on the outermost wrapper that has it.

        Args:
            name: Name of the attribute.
            values: A list or tuple with one value for each, or one value for all.
        """
        check_name("set_attr()", name)
        check_values(values, self.num_envs)
        with self._calls.hold("set_attr()", Lifecycle.NEW, _READY):
            self._calls.request(seam.SetAttr(name, values))

    def apply(
        self, function: Callable[..., Any], *args: Any, indices: Indices | None = None, **kwargs: Any
    ) -> list[Any]:
        """Run `function(sub_env, *args, **kwargs)` for some sub-environments, in their worker.

        Args:
            function: Function to run; with backends in other processes it must pickle (lambdas do).
            *args: Arguments of the function.
            indices: Indices of the sub-environments; all by default.
            **kwargs: Keyword arguments of the function.

        Returns:
            One result for each.

        Raises:
            InvalidArgument: `function` is not callable, or `indices` are invalid.
            SubEnvError: The function raised in a sub-environment.
        """
        with self._calls.hold("apply()", Lifecycle.NEW, _READY):
            self.engine.traits.require("has_objects", "apply()")
            if not callable(function):
                raise InvalidArgument(f"apply({function!r}): pass a function that takes a sub-environment")
            rows = None if indices is None else check_rows(indices, self.num_envs)
            return [*self._calls.request(seam.Call(function, args, kwargs, rows))]

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment with its `render_mode`; returns one frame each."""
        with self._calls.hold("render()", _READY):
            return (*self._calls.request(seam.Call("render")),)

    @property  # type: ignore[misc]  # as SyncVectorEnv has it
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # the same
        """The generator of every sub-environment; copies if they are in other processes."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """The last seed of every sub-environment's generator."""
        return self.get_attr("np_random_seed")

    def get_state(self, indices: Indices | None = None) -> Any:
        """Save sub-environments in the middle of their episodes, with their wrappers and generators.

        Returns:
            An opaque value with one entry per sub-environment, which can be indexed.

        Raises:
            SubEnvError: A sub-environment cannot be saved; its cause is `StateUnsupported` if it neither pickles nor
                defines `get_state`.
        """
        with self._calls.hold("get_state()", _READY):
            self.engine.traits.require("has_states", "get_state()")
            return self._calls.request(seam.GetState(None if indices is None else check_rows(indices, self.num_envs)))

    def set_state(self, states: Any, indices: Indices | None = None) -> Any:
        """Restore saved sub-environments; they continue exactly as they would have.

        Args:
            states: States from `get_state`, one per sub-environment to restore.
            indices: Indices of the sub-environments; all by default.

        Returns:
            Their last observations, batched.
        """
        rows = None if indices is None else check_rows(indices, self.num_envs)
        is_whole = rows is None or len(rows) == self.num_envs
        with self._calls.hold("set_state()", *(RESTARTABLE if is_whole else (_READY,))):
            self.engine.traits.require("has_states", "set_state()")
            self._calls.request(seam.SetState(states, rows), _READY)
            return self.engine.observe(rows)

    # ------------------------------------------------------------------------------------------------- read-outs

    @property
    def plan(self) -> Plan:
        """Distribution of sub-environments over workers, with the reason."""
        return self.engine.traits.plan

    @property
    def device(self) -> str:
        """Device of returned arrays: `"cpu"` or `"cuda"`."""
        return self.engine.traits.device

    @property
    def episode_ids(self) -> NDArray[np.int64]:
        """Number of each running episode, `(num_envs,)`, unique in the fleet; -1 before the first reset."""
        return self.engine.episodes().ids

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Sum of rewards of each running episode so far, `(num_envs,)`, or `(num_envs, k)` with a `reward_space`."""
        return self.engine.episodes().returns

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """Steps of each running episode so far, `(num_envs,)`."""
        return self.engine.episodes().lengths

    @property
    def terminated_indices(self) -> list[int]:
        """Sub-environments that await a reset after the end of an episode (terminated or truncated)."""
        indices: list[int] = np.flatnonzero(self.engine.episodes().ended).tolist()
        return indices

    @property
    def active_count(self) -> int:
        """Number of sub-environments in the middle of an episode."""
        return 0 if self._calls.state is Lifecycle.NEW else self.num_envs - self.engine.count_ended()

    @property
    def final_observations(self) -> Any:
        """Last observations of the episodes that ended in the last step (`SAME_STEP`), batched.

        Other rows are meaningless.
        """
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"final_observations with autoreset_mode={self.autoreset_mode.name}: only SAME_STEP hides the last "
                "observation of an episode; in the other modes step() returns it"
            )
        return self.engine.observe(final=True)

    def stats(self) -> FleetStats:
        """Return statistics of the fleet so far. Any thread may call this."""
        return self.engine.look()

    def stacks(self) -> dict[int, str]:
        """Return the Python stack of every worker, by its index. Any thread may call this, even if workers hang."""
        if self._calls.state is Lifecycle.CLOSED:
            self._calls.refuse("stacks()")
        self.engine.traits.require("has_stacks", "stacks()")
        return {worker.index: worker.stack for worker in self.engine.look(stacks=True).workers}

    def _repr_html_(self) -> str:
        rows = [
            ("plan", self.plan),
            ("single_observation_space", self.single_observation_space),
            ("single_action_space", self.single_action_space),
            ("autoreset_mode", self.autoreset_mode.name),
            ("state", self._calls.state.value),
        ]
        return html_table(rows, title=repr(self))

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else self.engine.traits.env_name
        count = "1 sub-environment" if self.num_envs == 1 else f"{self.num_envs:,} sub-environments"
        where, state = self.engine.describe(), self._calls.state.value
        return f"<{type(self).__name__} {name}: {count}, {where}, {self.autoreset_mode.name}, {state}>"

    # -------------------------------------------------------------------------------------------------- lifecycle

    @property
    def closed(self) -> bool:  # type: ignore[override]  # an attribute of `VectorEnv`
        """Return whether the fleet is closed."""
        return self._calls.state is Lifecycle.CLOSED

    def close(self, timeout: float | None = None, terminate: bool = False, **kwargs: Any) -> None:
        """Close every sub-environment and stop the workers; idempotent.

        Args:
            timeout: Seconds for sub-environments to close; workers that take longer are killed.
            terminate: If True, kill the workers at once.
            **kwargs: Ignored, as in Gymnasium.

        Raises:
            EnvfleetError: This thread is in another call of the fleet: a signal handler must not close it.
            SubEnvError: A sub-environment raised while closing; all resources are released anyway.
        """
        if timeout is not None:
            check_seconds("timeout", timeout, is_positive=False)
        if failures := self._calls.close(timeout, terminate):
            raise SubEnvError(failures)

    def __enter__(self) -> Self:
        """Return the fleet itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the fleet."""
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> Never:
        """Refuse to be copied or pickled."""
        raise InvalidArgument(
            f"{self!r} can be neither copied nor pickled, because its workers belong to this process: make another "
            "fleet where it is needed and restore its state with set_state(fleet.get_state())"
        )

    def __del__(self) -> None:
        """Warn about a fleet that was not closed; the engine's finalizer releases its resources."""
        if not hasattr(self, "engine") or self._calls.state is Lifecycle.CLOSED:  # the former after a failed start
            return
        if self.engine.traits.is_bound_to_process:
            warnings.warn(
                f"{self!r} was not closed: call close() or use `with`", ResourceWarning, stacklevel=2, source=self
            )


def replace_engine(fleet: Fleet, engine: Engine, call: str) -> None:
    """Replace the engine of a fleet by a wrapper of it, or the reverse.

    Args:
        fleet: The fleet.
        engine: The new engine, with the same sub-environments.
        call: The call as its user wrote it.

    Raises:
        CallPending: Another thread is in the fleet.
        FleetClosed: The fleet is closed.
    """
    calls = fleet._calls  # noqa: SLF001  # this module's own
    with calls.hold(call, *(state for state in Lifecycle if state is not Lifecycle.CLOSED)):
        fleet.engine = calls.engine = engine
        fleet._engine_step = engine.step  # noqa: SLF001  # the same
