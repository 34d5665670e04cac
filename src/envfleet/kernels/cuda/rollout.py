"""Rollouts on a CUDA device: one launch takes every row through all steps; results stay there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.buffers import NUMBERS
from envfleet.kernels.cuda.availability import cuda_target, import_cuda
from envfleet.kernels.cuda.batch import CudaBatch
from envfleet.kernels.cuda.memory import Layout, Piece
from envfleet.kernels.rollouts.policy_source import PolicySource
from envfleet.kernels.rollouts.slabs import RolloutArrays


class DeviceSlabs(RolloutArrays):
    """A rollout on the device: its memory, and how it is run.

    Args:
        batch: Whose rollout it is, or a later one of the same form.
        num_steps: T.
    """

    def __init__(self, batch: CudaBatch, num_steps: int) -> None:
        self._num_steps, self._num_envs = num_steps, batch.num_envs
        layouts = batch.layouts.out, Layout(NUMBERS), Layout([batch.plan.actions], packed=["actions"])
        pieces = [Piece(batch.stream, layout, (num_steps + 1) * batch.num_envs) for layout in layouts]
        self._results, self._numbers, _ = pieces
        whole = {name: piece.array(name) for piece in pieces for name in piece.layout.buffers}
        super().__init__(batch.plan, {name: array.by_steps(batch.num_envs) for name, array in whole.items()})

    def run(
        self, batch: CudaBatch, chooser: PolicySource, actions: Any, inputs: NDArray[np.float32], seed: int
    ) -> tuple[NDArray[Any], NDArray[np.int64], list[NDArray[Any]]]:
        """Step all rows; returns records of the ended episodes by step, then row, these steps, and their last outputs.

        Raises:
            InvalidArgument: An action that was not in the action space; all other rows were stepped.
        """
        sent = import_cuda().to_device(inputs, stream=batch.stream.of_numba)
        given = (cuda_target().address_of(sent), self._numbers.address, seed) if chooser.lines else ()
        address = int(actions.__cuda_array_interface__["data"][0])
        batch.roll_out(chooser, self._results, address, self._num_steps, *given)
        ended = batch.ended(self._results)
        places = ended["row"].copy()
        ended["row"] %= self._num_envs
        names = [one.name for one in batch.plan.shown]
        steps = places // self._num_envs
        if batch.is_same_step:
            return ended, steps, [self._take(f"final_{name}", places) for name in names]
        ahead = [self._num_envs, *[0] * (len(names) - 1)]
        return ended, steps, [self._take(name, places + more) for name, more in zip(names, ahead, strict=True)]

    def _take(self, name: str, places: NDArray[np.int64]) -> NDArray[Any]:
        return self._results.array(name).take(places).numpy()
