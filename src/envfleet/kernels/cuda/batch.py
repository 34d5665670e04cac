"""A batch of kernel environments on a CUDA device: its memory, and the launches of compiled code."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import Ended
from envfleet.kernels.batch_base import BatchBase
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda, require_cuda
from envfleet.kernels.cuda.memory import Piece
from envfleet.kernels.cuda.target import Layouts, compile_for_cuda
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec, choice_limits
from envfleet.kernels.outputs import OutputPool, OutputSet
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
        cuda, target = import_cuda(), cuda_target()
        super().__init__(spec, num_envs, options, params, limit)
        threads = min(MAX_BLOCK_THREADS, num_envs)
        self._grid = -(-num_envs // threads), threads
        self._stream, self._clear = Stream(options.stream or 0), target.clear
        layouts = Layouts(self._plan, has_own_params=self._needs_own_params(), has_finals=self._is_same_step)
        self._kept = Piece(self._stream, layouts.kept, num_envs)
        self._room = self._kept.room
        self._clear(self._kept.data, self._stream.of_numba)
        for name, value in spec.state.defaults.items():
            self.write(name, value)

        def make_set() -> OutputSet:
            piece = Piece(self._stream, layouts.out, num_envs)
            return OutputSet(piece, [piece.array(name) for name in layouts.out.buffers])

        self._pool = OutputPool(make_set, copy=options.copy, num_sets=2 if options.copy else 1)
        self._last = self._pool.take()
        self._faults = cuda.mapped_array(1, dtype=np.int64)  # memory of the host that the device writes
        self._faults[0] = 0
        self._faults_at = target.address_of(self._faults)
        self._actions_home = cuda.device_array((num_envs, *spec.action.shape), spec.action.dtype)
        self._actions_home_at = target.address_of(self._actions_home)
        self._build()

    def _build(self) -> None:
        """Choose the code for the present parameters, bring them to the device, and compile now."""
        has_own_params = self._needs_own_params()
        layout = Layouts(self._plan, has_own_params=has_own_params).params
        piece = Piece(self._stream, layout, self.num_envs if has_own_params else 1)
        self._has_own_params, self._params_piece = has_own_params, piece
        self._write_params(self._params)
        self._program = compile_for_cuda(self.spec, has_own_params)
        target, stream = cuda_target(), self._stream.of_numba
        self._launch = target.launcher(self._program.step, *self._grid, stream)
        self._launch_observe = target.launcher(self._program.observe, *self._grid, stream)
        launch_reset = target.launcher(self._program.reset, 1, 1, stream)
        with compiling(self.spec, "CUDA"), target.translating():
            out = place = self._last.place.address
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
        cuda, target, stream, count = import_cuda(), cuda_target(), self._stream.of_numba, len(rows)
        sent = [cuda.to_device(values, stream=stream) for values in (rows, seeds, is_seeded.view(np.uint8))]
        out = self._pool.take()
        threads = min(MAX_BLOCK_THREADS, count)
        launch = target.launcher(self._program.reset, -(-count // threads), threads, stream)
        launch(
            self._kept.address,
            self._params_piece.address,
            out.place.address,
            *map(target.address_of, sent),
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

    def _observe_to(self, out: OutputSet) -> None:
        self._launch_observe(self._kept.address, out.place.address, self.num_envs, self._room)

    def _hand(self, out: OutputSet) -> tuple[DeviceArray, ...]:
        return tuple(out.arrays[: len(self._plan.outputs)])

    def step(self, actions: Any, now: int) -> tuple[tuple[DeviceArray, ...], Ended | None]:
        """Step every row once.

        Args:
            actions: `(num_envs, …)`: of the action space's dtype on the device (`__cuda_array_interface__`), or what
                can be made that on the host.
            now: `time.perf_counter_ns()`.

        Returns:
            Observations, rewards, terminated, truncated and infos, and the episodes that ended, if these are gathered,
            which waits for the device.

        Raises:
            InvalidArgument: Actions of another shape or type, or one that is not in the action space; or an earlier
                step had such a one on the device.
        """
        self._check_faults()
        interface = getattr(actions, "__cuda_array_interface__", None)
        if interface is None:
            self._actions_home.copy_to_device(self._take_host(actions), stream=self._stream.of_numba)
        address = self._actions_home_at if interface is None else self._take_device(interface)
        out = self._pool.take()
        self._launch_step(out, address, now, num_rows=self.num_envs)
        self._last = out
        return self._hand(out), self._gather(out, now) if self._gathers_ended else None

    def _take_host(self, actions: Any) -> NDArray[Any]:
        """Check actions of the host."""
        array, limits = convert_actions(self.spec, actions, (self.num_envs,)), choice_limits(self.spec.action_space)
        if limits is None:
            wrong = np.isnan(array)
        else:
            low, high = (bound.reshape(self.spec.action.shape) for bound in limits)
            wrong = (array < low) | (array >= high)
        if wrong.any():
            place = int(np.argmax(wrong.reshape(len(array), -1).any(axis=1)))
            refuse_action(self.spec.action_space, array, (len(array),), place)
        return array

    def _take_device(self, interface: dict[str, Any]) -> int:
        """Check the form of actions of the device; returns their address."""
        home = self._actions_home
        shape, dtype, strides = tuple(interface["shape"]), np.dtype(interface["typestr"]), interface.get("strides")
        if shape != home.shape:
            raise InvalidArgument(f"actions have shape {shape}, expected {home.shape}: one action per sub-environment")
        if dtype != home.dtype:
            raise InvalidArgument(
                f"actions on the device have dtype {dtype}, expected {home.dtype}: convert them there, as with "
                f"torch's actions.to(torch.{home.dtype})"
            )
        if strides is not None and tuple(strides) != tuple(home.strides):
            raise InvalidArgument("actions on the device are not contiguous: pass actions.contiguous()")
        self._stream.follow(interface.get("stream"))
        return int(interface["data"][0])

    def _launch_step(self, out: OutputSet, actions_at: int, now: int, *, num_rows: int) -> None:
        self._clear(out.place.count, self._stream.of_numba)
        self._launch(
            self._kept.address,
            self._params_piece.address,
            out.place.address,
            actions_at,
            self._faults_at,
            num_rows,
            self._room,
            self._limit,
            self._mode,
            now,
        )

    def _gather(self, out: OutputSet, now: int) -> Ended | None:
        """Copy the episodes that ended in a step to the host."""
        count = int(out.place.count.copy_to_host(stream=self._stream.of_numba).view(np.int64)[0])
        self._check_faults()  # now that the step is through
        if count == 0:
            return None
        ended, *finals = out.arrays[len(self._plan.outputs) :]
        episodes = ended.head(count)
        episodes = episodes[np.argsort(episodes["row"])]
        if not self._has_final_infos:
            return Ended(episodes, now, None, {})
        observations, *infos = (array.numpy()[episodes["row"]] for array in finals)
        return Ended(episodes, now, observations, dict(zip(self.spec.kernel.info_fields, infos, strict=True)))

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
        array: DeviceArray = self._last.arrays[len(self._plan.outputs) + 1]
        return array

    def kept(self, name: str) -> NDArray[Any]:
        """Return what is kept of every row, such as `"awaiting"` and `"elapsed"`; a copy on the host."""
        self._check_faults()
        return self._kept[name]

    def _keep(self, name: str, values: Any, rows: NDArray[np.int64] | None = None) -> None:
        if rows is None:
            self._kept.write(name, np.broadcast_to(values, (self.num_envs, *self._kept.layout.buffers[name].shape)))
            return
        whole = self._kept[name]
        whole[rows] = values
        self._kept.write(name, whole)

    def _write_params(self, names: Iterable[str]) -> None:
        piece, params = self._params_piece, self._plan.params
        if params.is_split:
            for name in names:
                piece.write(f"p_{name}", np.broadcast_to(self._params[name], piece.num_rows))
            return
        block = np.zeros(piece.num_rows, params.dtype)
        for name, values in self._params.items():
            block[name] = values
        piece.write(params.prefix, block)

    def close(self) -> None:
        """There is nothing to end: the memory goes with the last array that anybody holds."""
