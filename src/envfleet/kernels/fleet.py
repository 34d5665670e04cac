"""The fleet of a kernel: a million sub-environments as one Gymnasium vector environment."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.core.fleet_base import Lifecycle
from envfleet.core.requests import check_mask
from envfleet.core.rows import StepResult
from envfleet.core.stats import FleetStats, Plan, WorkerStats
from envfleet.errors import FleetClosed, InvalidArgument, ResetNeeded
from envfleet.kernels.batch import BatchState
from envfleet.kernels.batches import make_batch, require_cpu
from envfleet.kernels.infos import info_columns, step_infos
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.plain import PlainRecord
from envfleet.kernels.requests import check_rows, read_seeds
from envfleet.kernels.rng import to_generator
from envfleet.kernels.rollouts.policies import Policy
from envfleet.kernels.rollouts.rollout import Rollout, run_rollout
from envfleet.kernels.values import spread, to_values


class KernelFleet(VectorEnv[Any, Any, Any]):
    """Many sub-environments of one kernel, stepped by compiled code; made by `envfleet.make(..., backend="kernel")`.

    A `gymnasium.vector.VectorEnv` with partial resets, episode statistics and exact saved states. Sub-environment `i`
    depends on its seed alone, whatever the number of sub-environments and threads. Not thread-safe: one thread at a
    time may use it.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        params: Parameters by name: one value for all, or one per sub-environment.
        max_episode_steps: Steps after which an episode is truncated; `None` for never.
        autoreset_mode: Gymnasium's.
        workers: Threads; by default as many as pay.
        copy: Whether returned arrays are the caller's own; else they are valid until the next-but-one call.
        device: `"cpu"`, or `"cuda"`: results are `DeviceArray`s, which other libraries take without a copy.
        seed: Of the first sub-environment at a first reset without seeds; `None` draws one.
        env_spec: Gymnasium's, if the kernel is registered.
        render_mode: `"rgb_array"` or `None`.
    """

    def __init__(  # noqa: PLR0913  # every option is keyword-only
        self,
        spec: KernelSpec,
        num_envs: int,
        *,
        params: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        workers: int | None = None,
        copy: bool = True,
        device: str = "cpu",
        seed: int | None = None,
        env_spec: Any = None,
        render_mode: str | None = None,
    ) -> None:
        self._state = Lifecycle.CLOSED  # until everything is there
        self._kernel = spec
        self._first_seed = secrets.randbits(63) if seed is None else seed
        self._batch = make_batch(
            spec,
            num_envs,
            device=device,
            params=params or {},
            limit=max_episode_steps,
            autoreset_mode=autoreset_mode,
            workers=workers,
            copy=copy,
        )
        self.num_envs = num_envs
        self.autoreset_mode = autoreset_mode
        # Of its own: a space draws, and seeding one fleet's must not touch another's.
        self.single_observation_space, self.single_action_space = deepcopy((spec.observation_space, spec.action_space))
        self.observation_space = batch_space(spec.observation_space, num_envs)
        self.action_space = batch_space(spec.action_space, num_envs)
        self.metadata = {
            "autoreset_mode": autoreset_mode,
            "render_modes": ["rgb_array"] if spec.render else [],
            "render_fps": spec.kernel.render_fps,
        }
        self.spec, self.render_mode = env_spec, render_mode
        self._has_infos = bool(spec.kernel.info_fields)
        self._is_disabled = autoreset_mode is AutoresetMode.DISABLED
        self._seeds: NDArray[np.uint64] | None = None
        self._steps, self._step_s = 0, 0.0
        self._state = Lifecycle.NEW

    def _check(self, verb: str, *, is_started: bool = True) -> None:
        """Check that `verb` may be called now.

        Raises:
            FleetClosed: After `close`.
            ResetNeeded: Before the first reset.
        """
        if self._state is Lifecycle.CLOSED:
            raise FleetClosed(f"{verb}() on a fleet that was closed: make a new one")
        if is_started and self._state is Lifecycle.NEW:
            raise ResetNeeded(f"{verb}() before the first reset: call reset() first")

    # ------------------------------------------------------------------ reset and step

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Reset every sub-environment, or those in `options["reset_mask"]`.

        Args:
            seed: An int seeds sub-environment `i` with `seed + i`; a sequence gives one seed (or `None`) each. Without
                a seed generators go on; at the first reset they are seeded from the system's entropy.
            options: `"reset_mask"`: a bool array `(num_envs,)` of those to reset. `"params"`: parameters by name for
                those that are reset, one value for all or one per sub-environment reset.

        Returns:
            Observations of all sub-environments (those not reset: their last ones), and infos.

        Raises:
            InvalidArgument: Seeds, mask or parameters of a wrong length or type.
        """
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
        rows = check_rows(indices, self.num_envs)
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
        self._check("reset of some", is_started=count < self.num_envs)
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
            ResetNeeded: Before the first reset, or (`AutoresetMode.DISABLED`) with an episode that has ended.
        """
        if self._state is not Lifecycle.READY:
            self._check("step")
        if self._is_disabled and self._batch.count_awaiting():
            self._refuse_ended()
        start_s = time.perf_counter()
        arrays, ended = self._batch.step(actions)
        self._steps += self.num_envs
        self._step_s += time.perf_counter() - start_s
        if ended is None and not self._has_infos:
            return arrays[0], arrays[1], arrays[2], arrays[3], {}
        infos = step_infos(self._kernel, arrays, ended, self.num_envs)
        return arrays[0], arrays[1], arrays[2], arrays[3], infos

    def rollout(
        self,
        policy: Policy | NDArray[Any],
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
        rollout = run_rollout(batch, policy, num_steps, autoreset_mode=self.autoreset_mode, seed=seed, out=out)
        self._steps += num_steps * self.num_envs
        self._step_s += time.perf_counter() - start_s
        return rollout

    def _refuse_ended(self) -> None:
        ended = self.terminated_indices
        raise ResetNeeded(
            f"the episodes of sub-environments {ended[:10]}{' …' if len(ended) > 10 else ''} have ended and autoreset "
            'is disabled: reset them with reset(options={"reset_mask": mask}) or reset_envs(fleet.terminated_indices)'
        )

    # ------------------------------------------------------------------ episodes

    @property
    def final_observations(self) -> NDArray[Any]:
        """Last observation of each sub-environment's previous episode (`SAME_STEP`), `(num_envs, …)`; a view.

        Valid where `terminated | truncated` in the last step.
        """
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise InvalidArgument(
                f"final_observations are kept in AutoresetMode.SAME_STEP, this fleet's mode is "
                f"{self.autoreset_mode.name}: there, the last observation is in what step returned"
            )
        observations: NDArray[Any] = self._batch.final_observations
        return observations

    @property
    def episode_ids(self) -> NDArray[np.int64]:
        """Number of each running episode, `(num_envs,)`: `i + num_envs * (episodes it has ended)`; -1 before any."""
        count = self._batch.kept("episodes")
        return np.where(count > 0, (count - 1) * self.num_envs + np.arange(self.num_envs), -1)

    @property
    def episode_returns(self) -> NDArray[np.float64]:
        """Sum of rewards of each running episode so far, `(num_envs,)`."""
        return self._batch.kept("returns").copy()

    @property
    def episode_lengths(self) -> NDArray[np.int64]:
        """Steps of each running episode so far, `(num_envs,)`."""
        return self._batch.kept("elapsed").copy()

    @property
    def terminated_indices(self) -> list[int]:
        """Sub-environments whose episode has ended (terminated or truncated) and that await a reset."""
        indices: list[int] = np.flatnonzero(self._batch.kept("awaiting")).tolist()
        return indices

    @property
    def active_count(self) -> int:
        """Sub-environments whose episode is running."""
        return self.num_envs - self._batch.count_awaiting()

    # ------------------------------------------------------------------ reaching in

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Parameters by name, `(1, …)` where all sub-environments share one value, else `(num_envs, …)`; copies."""
        return self._batch.params

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """A parameter or a field of the state of every sub-environment.

        Raises:
            AttributeError: There is neither by that name.
        """
        self._check("get_attr", is_started=False)
        if name in self._kernel.params.names:
            return to_values(spread(self._batch.params[name], self.num_envs))
        if name in self._kernel.state.names:
            return to_values(self._batch.kept(name))
        value = getattr(self._kernel.kernel, name, None)
        if value is None or callable(value):
            known = ", ".join((*self._kernel.params.names, *self._kernel.state.names))
            raise AttributeError(f"{self._kernel.name} has no attribute {name!r}: it has {known}")
        return (value,) * self.num_envs

    def set_attr(self, name: str, values: Any) -> None:
        """Set a parameter or a field of the state of every sub-environment.

        Args:
            name: Of the parameter or field.
            values: One value for all, or a list, tuple or array of one per sub-environment.
        """
        self._check("set_attr", is_started=False)
        if name in self._kernel.params.names:
            self._batch.set_params({name: np.asarray(values)})
            return
        if name not in self._kernel.state.names:
            self._kernel.params.check_name(name)
        self._check("set_attr of the state")
        self._batch.write(name, np.asarray(values))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, of which kernels have one, `render`; or get an attribute."""
        if args or kwargs:
            raise InvalidArgument(f"call({name!r}) with arguments: kernels have no methods that take any")
        return (self.render() or ()) if name == "render" else self.get_attr(name)

    @property  # type: ignore[misc]  # there is no one generator to set
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as SyncVectorEnv
        """The generator of every sub-environment; copies."""
        return tuple(to_generator(record) for record in self._batch.rng_records())

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as above
        """The seed that every sub-environment's generator was last given."""
        return (None,) * self.num_envs if self._seeds is None else tuple(self._seeds.tolist())

    def render(self) -> tuple[Any, ...] | None:
        """Render every sub-environment: one frame each, uint8 `(height, width, 3)`."""
        self._check("render")
        if self.render_mode is None:
            return None
        if self._kernel.render is None:
            raise InvalidArgument(f"{self._kernel.name} has no function `render(state, params)`: write one")
        return tuple(self._render_row(row) for row in range(self.num_envs))

    def _render_row(self, row: int) -> Any:
        state, params = self._batch.records(row)
        render: Any = self._kernel.render
        return render(PlainRecord(self._kernel.state, state), PlainRecord(self._kernel.params, params))

    def get_state(self, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> BatchState:
        """Save sub-environments in the middle of their episodes, generators and parameters included.

        Args:
            indices: Which; `None` for all, which is one copy of memory.

        Returns:
            What `set_state` takes; it pickles.
        """
        self._check("get_state")
        return self._batch.save(None if indices is None else check_rows(indices, self.num_envs))

    def set_state(self, state: Any, indices: Sequence[int] | NDArray[np.integer[Any]] | None = None) -> NDArray[Any]:
        """Bring saved sub-environments back; they go on exactly as they would have.

        Args:
            state: From `get_state` of a fleet of the same kernel.
            indices: Where to put them; `None` for all in order.

        Returns:
            The observations of those sub-environments, aligned with `indices`.
        """
        rows = None if indices is None else check_rows(indices, self.num_envs)
        count = self.num_envs if rows is None else len(rows)
        self._check("set_state of some", is_started=count < self.num_envs)
        if not isinstance(state, BatchState) or state.num_rows != count:
            found = f"{state.num_rows} sub-environments" if isinstance(state, BatchState) else type(state).__name__
            raise InvalidArgument(f"set_state needs a state of {count} sub-environments from get_state, got {found}")
        self._batch.load(state, rows)
        if self._seeds is None:
            self._seeds = np.zeros(self.num_envs, np.uint64)
        self._state = Lifecycle.READY
        observations: NDArray[Any] = self._batch.observe()[0]
        return observations if rows is None else observations.take(rows, axis=0)

    # ------------------------------------------------------------------ the fleet itself

    @property
    def device(self) -> str:
        """Where the sub-environments live."""
        return self._batch.device

    @property
    def plan(self) -> Plan:
        """How the sub-environments are spread, and why."""
        threads = self._batch.num_threads
        crew = f"{threads} thread{'s' if threads > 1 else ''} on the CPU"
        crew = "one thread per sub-environment on the CUDA device" if self.device == "cuda" else crew
        reason = f"compiled code, {crew}"
        spans = [self.num_envs * (k + 1) // threads - self.num_envs * k // threads for k in range(threads)]
        return Plan("kernel", threads, tuple(spans), reason)

    def stats(self) -> FleetStats:
        """What the fleet did since it was made."""
        rate = self._steps / self._step_s if self._step_s else 0.0
        workers: tuple[WorkerStats, ...] = ()
        return FleetStats(self._steps, rate, self._step_s, 0.0, 0.0, self._step_s, 0, workers)

    def __repr__(self) -> str:
        name = self.spec.id if self.spec is not None else self._kernel.name
        count = "1 sub-environment" if self.num_envs == 1 else f"{self.num_envs:,} sub-environments"
        return (
            f"<{type(self).__name__} {name}: {count}, {self.plan.reason}, {self.autoreset_mode.name}, "
            f"{self._state.value}>"
        )

    def close(self, **kwargs: Any) -> None:
        """Release the threads and memory; idempotent."""
        if self._state is not Lifecycle.CLOSED:
            self._state = Lifecycle.CLOSED
            self.closed = True
            self._batch.close()

    def __enter__(self) -> Self:
        """Return the fleet itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close the fleet."""
        self.close()
