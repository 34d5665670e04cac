"""Rollouts on a CUDA device: one launch takes every row through all steps; results stay there."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.buffers import NUMBERS
from envfleet.kernels.cuda.availability import cuda_target, import_cuda
from envfleet.kernels.cuda.batch import CudaBatch
from envfleet.kernels.cuda.memory import Layout, Piece
from envfleet.kernels.rollouts.policy_source import PolicySource
from envfleet.kernels.rollouts.slabs import FindEnded, RolloutArrays


class DeviceSlabs(RolloutArrays):
    """A rollout on the device: its memory, and how it is run.

    Args:
        batch: Whose rollout it is, or a later one of the same form.
        num_steps: T.
    """

    def __init__(self, batch: CudaBatch, num_steps: int) -> None:
        self._num_steps, self._num_envs, self._num_runs = num_steps, batch.num_envs, 0
        layouts = batch.layouts.out, Layout(NUMBERS), Layout([batch.plan.actions], packed=["actions"])
        pieces = [Piece(batch.stream, layout, (num_steps + 1) * batch.num_envs) for layout in layouts]
        self._results, self._numbers, _ = pieces
        self._inputs: Any = np.zeros(0)  # until there is one on the device
        whole = {name: piece.array(name) for piece in pieces for name in piece.layout.buffers}
        super().__init__(batch.plan, {name: array.by_steps(batch.num_envs) for name, array in whole.items()})

    def run(
        self, batch: CudaBatch, chooser: PolicySource, actions: Any, inputs: NDArray[np.float32], seed: int
    ) -> FindEnded:
        """Step all rows, and wait for nothing; a row whose action cannot be is not stepped, as in a step."""
        given: tuple[Any, ...] = ()
        if chooser.lines:
            if self._inputs.size != inputs.size:
                self._inputs = import_cuda().device_array(inputs.size, np.float32)
            self._inputs.copy_to_device(inputs, stream=batch.stream.of_numba)
            given = cuda_target().address_of(self._inputs), self._numbers.address, seed
        address = int(actions.__cuda_array_interface__["data"][0])
        batch.roll_out(chooser, self._results, address, self._num_steps, *given)
        self._num_runs += 1
        return functools.partial(self._find_ended, batch, self._num_runs)

    def _find_ended(self, batch: CudaBatch, run: int) -> tuple[NDArray[Any], NDArray[np.int64], list[NDArray[Any]]]:
        if run != self._num_runs:
            raise InvalidArgument("the episodes of a rollout are gone once `out` used its memory again: look before")
        ended = batch.ended(self._results)
        places = ended["row"].copy()
        ended["row"] %= self._num_envs
        # Unless a reset replaced it, the observation that a step led to is in the slab's next row.
        prefix, ahead = ("final_", 0) if batch.is_same_step else ("", self._num_envs)
        found = [(f"{prefix}{one.name}", places + ahead * (k == 0)) for k, one in enumerate(batch.plan.shown)]
        lasts = [self._results.array(name).take(at).numpy() for name, at in found]
        return ended, places // self._num_envs, lasts
