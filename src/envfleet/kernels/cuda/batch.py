"""Batch of kernel environments on a CUDA device: its memory, and launches of compiled code."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch_base import BatchBase, EndedRows
from envfleet.kernels.cuda.arrays import DeviceArray, dense_strides
from envfleet.kernels.cuda.availability import Stream, cuda_target, import_cuda, require_cuda
from envfleet.kernels.cuda.memory import Piece
from envfleet.kernels.cuda.target import MAX_BLOCK_THREADS, Layouts, compile_for_cuda
from envfleet.kernels.host_actions import convert_actions, refuse_action
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.outputs import OutputPool, OutputSet
from envfleet.kernels.policy_source import GIVEN, PolicySource
from envfleet.native.generated_code import compiling
from envfleet.options import Options

_FEW_ROWS, _FEW_THREADS = 16_384, 32  # so that few rows use all multiprocessors


class CudaBatch(BatchBase):
    """Kernel environments in the memory of a CUDA device, stepped there by one thread each.

    A step is one launch, without waiting. Results are `DeviceArray`s, which are copied to the host on access.

    Actions on the host are checked before the step. Actions on the device are checked there: a row with an invalid
    action is not stepped, its reward is NaN, and a later call raises an error.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        params: Parameters by name, each for all or `(num_envs, …)`.
        limit: Number of steps after which an episode is truncated; `None` for no limit.

    Raises:
        InvalidArgument: CUDA is not available.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: The device does not have enough memory.
    """

    device = "cuda"
    num_threads = 1
    threads = "one thread per sub-environment on the CUDA device"

    def __init__(
        self, spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None = None
    ) -> None:
        require_cuda()
        cuda, target = import_cuda(), cuda_target()
        super().__init__(spec, num_envs, options, params, limit)
        self.stream, self._clear = Stream(options.stream or 0), target.clear
        self.layouts = Layouts(self.plan, has_own_params=self._needs_own_params(), has_finals=self.is_same_step)
        layouts = self.layouts
        self._kept = Piece(self.stream, layouts.kept, num_envs)
        self._clear(self._kept.data, self.stream.of_numba)
        for name, value in spec.state.defaults.items():
            self.write(name, value)

        def make_set() -> OutputSet:
            piece = Piece(self.stream, layouts.out, num_envs)
            return OutputSet(piece, [piece.array(one.name) for one in self.plan.outputs])

        self._pool = OutputPool(make_set, copy=options.copy, num_sets=2 if options.copy else 1)
        self._last = self._pool.take()
        self._faults = cuda.mapped_array(1, dtype=np.int64)  # memory on the host that the device writes
        self._faults[0] = 0
        self._faults_at = target.address_of(self._faults)
        self._actions_home = cuda.device_array((num_envs, *spec.action.shape), spec.action.dtype)
        self._actions_home_at = target.address_of(self._actions_home)
        self._build()

    def _build(self) -> None:
        """Select the code for the current parameters, copy these to the device, and compile."""
        has_own_params = self._needs_own_params()
        layout = Layouts(self.plan, has_own_params=has_own_params).params
        piece = Piece(self.stream, layout, self.num_envs if has_own_params else 1)
        self._has_own_params, self._params_piece = has_own_params, piece
        self._write_params(self._params)
        self._program = compile_for_cuda(self.spec, has_own_params)
        self._launch = self.launcher(self._program.step, self.num_envs)
        self._launch_observe = self.launcher(self._program.observe, self.num_envs)
        self._launches: dict[PolicySource, Any] = {GIVEN: self._launch}
        with compiling(self.spec.name, "CUDA"), cuda_target().translating():
            out = place = self._last.place.address
            self.launcher(self._program.reset, 1)(
                self._kept.address, piece.address, place, place, place, 0, self._kept.room, 0
            )
            self._launch_observe(self._kept.address, out, 0, self._kept.room, self._kept.room)
            self._launch_step(self._launch, self._last.place, self._actions_home_at, 0, num_rows=0)

    def launcher(self, entry: Any, count: int) -> Any:
        """Return the launcher of an entry point for a number of rows."""
        threads = min(_FEW_THREADS if count < _FEW_ROWS else MAX_BLOCK_THREADS, count)
        return cuda_target().launcher(entry, -(-count // threads), threads, self.stream.of_numba)

    # ------------------------------------------------------------------ stepping

    def reset(
        self, rows: NDArray[np.int64], seeds: NDArray[np.uint64], is_seeded: NDArray[np.bool_]
    ) -> Sequence[DeviceArray]:
        """Begin new episodes in the given rows.

        Args:
            rows: Rows to reset.
            seeds: Seed of each.
            is_seeded: Flag of each row: True seeds its generator, False continues it.

        Returns:
            Observations, rewards, terminated, truncated and infos of all rows; only observations and infos are valid.
        """
        self._check_faults()
        cuda, target, stream, count = import_cuda(), cuda_target(), self.stream.of_numba, len(rows)
        sent = [cuda.to_device(values, stream=stream) for values in (rows, seeds, is_seeded.view(np.uint8))]
        self.launcher(self._program.reset, count)(
            self._kept.address,
            self._params_piece.address,
            *map(target.address_of, sent),
            count,
            self._kept.room,
            time.perf_counter_ns(),
        )
        return self.observe()

    def observe(self) -> Sequence[DeviceArray]:
        """Return the arrays of a step; only observations and infos are valid."""
        out = self._pool.take()
        self._observe_to(out.place)
        return out.arrays

    def _observe_to(self, out: Piece) -> None:
        self._launch_observe(self._kept.address, out.address, self.num_envs, self._kept.room, out.room)

    def step(self, actions: Any, now: int) -> tuple[Sequence[DeviceArray], EndedRows | None]:
        """Step every row once.

        Args:
            actions: Actions, `(num_envs, …)`: of the action space's dtype on the device (`__cuda_array_interface__`),
                or convertible to it on the host.
            now: `time.perf_counter_ns()`.

        Returns:
            Observations, rewards, terminated, truncated and infos, and the ended episodes if the options require them,
            which waits for the device.

        Raises:
            InvalidArgument: Actions have another shape or dtype, or one is not in the action space; or an earlier step
                had an invalid action on the device.
        """
        self._check_faults()
        if hasattr(actions, "__cuda_array_interface__"):
            address = self._take_device(actions, (self.num_envs,))
        else:
            self._actions_home.copy_to_device(self._take_host(actions, (self.num_envs,)), stream=self.stream.of_numba)
            address = self._actions_home_at
        out = self._pool.take()
        self._launch_step(self._launch, out.place, address, now, num_rows=self.num_envs)
        self._last = out
        return out.arrays, self._gather(out.place, now) if self._gathers_ended else None

    def take_actions(self, actions: Any, leading: tuple[int, ...]) -> Any:
        """Check actions, and copy them to the device if they are on the host."""
        if hasattr(actions, "__cuda_array_interface__"):
            self._take_device(actions, leading)
            return actions
        array = self._take_host(actions, leading)
        data = import_cuda().to_device(array.reshape(-1).view(np.uint8), stream=self.stream.of_numba)
        return DeviceArray(data, array.shape, array.dtype, self.stream)

    def _take_host(self, actions: Any, leading: tuple[int, ...]) -> NDArray[Any]:
        """Convert and check actions on the host."""
        array, limits = convert_actions(self.spec, actions, leading), self.spec.action.limits
        if limits is None:
            wrong = np.isnan(array)
        else:
            low, high = (bound.reshape(self.spec.action.shape) for bound in limits)
            wrong = (array < low) | (array >= high)
        if wrong.any():
            place = int(np.argmax(wrong.reshape(math.prod(leading), -1).any(axis=1)))
            refuse_action(self.spec.action, array, leading, place)
        return array

    def _take_device(self, actions: Any, leading: tuple[int, ...]) -> int:
        """Check shape, dtype and strides of actions on the device; return their address."""
        interface, form = actions.__cuda_array_interface__, self.spec.action
        expected = (*leading, *form.shape)
        shape, dtype, strides = tuple(interface["shape"]), np.dtype(interface["typestr"]), interface.get("strides")
        if shape != expected:
            raise InvalidArgument(f"actions have shape {shape}, expected {expected}: one action per sub-environment")
        if dtype != form.dtype:
            raise InvalidArgument(
                f"actions on the device have dtype {dtype}, expected {form.dtype}: convert them there, as with "
                f"torch's actions.to(torch.{form.dtype})"
            )
        if strides is not None and tuple(strides) != dense_strides(shape, dtype.itemsize):
            raise InvalidArgument("actions on the device are not contiguous: pass actions.contiguous()")
        self.stream.follow(interface.get("stream"))
        return int(interface["data"][0])

    def roll_out(self, policy: PolicySource, out: Piece, actions_at: int, num_steps: int, *arguments: int) -> None:
        """Take many steps in one launch.

        Args:
            policy: Choice of the actions, or `GIVEN`.
            out: Memory for the results of all steps, with observations of one more step.
            actions_at: Address of the actions, which the policy writes.
            num_steps: Number of steps, T.
            *arguments: Arguments of the policy: addresses of its inputs and of the outputs of networks, and its seed.
        """
        form = (num_steps, self.num_envs, *arguments)
        if policy not in self._launches:
            program = compile_for_cuda(self.spec, self._has_own_params, policy)
            self._launches[policy] = self.launcher(program.step, self.num_envs)
            with compiling(self.spec.name, "rollouts on CUDA"), cuda_target().translating():
                self._launch_step(self._launches[policy], out, actions_at, 0, num_rows=0, form=form)
        self._observe_to(out)
        self._launch_step(
            self._launches[policy], out, actions_at, time.perf_counter_ns(), num_rows=self.num_envs, form=form
        )

    def _launch_step(
        self, launch: Any, out: Piece, actions_at: int, now: int, *, num_rows: int, form: tuple[int, ...] = (1, 0)
    ) -> None:
        self._clear(out.count, self.stream.of_numba)
        launch(
            self._kept.address,
            self._params_piece.address,
            out.address,
            actions_at,
            self._faults_at,
            num_rows,
            self._kept.room,
            self._limit,
            self._mode,
            out.room,
            *form,
            now,
        )

    def ended(self, out: Piece) -> NDArray[Any]:
        """Copy the episodes that ended in a launch to the host, by ascending row; waits for the device."""
        count = int(out.count.copy_to_host(stream=self.stream.of_numba).view(np.int64)[0])
        self._check_faults()
        episodes: NDArray[Any] = out.array("ended")[:count].numpy()
        return episodes[np.argsort(episodes["row"])]

    def ended_records(self) -> NDArray[Any]:
        """Return the episodes that ended in the last step, by ascending row; waits for the device."""
        return self.ended(self._last.place)

    def _gather(self, out: Piece, now: int) -> EndedRows | None:
        """Copy the ended episodes of a step to the host."""
        episodes = self.ended(out)
        if len(episodes) == 0:
            return None
        rows = episodes["row"]
        return self._end(episodes, now, lambda name: out.array(name).take(rows).numpy())

    def _check_faults(self) -> None:
        place = int(self._faults[0]) - 1
        if place >= 0:
            self._faults[0] = 0
            row = place % self.num_envs
            raise InvalidArgument(
                f"in an earlier step the action of sub-environment {row} was not in {self.spec.action.space}: it was "
                "not stepped, and its reward was NaN; check actions on the device before they are passed"
            )

    # ------------------------------------------------------------------ kept arrays

    @property
    def final_observations(self) -> DeviceArray:
        """Last observation of each episode that ended in the last step (`SAME_STEP`), `(num_envs, …)`."""
        piece: Piece = self._last.place
        return piece.array("final_observations")

    def kept(self, name: str) -> NDArray[Any]:
        """Return a copy of a kept array on the host by its name, such as `"awaiting"` or `"elapsed"`."""
        self._check_faults()
        return self._kept[name]

    def _keep(self, name: str, values: Any, rows: NDArray[np.int64] | None = None) -> None:
        whole = self._kept[name]
        whole[slice(None) if rows is None else rows] = values
        self._kept.write(name, whole)

    def _write_params(self, names: Iterable[str]) -> None:
        piece, params = self._params_piece, self.plan.params
        if params.is_split:
            for name in names:
                piece.write(f"p_{name}", np.broadcast_to(self._params[name], piece.num_rows))
            return
        block = np.zeros(piece.num_rows, params.dtype)
        for name, values in self._params.items():
            block[name] = values
        piece.write(params.prefix, block)

    def close(self) -> None:
        """Do nothing: memory is freed with the last array that refers to it."""
