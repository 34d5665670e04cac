"""Recorder of rollouts on a CUDA device: one launch for all steps; results stay on the device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.fleet.rollout import Rollout
from envfleet.kernels.buffers import NUMBERS
from envfleet.kernels.cuda.availability import cuda_target, import_cuda
from envfleet.kernels.cuda.batch import CudaBatch
from envfleet.kernels.cuda.memory import Layout, Piece
from envfleet.kernels.policy_source import PolicySource
from envfleet.kernels.rollout_arrays import cut_last_step, make_rollout


class CudaRecorder:
    """Recorder of rollouts in memory of the device.

    Args:
        batch: The batch, or one of the same form.
        num_steps: Number of steps, T.

    Attributes:
        arrays: Arrays of the outputs, actions, `IS_RESET` and `NUMBERS` by name, `(T, N, …)`; observations and values
            are `(T + 1, N, …)`.
    """

    def __init__(self, batch: CudaBatch, num_steps: int) -> None:
        self._num_steps, self._num_envs, self._num_runs = num_steps, batch.num_envs, 0
        layouts = batch.layouts.out, Layout(NUMBERS), Layout([batch.plan.actions], packed=["actions"])
        pieces = [Piece(batch.stream, layout, (num_steps + 1) * batch.num_envs) for layout in layouts]
        self._results, self._numbers, _ = pieces
        self._inputs: Any = np.zeros(0)  # until the first rollout with a network
        whole = {name: piece.array(name) for piece in pieces for name in piece.layout.buffers}
        self.arrays = cut_last_step({name: array.by_steps(batch.num_envs) for name, array in whole.items()})

    def record(
        self, batch: CudaBatch, chooser: PolicySource, actions: Any, inputs: NDArray[np.float32], seed: int
    ) -> Rollout:
        """Step all rows, without waiting; a row with an invalid action is not stepped, as in a step."""
        arguments: tuple[Any, ...] = ()
        if chooser.lines:
            if self._inputs.size != inputs.size:
                self._inputs = import_cuda().device_array(inputs.size, np.float32)
            self._inputs.copy_to_device(inputs, stream=batch.stream.of_numba)
            arguments = cuda_target().address_of(self._inputs), self._numbers.address, seed
        address = int(actions.__cuda_array_interface__["data"][0])
        batch.roll_out(chooser, self._results, address, self._num_steps, *arguments)
        self._num_runs += 1
        find_ended = functools.partial(self._find_ended, batch, self._num_runs)
        return make_rollout(batch, self.arrays, chooser, actions, find_ended)

    def _find_ended(self, batch: CudaBatch, run: int) -> tuple[NDArray[Any], NDArray[np.int64], list[NDArray[Any]]]:
        if run != self._num_runs:
            raise InvalidArgument("`out` overwrote the episodes of this rollout: read them before the next one")
        ended = batch.ended(self._results)
        places = ended["row"].copy()
        ended["row"] %= self._num_envs
        # Unless a reset replaced it, the observation after a step is in the array's next row.
        prefix, ahead = ("final_", 0) if batch.is_same_step else ("", self._num_envs)
        buffers = [(f"{prefix}{each.name}", places + ahead * (k == 0)) for k, each in enumerate(batch.plan.shown)]
        lasts = [self._results.array(name).take(at).numpy() for name, at in buffers]
        return ended, places // self._num_envs, lasts
