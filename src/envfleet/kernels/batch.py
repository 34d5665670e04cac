"""A batch of kernel environments on the CPU: its memory, and the calls of compiled code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch_base import BatchBase, EndedRows
from envfleet.kernels.buffers import ENDED_DTYPE, allocate
from envfleet.kernels.cpu_target import FIRST_ADDRESS, NOW
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.outputs import OutputPool, OutputSet
from envfleet.kernels.program import compile_kernel
from envfleet.kernels.threads import Team
from envfleet.options import Options

if TYPE_CHECKING:
    from envfleet.native.machine_code import MachineCode


class CpuBatch(BatchBase):
    """Kernel environments in this process's memory, stepped by compiled code.

    Args:
        spec: The kernel.
        num_envs: How many.
        options: Of the fleet; they decide whether a step returns the episodes that ended in it.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.

    Attributes:
        program: The compiled code for the present parameters.
        team: The threads.

    Raises:
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough of it.
    """

    device = "cpu"

    def __init__(
        self, spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None = None
    ) -> None:
        super().__init__(spec, num_envs, options, params, limit)
        plan = self.plan
        self._copy, self._debug = options.copy, options.debug
        self._kept = allocate(plan.kept, num_envs, np.zeros)
        for name, value in spec.state.defaults.items():
            self.write(name, value)
        self._ended = np.zeros((num_envs, ENDED_DTYPE.itemsize // 8), np.int64)
        self._ended_places: list[tuple[int, int]] = [(0, 0)]  # starts of slices of rows, and how many ended there
        self._finals = allocate(plan.finals, num_envs if self.is_same_step else 1)
        self._action_dtype, self._action_shape = spec.action.dtype, (num_envs, *spec.action.shape)
        self.team = Team(num_envs, options.workers)
        self.num_threads = most = self.team.most
        self.threads = f"{'1 thread' if most == 1 else f'up to {most} threads'} on the CPU"
        self._build()

    def _build(self) -> None:
        """Choose the compiled code for the present parameters, and make the tables for it."""
        plan = self.plan
        has_own_params = self._needs_own_params()
        held_params = allocate(plan.params.buffers, self.num_envs if has_own_params else 1)
        self._fill(held_params, self._params)
        program = self._compile(has_own_params)
        held = self._kept | held_params | {"ended": self._ended} | self._finals
        addresses = (held[one.name].ctypes.data if one.name in held else 0 for one in plan.all)
        table = np.array([self.num_envs, self._limit, self._mode, 0, *addresses, *self._extras()], np.int64)
        first = FIRST_ADDRESS + len(plan.kept) + len(plan.params.buffers)
        forms = [((self.num_envs, *out.shape), out.dtype) for out in plan.outputs]

        def make_set() -> OutputSet:
            arrays = tuple(np.empty(shape, dtype) for shape, dtype in forms)
            own = table.copy()
            own[first : first + len(arrays)] = [array.ctypes.data for array in arrays]
            return OutputSet(own, arrays)

        pool = OutputPool(make_set, copy=self._copy)
        # All at once, as code and tables belong to these parameters, which whatever interrupts this must not free.
        self._has_own_params, self._held_params, self.program, self._pool = has_own_params, held_params, program, pool

    def _compile(self, has_own_params: bool) -> MachineCode:
        return compile_kernel(self.spec, has_own_params, debug=self._debug)

    def _extras(self) -> Sequence[int]:
        """Return what the table of addresses has besides buffers."""
        return ()

    def _write_params(self, names: Iterable[str]) -> None:
        self._fill(self._held_params, names)

    def _fill(self, held: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
        """Write the present values of some parameters."""
        for name in names:
            target = held[f"p_{name}"] if self.plan.params.is_split else held["p"][name]
            target[...] = self._params[name]

    # ------------------------------------------------------------------ stepping

    def reset(
        self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], is_seeded: NDArray[np.bool_]
    ) -> Sequence[NDArray[Any]]:
        """Begin new episodes in some rows.

        Args:
            rows: Which.
            seeds: For each.
            is_seeded: Whether its generator is seeded, or goes on.

        Returns:
            The arrays of `OutputSet` for all rows; of those only observations and infos mean something.
        """
        out = self._pool.take()
        out.place[NOW] = time.perf_counter_ns()
        self.program.functions["reset"](out.place, rows, seeds, is_seeded)
        if len(rows) < self.num_envs:
            self.program.functions["observe"](out.place, 0, self.num_envs)
        return out.arrays

    def observe(self) -> Sequence[NDArray[Any]]:
        """Return the arrays of `OutputSet`, of which observations and infos mean something."""
        out = self._pool.take()
        self.program.functions["observe"](out.place, 0, self.num_envs)
        return out.arrays

    def step(self, actions: Any, now: int) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        """Step every row once.

        Args:
            actions: `(num_envs, …)` of the action space's dtype, or what can be made that.
            now: `time.perf_counter_ns()`.

        Returns:
            The arrays of `OutputSet`, and the episodes that ended, if these are gathered.

        Raises:
            InvalidArgument: Actions of another shape or type, or one that is not in the action space.
        """
        actions = self._convert(actions)
        table, arrays = self._pool.take()
        table[NOW] = now
        if self.team.counts[1] == 1:
            count = self.program.functions["step"](table, actions)
            if count < 0:
                refuse_action(self.spec.action, actions, (self.num_envs,), -1 - count)
            self._ended_places = [(0, count)]
            return arrays, self._gather(now) if count and self._gathers_ended else None
        self.take_actions(actions, (self.num_envs,))
        step_range = self.program.functions["step_range"]
        self._ended_places = places = self.team.run(lambda start, stop: step_range(table, actions, start, stop))
        return arrays, self._gather(now) if any(count for _, count in places) and self._gathers_ended else None

    def _convert(self, actions: Any) -> NDArray[Any]:
        """Return actions of all rows as compiled code takes them; whether they are in the space is not checked."""
        if (
            type(actions) is np.ndarray
            and actions.dtype == self._action_dtype
            and actions.shape == self._action_shape
            and (flags := actions.flags).c_contiguous
            and flags.aligned
        ):
            return actions
        return convert_actions(self.spec, actions, (self.num_envs,))

    def step_rows(
        self, rows: NDArray[np.int64], actions: Any, now: int
    ) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        """Step some rows once, in this thread.

        Args:
            rows: Which ones, each once.
            actions: `(K, …)`, one for each of them.
            now: As for `step`.

        Returns:
            As `step`; only these rows are meaningful.

        Raises:
            InvalidArgument: As `step`.
        """
        whole = np.zeros(self._action_shape, self._action_dtype)
        whole[rows] = self.take_actions(actions, (len(rows),))
        table, arrays = self._pool.take()
        table[NOW] = now
        places = []
        for run in np.split(ordered := np.sort(rows), np.flatnonzero(np.diff(ordered) > 1) + 1):
            start, stop = int(run[0]), int(run[-1]) + 1
            places.append((start, self.program.functions["step_range"](table, whole, start, stop)))
        self._ended_places = places
        return arrays, self._gather(now) if any(count for _, count in places) and self._gathers_ended else None

    def take_actions(self, actions: Any, leading: tuple[int, ...]) -> NDArray[Any]:
        """Check actions that are given, one for each of the leading dimensions.

        Raises:
            InvalidArgument: As `step`.
        """
        taken = convert_actions(self.spec, actions, leading)
        wrong = self.program.functions["check"](taken.reshape(-1, *self.spec.action.shape))
        if wrong < 0:
            refuse_action(self.spec.action, taken, leading, -1 - wrong)
        return taken

    def new_table(self) -> NDArray[np.int64]:
        """Return a copy of the table of addresses, in which those of the outputs are to be replaced."""
        table: NDArray[np.int64] = self._pool.take().place.copy()
        table[NOW] = time.perf_counter_ns()
        return table

    def ended_records(self) -> NDArray[Any]:
        """Return the episodes that ended in the last step, by ascending row."""
        # Words are copied faster than records.
        words = np.concatenate([self._ended[start : start + count] for start, count in self._ended_places])
        return words.view(ENDED_DTYPE)[:, 0]

    def _gather(self, now: int) -> EndedRows:
        """Gather the episodes that ended, with their last outputs."""
        episodes = self.ended_records()
        rows = episodes["row"]
        return self._end(episodes, now, lambda name: self._finals[name][rows])

    # ------------------------------------------------------------------ what is kept

    @property
    def final_observations(self) -> NDArray[Any]:
        """The last observation of each row's previous episode (`SAME_STEP`), `(num_envs, …)`; a view without `copy`."""
        return self._finals["final_observations"].copy() if self._copy else self._finals["final_observations"]

    def kept(self, name: str) -> NDArray[Any]:
        """Return an array of what is kept of every row besides its state: `"awaiting"`, `"elapsed"`, …; a view."""
        return self._kept[name]

    def _keep(self, name: str, values: Any, rows: NDArray[np.int64] | None = None) -> None:
        self._kept[name][slice(None) if rows is None else rows] = values

    def close(self) -> None:
        """End the threads."""
        self.team.close()


def make_batch(
    spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None
) -> BatchBase:
    """Make the batch of a fleet.

    Arrays that its `reset`, `observe` and `step` return are observations, rewards, terminated, truncated, and infos:
    NumPy's on the CPU, else `DeviceArray`s. All others are on the host.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        options: Of the fleet.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.

    Raises:
        InvalidArgument: Options that the device does not have.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough of it.
    """
    if options.device == "cpu" and options.stream is not None:
        raise InvalidArgument(f"stream={options.stream} with device='cpu', which has none: add device='cuda'")
    if options.device == "cpu":
        return CpuBatch(spec, num_envs, options, params, limit)
    if options.workers is not None:
        raise InvalidArgument(
            f"workers={options.workers} with device='cuda', which has a thread for each: leave it out"
        )
    if options.debug:
        raise InvalidArgument("debug=True with device='cuda': indices are checked on the CPU only, leave device out")
    if spec.observation.parts or spec.action.parts:
        raise InvalidArgument(
            f"{spec.name} with device='cuda' has spaces of several parts, expected one array each: leave device out, "
            "or put observations and actions into one Box"
        )
    from envfleet.kernels.cuda.batch import CudaBatch

    return CudaBatch(spec, num_envs, options, params, limit)
