"""A batch of a task's sub-environments: memory for compiled code, and its calls in MuJoCo's thread pool."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.batch_base import BatchState, EndedRows
from envfleet.kernels.buffers import ENDED_DTYPE
from envfleet.kernels.cpu_target import NOW
from envfleet.kernels.host_actions import refuse_action
from envfleet.kernels.outputs import OutputSet
from envfleet.options import Options
from envfleet.physics.simulations import Simulations, function_addresses
from envfleet.physics.source import EXTRAS, compile_task
from envfleet.physics.task import TaskSpec

if TYPE_CHECKING:
    from envfleet.native.machine_code import MachineCode

_PHYSICS, _SHOWN = "physics", "observations"
"""Arrays of a saved state in addition to a kernel's: MuJoCo's state and the last observations."""


class Failed(Exception):
    """MuJoCo raised an error in a simulation.

    Attributes:
        messages: Errors by row.
    """

    def __init__(self, messages: Mapping[int, str]) -> None:
        super().__init__(messages)
        self.messages = messages


class TaskBatch(CpuBatch):
    """Sub-environments of a task, stepped by MuJoCo's threads.

    Args:
        spec: The task.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.
        model_fields: Values of fields of the model, `(num_envs, …)` by name.

    Attributes:
        simulations: MuJoCo's side.
        was_reset: 1 for rows that were reset in the last step or reset, uint8 `(num_envs,)`.
        diverged: 1 for rows with a simulation that diverged in the last step, uint8 `(num_envs,)`.
    """

    spec: TaskSpec

    def __init__(
        self,
        spec: TaskSpec,
        num_envs: int,
        options: Options,
        params: Mapping[str, Any],
        limit: int | None = None,
        *,
        model_fields: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self.was_reset, self.diverged = np.zeros((2, num_envs), np.uint8)
        self._has_ended = np.zeros(num_envs, np.bool_)
        self._ends_diverged = options.on_failure == "restart"
        self._is_made = False
        super().__init__(spec, num_envs, options, params, limit)
        self.simulations = Simulations(spec.model, num_envs, self.team.most)
        self.simulations.expand(model_fields or {})
        self._last = np.zeros((num_envs, *spec.observation.shape), spec.observation.dtype)
        self.threads = f"{self.threads}, in MuJoCo's pool"
        self._is_made = True

    def _compile(self, has_own_params: bool) -> MachineCode:
        return compile_task(self.spec, has_own_params)

    def _extras(self) -> Sequence[int]:
        flags = self.was_reset.ctypes.data, self.diverged.ctypes.data, self._ends_diverged
        return 0, 0, *flags, self.spec.frame_skip, *function_addresses()

    def set_params(self, values: Mapping[str, Any], rows: NDArray[np.int64] | None = None) -> None:
        """Change parameters, in some rows or for all.

        Args:
            values: Values by name, each for all of `rows` or one per row.
            rows: Sub-environments; `None` for all.

        Raises:
            InvalidArgument: A parameter is fixed, has the wrong shape or type, or does not exist.
        """
        fixed = sorted(values.keys() & set(self.spec.kernel.fixed_params))  # type: ignore[attr-defined]  # a task
        if fixed:
            raise InvalidArgument(
                f"{fixed[0]!r} of {self.spec.name} cannot change, as spaces follow from it: pass it to envfleet.make()"
            )
        super().set_params(values, rows)

    # ------------------------------------------------------------------ stepping

    def _run(self, name: str, out: OutputSet, rows: NDArray[np.int64] | None = None) -> None:
        table = out.place
        table[-len(EXTRAS)] = self.program.addresses[name]
        ids = None if rows is None else np.sort(rows).astype(np.int32)  # MuJoCo ends the program if they are not sorted
        if not self.simulations.apply(trampoline(), self._place(table), ids):
            raise Failed(self.simulations.errors())

    @staticmethod
    def _place(table: NDArray[np.int64]) -> int:
        """Return the address that compiled functions of a task take."""
        return int(table.ctypes.data) + 8 * (len(table) - len(EXTRAS))

    def _show(self, out: OutputSet, rows: NDArray[np.int64] | None) -> Sequence[NDArray[Any]]:
        """Remember new observations, and return the arrays, with the last observations of all other rows."""
        observations = out.arrays[0]
        if rows is None:
            self._last[...] = observations
        else:
            self._last[rows] = observations[rows]
            observations[...] = self._last
        return out.arrays

    def reset(
        self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], is_seeded: NDArray[np.bool_]
    ) -> Sequence[NDArray[Any]]:
        """Begin new episodes in some rows, as a batch of kernels does."""
        out = self._pool.take()
        self.program.functions["seed"](self._place(out.place), rows, seeds, is_seeded)
        out.place[NOW] = time.perf_counter_ns()
        self._run("begin", out, rows)
        return self._show(out, rows if len(rows) < self.num_envs else None)

    def observe(self) -> Sequence[NDArray[Any]]:
        """Return the arrays of `OutputSet`, of which observations are meaningful."""
        out = self._pool.take()
        out.arrays[0][...] = self._last
        return out.arrays

    def step(self, actions: Any, now: int) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        """Step every row once, as a batch of kernels does."""
        actions = self._convert(actions)
        self._check(actions, (self.num_envs,))
        return self._step(actions, None, now)

    def step_rows(
        self, rows: NDArray[np.int64], actions: Any, now: int
    ) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        """Step some rows once, as a batch of kernels does."""
        whole = np.zeros(self._action_shape, self._action_dtype)
        whole[rows] = self.take_actions(actions, (len(rows),))
        return self._step(whole, rows, now)

    def _check(self, actions: NDArray[Any], leading: tuple[int, ...]) -> None:
        if actions.dtype.kind == "f":
            flat = actions.ravel()
            if not np.isnan(flat.dot(flat)):
                return
        wrong = self.program.functions["check"](actions)
        if wrong < 0:
            refuse_action(self.spec.action, actions, leading, -1 - wrong)

    def _step(
        self, actions: NDArray[Any], rows: NDArray[np.int64] | None, now: int
    ) -> tuple[Sequence[NDArray[Any]], EndedRows | None]:
        out = self._pool.take()
        out.place[NOW] = now
        out.place[1 - len(EXTRAS)] = actions.ctypes.data
        self._run("step", out, rows)
        arrays = self._show(out, rows)
        self._has_ended = arrays[2] | arrays[3]
        if rows is not None:
            self._has_ended[np.setdiff1d(np.arange(self.num_envs), rows)] = False
        return arrays, self._gather(now) if self._gathers_ended and self._has_ended.any() else None

    def ended_records(self) -> NDArray[Any]:
        """Return the episodes that ended in the last step, by ascending row."""
        return self._ended[self._has_ended].view(ENDED_DTYPE)[:, 0]

    # ------------------------------------------------------------------ saved states

    def save(self, rows: NDArray[np.int64] | None = None) -> BatchState:
        """Copy everything of some rows, or of all: MuJoCo's state with its warm start, too."""
        state, which = super().save(rows), slice(None) if rows is None else rows
        more = {_PHYSICS: self.simulations.state[which].copy(), _SHOWN: self._last[which].copy()}
        return BatchState({**state.arrays, **more}, state.params)

    def load(self, state: BatchState, rows: NDArray[np.int64] | None = None) -> None:
        """Restore saved rows, into the same rows or others.

        Raises:
            InvalidArgument: They are of another task or model.
        """
        arrays, which = dict(state.arrays), slice(None) if rows is None else rows
        physics, shown = arrays.pop(_PHYSICS, None), arrays.pop(_SHOWN, None)
        if physics is None or shown is None or physics.shape[1:] != self.simulations.state.shape[1:]:
            raise InvalidArgument(f"a saved state does not fit {self.spec.name}: pass one of the same task and model")
        super().load(BatchState(arrays, state.params), rows)
        self.simulations.state[which] = physics
        self._last[which] = shown

    def close(self) -> None:
        """End the threads and free the simulations."""
        super().close()
        if self._is_made:
            self.simulations.close()


@functools.cache
def trampoline() -> int:
    """Return the address of the C function that MuJoCo calls: it calls the compiled function that the table names.

    Compiled code has numba's calling convention, MuJoCo's pool needs C's.
    """
    import numba
    from numba import types

    from envfleet.native.numba_cpu import array_at, call_at

    words = array_at(np.dtype(np.int64))

    @numba.cfunc(  # type: ignore[untyped-decorator]  # numba's
        types.void(types.int64, types.int64, types.int32, types.int64)
    )
    def enter(model: int, data: int, row: int, place: int) -> None:
        size = words(place, 1)[0]
        call_at(size, (model, data, np.int64(row), place))

    _kept.append(enter)
    return int(enter.address)


_kept: list[Any] = []
"""Functions that MuJoCo calls, for as long as the program runs."""
