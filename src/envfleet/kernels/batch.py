"""Batch of kernel environments on the CPU: its memory, and calls of compiled code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
        num_envs: Number of sub-environments.
        options: Options of the fleet; they decide whether a step returns the episodes that ended in it.
        params: Parameters by name, each for all or `(num_envs, …)`.
        limit: Number of steps after which an episode is truncated; `None` for no limit.

    Attributes:
        program: Compiled code for the current parameters.
        team: Threads that share the rows.

    Raises:
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough memory.
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
        """Select the compiled code for the current parameters, and make its tables."""
        plan = self.plan
        has_own_params = self._needs_own_params()
        param_arrays = allocate(plan.params.buffers, self.num_envs if has_own_params else 1)
        self._fill(param_arrays, self._params)
        program = self._compile(has_own_params)
        arrays = self._kept | param_arrays | {"ended": self._ended} | self._finals
        addresses = (arrays[each.name].ctypes.data if each.name in arrays else 0 for each in plan.all)
        table = np.array([self.num_envs, self._limit, self._mode, 0, *addresses, *self._extras()], np.int64)
        first = FIRST_ADDRESS + len(plan.kept) + len(plan.params.buffers)
        forms = [((self.num_envs, *out.shape), out.dtype) for out in plan.outputs]

        def make_set() -> OutputSet:
            outputs = tuple(np.empty(shape, dtype) for shape, dtype in forms)
            copy = table.copy()
            copy[first : first + len(outputs)] = [array.ctypes.data for array in outputs]
            return OutputSet(copy, outputs)

        pool = OutputPool(make_set, copy=self._copy)
        # In one statement: code and tables refer to these arrays, which an interrupt between two must not free.
        self._has_own_params, self._param_arrays, self.program, self._pool = has_own_params, param_arrays, program, pool

    def _compile(self, has_own_params: bool) -> MachineCode:
        return compile_kernel(self.spec, has_own_params, debug=self._debug)

    def _extras(self) -> Sequence[int]:
        """Return the entries of the table of addresses that follow those of the buffers."""
        return ()

    def _write_params(self, names: Iterable[str]) -> None:
        self._fill(self._param_arrays, names)

    def _fill(self, arrays: Mapping[str, NDArray[Any]], names: Iterable[str]) -> None:
        """Write the current values of parameters to arrays."""
        for name in names:
            target = arrays[f"p_{name}"] if self.plan.params.is_split else arrays["p"][name]
            target[...] = self._params[name]

    # ------------------------------------------------------------------ stepping

    def reset(
        self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], is_seeded: NDArray[np.bool_]
    ) -> Sequence[NDArray[Any]]:
        """Begin new episodes in the given rows.

        Args:
            rows: Rows to reset.
            seeds: Seed of each.
            is_seeded: Flag of each row: True seeds its generator, False continues it.

        Returns:
            Arrays of an `OutputSet` for all rows; only observations and infos are valid.
        """
        out = self._pool.take()
        out.place[NOW] = time.perf_counter_ns()
        self.program.functions["reset"](out.place, rows, seeds, is_seeded)
        if len(rows) < self.num_envs:
            self.program.functions["observe"](out.place, 0, self.num_envs)
        return out.arrays

    def observe(self) -> Sequence[NDArray[Any]]:
        """Return the arrays of an `OutputSet`; only observations and infos are valid."""
        out = self._pool.take()
        self.program.functions["observe"](out.place, 0, self.num_envs)
        return out.arrays

    def step(self, actions: Any, now: int) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        """Step every row once.

        Args:
            actions: Actions, `(num_envs, …)`, of the action space's dtype or convertible to it.
            now: `time.perf_counter_ns()`.

        Returns:
            Arrays of an `OutputSet`, and the ended episodes if the options require them.

        Raises:
            InvalidArgument: Actions have another shape or dtype, or one is not in the action space.
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
        """Step the given rows once, in this thread.

        Args:
            rows: Rows to step, without repetitions.
            actions: Actions of these rows, `(K, …)`.
            now: `time.perf_counter_ns()`.

        Returns:
            Results as of `step`; only these rows are valid.

        Raises:
            InvalidArgument: Actions are invalid, as for `step`.
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
        """Convert and check actions.

        Args:
            actions: Actions to convert.
            leading: Leading dimensions, `(num_envs,)` or `(num_steps, num_envs)`.

        Raises:
            InvalidArgument: Actions are invalid, as for `step`.
        """
        converted = convert_actions(self.spec, actions, leading)
        wrong = self.program.functions["check"](converted.reshape(-1, *self.spec.action.shape))
        if wrong < 0:
            refuse_action(self.spec.action, converted, leading, -1 - wrong)
        return converted

    def new_table(self) -> NDArray[np.int64]:
        """Return a copy of the table of addresses, in which the caller replaces those of the outputs."""
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

    # ------------------------------------------------------------------ kept arrays

    @property
    def final_observations(self) -> NDArray[Any]:
        """Last observation of each row's previous episode (`SAME_STEP`), `(num_envs, …)`; a view without `copy`."""
        return self._finals["final_observations"].copy() if self._copy else self._finals["final_observations"]

    def kept(self, name: str) -> NDArray[Any]:
        """Return a view of a kept array by its name, such as `"awaiting"` or `"elapsed"`."""
        return self._kept[name]

    def _keep(self, name: str, values: Any, rows: NDArray[np.int64] | None = None) -> None:
        self._kept[name][slice(None) if rows is None else rows] = values

    def close(self) -> None:
        """Stop the threads."""
        self.team.close()
