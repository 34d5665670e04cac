"""What every fleet of a kernel has: its batch, a lifecycle, and what can be read off them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Self

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from envfleet.core.fleet_base import Lifecycle, name_call
from envfleet.core.rows import StepResult
from envfleet.core.stats import FleetStats, Plan, WorkerStats
from envfleet.errors import CallPending, FleetClosed, InvalidArgument, ResetNeeded
from envfleet.kernels.batches import make_batch
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.requests import check_render_mode, read_first_seed, read_limit


class KernelFleetBase(VectorEnv[Any, Any, Any]):
    """The lifecycle of a fleet of a kernel and what can be read off it; see `KernelFleet`."""

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
        debug: bool = False,
        seed: int | None = None,
        env_spec: Any = None,
        render_mode: str | None = None,
    ) -> None:
        self._state, self.closed = Lifecycle.CLOSED, True  # until everything is there
        self._kernel = spec
        check_render_mode(render_mode)
        self._first_seed = read_first_seed(seed, num_envs)
        self._batch = make_batch(
            spec,
            num_envs,
            device=device,
            params=params or {},
            limit=read_limit(max_episode_steps),
            autoreset_mode=autoreset_mode,
            workers=workers,
            copy=copy,
            debug=debug,
        )
        self._debug = debug
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
        self._sent: StepResult | None = None
        self._steps, self._step_s = 0, 0.0
        self._state, self.closed = Lifecycle.NEW, False

    def _check(self, verb: str, *, is_started: bool = True, is_idle: bool = True) -> None:
        """Check that `verb` may be called now.

        Raises:
            FleetClosed: After `close`.
            CallPending: What came of the last `send` was not received, unless `is_idle=False` allows that.
            ResetNeeded: Before the first reset, for what needs one.
        """
        call = name_call(verb)
        if self._state is Lifecycle.CLOSED:
            raise FleetClosed(f"{call} on a fleet that was closed: make a new one")
        if is_idle and self._sent is not None:
            raise CallPending(f"{call} while what send() stepped is not received: call recv() first")
        if is_started and self._state is Lifecycle.NEW:
            raise ResetNeeded(f"{call} before the first reset: call reset() first")

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
        """How many sub-environments are in the middle of an episode."""
        return 0 if self._state is Lifecycle.NEW else self.num_envs - self._batch.count_awaiting()

    @property
    def env_indices(self) -> range:
        """Which sub-environments these are: all."""
        return range(self.num_envs)

    @property
    def batch_size(self) -> int:
        """Rows that `recv` returns: all."""
        return self.num_envs

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
        reason = f"compiled code{' that checks indices' if self._debug else ''}, {crew}"
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

    def __del__(self) -> None:
        """Leave everything to Python: memory goes with the fleet, and idle threads with their pool."""
