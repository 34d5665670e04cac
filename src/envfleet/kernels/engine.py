"""Engine of kernels: one batch of compiled code on the CPU or a CUDA device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import CallPending, Failure, InvalidArgument, KernelError, KernelIndexError, ResetNeeded
from envfleet.fleet import engine as seam
from envfleet.fleet.checks import check_choice
from envfleet.fleet.episodes import EndedEpisodes, EpisodeStatus
from envfleet.fleet.fleet import Fleet
from envfleet.fleet.infos import take_infos
from envfleet.fleet.lifecycle import Lifecycle, refuse_ended
from envfleet.fleet.nested import map_arrays
from envfleet.fleet.rollout import Rollout
from envfleet.fleet.rollout_loop import check_rollout, step_rollout
from envfleet.fleet.stats import FleetStats, Plan
from envfleet.kernels.batch_base import BatchBase, BatchState, to_episodes
from envfleet.kernels.devices import make_batch
from envfleet.kernels.infos import KernelInfos
from envfleet.kernels.kernel import Kernel, KernelSpec, choose_kernel, read_kernel
from envfleet.kernels.policies import MLP
from envfleet.kernels.requests import convert_values, read_first_seed, read_limit, read_params, read_seeds
from envfleet.kernels.rollout import run_rollout
from envfleet.native.rng import to_generator
from envfleet.options import Options, read_options

_OPTIONS = ("autoreset_mode", "copy", "debug", "device", "final_infos", "record_episodes", "seed", "workers")


class KernelEngine(seam.Engine):
    """Sub-environments of one kernel, stepped by compiled code.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        max_episode_steps: Time limit; `None` or -1 for no limit.
        env_spec: Gymnasium's spec of a registered environment.
        render_mode: `"rgb_array"` or `None`.
        **params: Parameters of the kernel, one value each or one per sub-environment.

    Raises:
        InvalidArgument: A parameter, option or the time limit is invalid.
        KernelError: The kernel cannot be compiled.
    """

    def __init__(
        self,
        spec: KernelSpec,
        num_envs: int,
        options: Options,
        max_episode_steps: int | None = None,
        *,
        env_spec: Any = None,
        render_mode: str | None = None,
        **params: Any,
    ) -> None:
        check_choice("render_mode", render_mode, (None, "rgb_array"))
        self._kernel, self._num_envs, self.copy = spec, num_envs, options.copy
        self._unpack, self._has_parts = spec.observation.unpack, bool(spec.observation.parts)
        self._first_seed = read_first_seed(options.seed, num_envs)
        self._batch: Any = self._make_batch(spec, num_envs, options, params, read_limit(max_episode_steps))
        threads = self._batch.num_threads
        checks = " that checks indices" if options.debug else ""
        spans = [num_envs * (k + 1) // threads - num_envs * k // threads for k in range(threads)]
        spaces = deepcopy((spec.observation.space, spec.action.space))
        self.traits = seam.Traits(
            plan=Plan("kernel", threads, tuple(spans), f"compiled code{checks}, {self._batch.threads}"),
            num_envs=num_envs,
            single_observation_space=spaces[0],
            single_action_space=spaces[1],
            autoreset_mode=options.autoreset_mode,
            env_spec=env_spec,
            render_mode=render_mode,
            metadata={"render_modes": ["rgb_array"] if spec.render else [], "render_fps": spec.kernel.render_fps},
            device=self._batch.device,
            has_partial_steps=self._batch.device == "cpu",
            has_objects=False,
            has_stacks=False,
            has_rollouts=True,
            is_bound_to_process=False,
        )
        self._is_disabled = options.autoreset_mode is AutoresetMode.DISABLED
        self._infos = KernelInfos(spec, num_envs, options)
        self._has_infos = bool(spec.info_fields)
        self._seeds: NDArray[np.uint64] | None = None
        self._observations: Any = None
        self._sent: Any = None  # a Batch from `send` to `collect`
        self._steps = self._step_ns = self._stepped_ns = 0
        self._stepped: seam.Rows | None = None  # rows of the last step; `None` for all

    def _make_batch(
        self, spec: Any, num_envs: int, options: Options, params: dict[str, Any], limit: int | None
    ) -> BatchBase:
        return make_batch(spec, num_envs, options, params, limit)

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Copies of the parameters by name: `(1, …)` if sub-environments share a value, otherwise `(num_envs, …)`."""
        return dict(self._batch.params)

    def step(self, actions: Any) -> seam.StepResult:
        """Step every sub-environment once."""
        batch = self._batch
        if self._is_disabled and batch.count_awaiting():
            refuse_ended(batch.kept("awaiting"))
        start_ns = self._stepped_ns = time.perf_counter_ns()
        self._stepped = None
        arrays, ended = batch.step(actions, start_ns)
        self._steps += self._num_envs
        self._step_ns += time.perf_counter_ns() - start_ns
        self._observations = arrays[0]
        infos = {} if ended is None and not self._has_infos else self._infos.step(arrays, ended)
        observations = self._unpack(arrays[0]) if self._has_parts else arrays[0]
        return observations, arrays[1], arrays[2], arrays[3], infos

    def send(self, actions: Any, rows: seam.Rows | None = None) -> None:
        """Step `rows`, or all; `collect` returns the results."""
        self._sent = self._step_rows(actions, rows)

    def submit(self, request: seam.Request[seam.Answer]) -> seam.Pending[seam.Answer]:
        """Carry out a request."""
        answer: Any = None
        if isinstance(request, seam.SetState) or (isinstance(request, seam.Reset) and request.rows is None):
            self._sent = None  # an interrupted request ends here
        if isinstance(request, seam.Reset):
            answer = self._reset(request)
        elif isinstance(request, seam.Call):
            answer = self._call(request)
        elif isinstance(request, seam.SetAttr):
            self._set_attr(request.name, request.values)
        elif isinstance(request, seam.GetState):
            answer = self._batch.save(request.rows)
        elif isinstance(request, seam.SetState):
            self._load(request)
        return seam.Pending.of(answer)

    def _step_rows(self, actions: Any, rows: seam.Rows | None) -> seam.Batch:
        if self._sent is not None:
            raise CallPending("send() before the results of the last send() were received: call recv() first")
        if rows is None:
            return seam.Batch(*self.step(actions), np.arange(self._num_envs))
        batch = self._batch
        if self._is_disabled and batch.count_awaiting():
            refuse_ended(batch.kept("awaiting") != 0, rows)
        start_ns = self._stepped_ns = time.perf_counter_ns()
        self._stepped = rows
        arrays, ended = batch.step_rows(rows, actions, start_ns)
        self._steps += len(rows)
        self._step_ns += time.perf_counter_ns() - start_ns
        self._observations = self._observations.copy()
        self._observations[rows] = arrays[0][rows]
        infos = self._infos.step(arrays, ended)
        observations, rewards, terminated, truncated = (array[rows] for array in arrays[:4])
        return seam.Batch(self._unpack(observations), rewards, terminated, truncated, take_infos(infos, rows), rows)

    def collect(
        self, count: int | None = None, rows: seam.Rows | None = None, timeout_s: float | None = None
    ) -> seam.Batch:
        """Return the results of the step that was sent."""
        sent: seam.Batch = self._sent
        if rows is not None and not np.array_equal(rows, sent.env_indices):
            if len(rows) < len(sent.env_indices):
                raise InvalidArgument("recv(env_indices=…) of a part of what was sent: receive all")
            order = np.argsort(sent.env_indices)
            places = order[np.searchsorted(sent.env_indices, rows, sorter=order)]
            parts = (map_arrays(part, lambda array: array[places]) for part in sent[:4])
            sent = seam.Batch._make([*parts, take_infos(sent.infos, places), rows])
        self._sent = None
        return sent

    def _reset(self, request: seam.Reset) -> dict[str, Any]:
        rows, params = request.rows, read_params(request.options)
        every = np.arange(self._num_envs) if rows is None else rows
        values, is_seeded = read_seeds(request.seeds, every, self._num_envs)
        if params:
            self._batch.set_params(params, rows)
        if self._seeds is None:
            self._seeds = np.uint64(self._first_seed) + np.arange(self._num_envs, dtype=np.uint64)
            values, is_seeded = np.where(is_seeded, values, self._seeds[every]), np.ones(len(every), np.bool_)
        self._seeds[every[is_seeded]] = values[is_seeded]
        arrays = self._batch.reset(every, values, is_seeded)
        self._observations = arrays[0]
        return self._infos.reset(arrays, rows)

    def observe(self, rows: seam.Rows | None = None, *, final: bool = False) -> Any:
        """Return the last observations; on a CUDA device, those of ended episodes are a view."""
        observations = self._batch.final_observations if final else self._observations
        return self._unpack(observations if rows is None else observations.take(rows, axis=0))

    # ------------------------------------------------------------------------------- attributes, frames and states

    def _call(self, request: seam.Call) -> Sequence[Any]:
        name = str(request.name)
        if request.args or request.kwargs:
            raise InvalidArgument(
                f"call({name!r}) with arguments, which methods of kernels do not take: leave them out"
            )
        if name == "render":
            is_shown = self.traits.render_mode is not None
            return [self._batch.render(row) if is_shown else None for row in range(self._num_envs)]
        if name == "np_random":
            return [to_generator(record) for record in self._batch.kept("lives")["rng"]]
        if name == "np_random_seed":
            return [None] * self._num_envs if self._seeds is None else list(self._seeds.tolist())
        if name in self._kernel.params.names:
            values = self._batch.params[name]
            return _to_values(np.broadcast_to(values, (self._num_envs, *values.shape[1:])))
        if name in self._kernel.state.names:
            return _to_values(self._batch.field(name))
        value = getattr(self._kernel.kernel, name, None)
        if value is None or callable(value):
            raise AttributeError(self._describe_unknown(name))
        return (value,) * self._num_envs

    def _describe_unknown(self, name: str) -> str:
        known = ", ".join((*self._kernel.params.names, *self._kernel.state.names))
        return f"{self._kernel.name} has no attribute {name!r}: it has {known}"

    def _set_attr(self, name: str, values: Any) -> None:
        if name in self._kernel.params.names:
            self._batch.set_params({name: values})
            return
        if name not in self._kernel.state.names:
            raise KernelError(self._describe_unknown(name))
        if self._seeds is None:
            raise ResetNeeded(f"set_attr({name!r}) before the first reset would be overwritten: call reset() first")
        self._batch.write(name, convert_values(self._kernel.state.dtype[name], self._num_envs, name, values))

    def _load(self, request: seam.SetState) -> None:
        states, rows = request.states, request.rows
        count = self._num_envs if rows is None else len(rows)
        if not isinstance(states, BatchState) or states.num_rows != count:
            actual = f"{states.num_rows} sub-environments" if isinstance(states, BatchState) else type(states).__name__
            raise InvalidArgument(
                f"set_state requires {count} rows (got {actual}): index a state, such as state[[0, 0]]"
            )
        self._batch.load(states, rows)
        if self._seeds is None:
            self._seeds = np.zeros(self._num_envs, np.uint64)
        self._observations = self._batch.observe()[0]

    # ------------------------------------------------------------------------------------ rollouts and statistics

    def rollout(self, policy: Any, num_steps: int, seed: int | None, out: Any) -> Rollout:
        """Step `num_steps` times, in one compiled call unless the policy is a Python function."""
        num_steps, seed = check_rollout(self.traits.autoreset_mode, num_steps, seed, out)
        if callable(policy) or (self._kernel.action.parts and not isinstance(policy, MLP)):
            return step_rollout(self, policy, num_steps, seed, out)
        start_ns = time.perf_counter_ns()
        rollout = run_rollout(self._batch, policy, num_steps, seed=seed, out=out)
        self._steps += num_steps * self._num_envs
        self._step_ns += time.perf_counter_ns() - start_ns
        self._observations = rollout.memory[1].arrays["observations"][-1]
        return rollout

    def episodes(self) -> EpisodeStatus:
        """Return the present state of every episode."""
        kept, counts = self._batch.kept, self._batch.kept("lives")["episodes"]
        ids = np.where(counts > 0, (counts - 1) * self._num_envs + np.arange(self._num_envs), -1)
        return EpisodeStatus(ids, kept("returns").copy(), kept("elapsed").copy(), kept("awaiting") != 0)

    def ended_episodes(self) -> EndedEpisodes:
        """Return the episodes that ended in the last step."""
        episodes = to_episodes(self._batch.ended_records(), self._stepped_ns, self._num_envs)
        if self._stepped is None:
            return episodes
        places = np.argsort(self._stepped)  # of the step's rows, by sub-environment
        episodes = episodes._replace(rows=places[np.searchsorted(self._stepped, episodes.rows, sorter=places)])
        order = np.argsort(episodes.rows)
        return EndedEpisodes._make(column[order] for column in episodes)

    def count_ended(self) -> int:
        """Return the number of episodes that ended and await a reset."""
        return int(self._batch.count_awaiting())

    def state_after(self, error: BaseException) -> Lifecycle | None:
        """Return the state of the fleet after a request that raised `error`."""
        state = super().state_after(error)
        if state is Lifecycle.TORN and isinstance(error, Exception):
            error.add_note(
                "Some rows have stepped, others not. Repeat the steps with backend='serial' to find the row."
            )
        return Lifecycle.TORN if isinstance(error, KernelIndexError) else state

    def describe(self) -> str:
        """Describe the location of the sub-environments."""
        return self.traits.plan.reason

    def look(self, *, stacks: bool = False) -> FleetStats:
        """Return statistics."""
        steps, step_s = self._steps, self._step_ns / 1e9
        return FleetStats(steps, steps / step_s if step_s else 0.0, step_s, 0.0, 0.0, step_s, 0, ())

    def close(self, timeout_s: float) -> list[Failure]:
        """Release threads and memory."""
        self._batch.close()
        return []


def _to_values(values: NDArray[Any]) -> tuple[Any, ...]:
    """Return a Python number or an array for each sub-environment."""
    return tuple(values.tolist()) if values.ndim == 1 else tuple(values.copy())


def make_engine(
    kernel: type[Kernel] | str, num_envs: int, options: Options, max_episode_steps: int | None, **kwargs: Any
) -> KernelEngine:
    """Make the engine of a kernel.

    Args:
        kernel: The kernel, or its name `"module:Name"`.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        max_episode_steps: Time limit.
        **kwargs: `env_spec`, `render_mode`, and parameters of the kernel.
    """
    chosen, others = choose_kernel(kernel, kwargs)
    return KernelEngine(read_kernel(chosen), num_envs, options, max_episode_steps, **others)


def make_vector(
    kernel: type[Kernel] | str, num_envs: int, max_episode_steps: int | None = None, **kwargs: Any
) -> Fleet:
    """Make a fleet of a kernel; `gymnasium.make_vec` calls this for registered kernels.

    Args:
        kernel: The kernel, or its name `"module:Name"`.
        num_envs: Number of sub-environments.
        max_episode_steps: Time limit.
        **kwargs: Options of `envfleet.make` that kernels support, and parameters of the kernel.
    """
    options = read_options(backend="kernel", **{name: kwargs.pop(name) for name in _OPTIONS if name in kwargs})
    return Fleet(make_engine(kernel, num_envs, options, max_episode_steps, **kwargs))
