"""A batch of kernel environments on a CUDA device: its memory, and the launches of compiled code."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import MODES, NO_LIMIT
from envfleet.kernels.batch_base import BatchBase, BatchState
from envfleet.kernels.buffers import Buffer
from envfleet.kernels.cuda.actions import Actions
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda, require_cuda
from envfleet.kernels.cuda.ended import DeviceEnded
from envfleet.kernels.cuda.memory import SHARED_ROWS, Layout, Piece, SavedBuffers, room_for
from envfleet.kernels.cuda.outputs import DeviceSet
from envfleet.kernels.cuda.program import compile_for_cuda
from envfleet.kernels.cuda.target import Layouts
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.outputs import OutputPool
from envfleet.kernels.params import merge_params
from envfleet.kernels.program import compiling
from envfleet.options import Options

MAX_BLOCK_THREADS = 128


class CudaBatch(BatchBase):
    """Kernel environments in the memory of a CUDA device, stepped there by one thread each.

    A step is one launch and waits for nothing. Results are `DeviceArray`s. What a person looks at on the host is copied
    there when they look.

    Actions of the host are checked before anything is stepped. Those of the device are checked there: a row whose
    action cannot be is not stepped, its reward is NaN, and a later call says so.

    Args:
        spec: The kernel.
        num_envs: How many.
        options: Of the fleet.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.

    Raises:
        InvalidArgument: There is no device.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: The device has not enough.
    """

    device = "cuda"
    num_threads = 1

    def __init__(
        self, spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None = None
    ) -> None:
        require_cuda()
        cuda = import_cuda()
        super().__init__(spec, num_envs, params)
        plan = self._plan
        self._layouts = Layouts(plan, has_own_params=self._needs_own_params())
        self._room = room_for(num_envs)
        self._limit, self._mode = limit or NO_LIMIT, MODES[options.autoreset_mode]
        self._has_finals = options.autoreset_mode is AutoresetMode.SAME_STEP
        threads = min(MAX_BLOCK_THREADS, num_envs)
        self._grid = -(-num_envs // threads), threads
        self._stream = Stream(options.stream or 0)
        self._kept = Piece(self._stream, self._layouts.kept, num_envs, self._room, is_zero=True)
        for name, value in spec.state.defaults.items():
            self.write(name, value)
        make_set = functools.partial(
            DeviceSet, plan, self._layouts.out, self._stream, num_envs, has_finals=self._has_finals
        )
        self._pool = OutputPool(make_set, copy=options.copy, num_sets=2 if options.copy else 1)
        self._last: DeviceSet = self._pool.take()
        self._faults = cuda.mapped_array(1, dtype=np.int64)  # memory of the host that the device writes
        self._faults[0] = 0
        self._faults_at = cuda_target().address_of(self._faults)
        self._actions = Actions(spec, num_envs, self._stream)
        self._actions_home = cuda.device_array((num_envs, *spec.action.shape), spec.action.dtype)
        self._actions_home_at = cuda_target().address_of(self._actions_home)
        self._requests = Layout(
            [Buffer("seeds", np.dtype("u8")), Buffer("rows", np.dtype("i8")), Buffer("flags", np.dtype("u1"))]
        )
        self._build()

    def _build(self) -> None:
        """Choose the code for the present parameters, bring them to the device, and compile now."""
        plan = self._plan
        self._has_own_params = self._needs_own_params()
        rows, room = (self.num_envs, self._room) if self._has_own_params else (1, SHARED_ROWS)
        piece = Piece(self._stream, Layouts(plan, has_own_params=self._has_own_params).params, rows, room)
        self._params_piece = piece
        self._write_params(self._params)
        self._program = compile_for_cuda(self.spec, self._has_own_params)
        target, stream = cuda_target(), self._stream.of_numba
        self._clear = target.clear
        self._launch = target.launcher(self._program.step, *self._grid, stream)
        self._launch_observe = target.launcher(self._program.observe, *self._grid, stream)
        launch_reset = target.launcher(self._program.reset, 1, 1, stream)
        with compiling(self.spec, "CUDA"), target.translating():
            out = place = self._last.piece.address
            launch_reset(self._kept.address, piece.address, out, place, place, place, 0, self._room, 0)
            self._launch_observe(self._kept.address, out, 0, self._room)
            self._launch_step(self._last, self._actions_home_at, 0, num_rows=0)

    # ------------------------------------------------------------------ stepping

    def reset(
        self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], is_seeded: NDArray[np.bool_]
    ) -> tuple[DeviceArray, ...]:
        """Begin new episodes in some rows.

        Args:
            rows: Which.
            seeds: For each.
            is_seeded: Whether its generator is seeded, or goes on.

        Returns:
            Observations, rewards, terminated, truncated and infos of all rows; of those only observations and infos
            mean something.
        """
        self._check_faults()
        count = len(rows)
        piece = Piece(self._stream, self._requests, count, room_for(count))
        for name, values in (("seeds", seeds), ("rows", rows), ("flags", is_seeded)):
            piece.write(name, values)
        addresses = {name: piece.address + piece.layout.span(name, piece.room).start for name in piece.layout.buffers}
        out = self._pool.take()
        threads = min(MAX_BLOCK_THREADS, count)
        launch = cuda_target().launcher(self._program.reset, -(-count // threads), threads, self._stream.of_numba)
        launch(
            self._kept.address,
            self._params_piece.address,
            out.piece.address,
            addresses["rows"],
            addresses["seeds"],
            addresses["flags"],
            count,
            self._room,
            time.perf_counter_ns(),
        )
        if count < self.num_envs:
            self._observe_to(out)
        return self._hand(out)

    def observe(self) -> tuple[DeviceArray, ...]:
        """Return the same arrays, of which observations and infos mean something."""
        out = self._pool.take()
        self._observe_to(out)
        return self._hand(out)

    def _observe_to(self, out: DeviceSet) -> None:
        self._launch_observe(self._kept.address, out.piece.address, self.num_envs, self._room)

    def _hand(self, out: DeviceSet) -> tuple[DeviceArray, ...]:
        return tuple(out.arrays[: len(self._plan.outputs)])

    def step(self, actions: Any, now: int) -> tuple[tuple[DeviceArray, ...], DeviceEnded]:
        """Step every row once.

        Args:
            actions: `(num_envs, …)`: of the action space's dtype on the device, or what can be made that on the host.
            now: `time.perf_counter_ns()`.

        Returns:
            Observations, rewards, terminated, truncated and infos, and the episodes that ended.

        Raises:
            InvalidArgument: Actions of another shape or type, or one that is not in the action space; or an earlier
                step had such a one on the device.
        """
        self._check_faults()
        taken = self._actions.take(actions)
        if isinstance(taken, tuple):
            address, keeper = taken
        else:
            self._actions_home.copy_to_device(taken, stream=self._stream.of_numba)
            address, keeper = self._actions_home_at, None
        out = self._pool.take()
        self._launch_step(out, address, now, num_rows=self.num_envs)
        del keeper  # memory that is freed now is not given to others before the launch is through
        self._last = out
        ended = tuple(out.arrays[len(self._plan.outputs) :])
        count = functools.partial(self._count_ended, out.count)
        return self._hand(out), DeviceEnded(count, ended, self.spec.kernel.info_fields, now)

    def _launch_step(self, out: DeviceSet, actions_at: int, now: int, *, num_rows: int) -> None:
        self._clear(out.count, self._stream.of_numba)
        self._launch(
            self._kept.address,
            self._params_piece.address,
            out.piece.address,
            actions_at,
            self._faults_at,
            num_rows,
            self._room,
            self._limit,
            self._mode,
            now,
        )

    def _count_ended(self, words: Any) -> int:
        """Count the episodes that ended in the step that wrote `words`."""
        count = int(words.copy_to_host(stream=self._stream.of_numba).view(np.int64)[0])
        self._check_faults()  # now that the step is through
        return count

    def _check_faults(self) -> None:
        row = int(self._faults[0]) - 1
        if row >= 0:
            self._faults[0] = 0
            raise InvalidArgument(
                f"in an earlier step the action of sub-environment {row} was not in {self.spec.action_space}: it was "
                "not stepped, and its reward was NaN; check actions on the device before they are passed"
            )

    # ------------------------------------------------------------------ what is kept

    @property
    def final_observations(self) -> DeviceArray:
        """The last observation of each episode that ended in the last step (`SAME_STEP`), `(num_envs, …)`."""
        return self._last.arrays[len(self._plan.outputs) + 1]

    def count_awaiting(self) -> int:
        """Return how many rows await a reset; waits for the device."""
        return int(np.count_nonzero(self.kept("awaiting")))

    def kept(self, name: str) -> NDArray[Any]:
        """Return what is kept of every row besides its state: `"awaiting"`, `"elapsed"`, …; a copy on the host."""
        self._check_faults()
        return self._kept.read(name)

    def field(self, name: str) -> NDArray[Any]:
        """Return a field of every row's state; a copy on the host."""
        self._check_faults()
        if self._plan.state.is_split:
            return self._kept.read(f"s_{name}")
        values: NDArray[Any] = self._kept.read("s")[name]
        return values

    def write(self, name: str, values: Any) -> None:
        """Set a field of the state.

        Args:
            name: Of the field.
            values: One for all rows, or one each.
        """
        if self._plan.state.is_split:
            self._kept.write(f"s_{name}", np.broadcast_to(values, self.num_envs))
            return
        whole = self._kept.read("s")
        whole[name] = values
        self._kept.write("s", whole)

    def set_params(self, values: Mapping[str, Any], rows: NDArray[np.int64] | None = None) -> None:
        """Change parameters, in some rows or for all.

        Args:
            values: By name, each for all of `rows` or one per row.
            rows: Which; `None` for all.
        """
        self._params = merge_params(self.spec, self.num_envs, self._params, values, rows)
        if self._has_own_params == self._needs_own_params():
            self._write_params(values)
        else:
            self._build()

    def _write_params(self, names: Iterable[str]) -> None:
        """Bring these parameters, of which the host has a copy, to the device."""
        piece, params = self._params_piece, self._plan.params
        if params.is_split:
            for name in names:
                piece.write(f"p_{name}", np.broadcast_to(self._params[name], piece.num_rows))
            return
        block = np.zeros(piece.num_rows, params.dtype)
        for name, values in self._params.items():
            block[name] = values
        piece.write(params.prefix, block)

    def save(self, rows: NDArray[np.int64] | None = None) -> BatchState:
        """Copy everything of some rows to the host; or of all, in one copy that stays on the device until looked at."""
        self._check_faults()
        if rows is None:
            return BatchState(SavedBuffers(self._kept.twin()), self.params)
        return BatchState(
            {name: self._kept.read(name)[rows] for name in self._layouts.kept.buffers}, self._params_of(rows)
        )

    def load(self, state: BatchState, rows: NDArray[np.int64] | None = None) -> None:
        """Bring saved rows back, to the same places or others; they may come from another device."""
        arrays = state.arrays
        if rows is None and isinstance(arrays, SavedBuffers) and self._is_of_this_form(arrays.piece):
            self._check_saved(state.params)
            self._kept.copy_from(arrays.piece)
        else:
            arrays = dict(arrays)
            self._check_saved(state.params, arrays)
            for name in arrays:
                whole = self._kept.read(name)
                whole[slice(None) if rows is None else rows] = arrays[name]
                self._kept.write(name, whole)
        if any(not np.array_equal(self._params[name], values) for name, values in state.params.items()):
            self.set_params(dict(state.params), rows)

    def _is_of_this_form(self, piece: Piece) -> bool:
        return piece.layout.buffers == self._layouts.kept.buffers and piece.num_rows == self.num_envs

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a batch of kernel environments holds memory of a device: pickle what save() returns")

    def close(self) -> None:
        """There is nothing to end: the memory goes with the last array that anybody holds."""
