"""Rollouts on a CUDA device: one launch takes every row through all steps; results stay there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.kernels.buffers import Buffer
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.availability import cuda_target, import_cuda
from envfleet.kernels.cuda.batch import CudaBatch
from envfleet.kernels.cuda.memory import Layout, Piece
from envfleet.kernels.cuda.target import NUMBERS
from envfleet.kernels.rollouts.policies import MLP
from envfleet.kernels.rollouts.policy_source import PolicySource


class DeviceSlabs:
    """A rollout on the device: its memory, and how it is run.

    Args:
        batch: Whose rollout it is, or a later one of the same form.
        num_steps: T.

    Attributes:
        outputs: An array for each of the outputs, `(T, N, …)`; the first, observations, `(T + 1, N, …)`.
        actions: `(T, N, …)`, for actions that are chosen.
        is_reset: bool `(T, N)`.
        log_probs: float32 `(T, N)`, for actions that are drawn by a network.
        values: float32 `(T + 1, N)`, for networks with a critic.
        next_values: float32 `(T, N)`, likewise.
    """

    def __init__(self, batch: CudaBatch, num_steps: int) -> None:
        spec, num_envs, num_rows = batch.spec, batch.num_envs, (num_steps + 1) * batch.num_envs
        self._num_steps, self._num_envs = num_steps, num_envs
        self._results = Piece(batch.stream, batch.layouts.out, num_rows)
        self._numbers = Piece(batch.stream, NUMBERS, num_rows)
        actions = Layout([Buffer("actions", spec.action.dtype, spec.action.shape)], packed=["actions"])
        pieces = self._results, self._numbers, Piece(batch.stream, actions, num_rows)
        whole = {name: piece.array(name).by_steps(num_envs) for piece in pieces for name in piece.layout.buffers}
        self.outputs = [whole[name][: None if place == 0 else -1] for place, name in enumerate(batch.output_names)]
        self.values = whole["values"]
        self.is_reset, self.actions, self.log_probs, self.next_values = (
            whole[name][:-1] for name in ("is_reset", "actions", "log_probs", "next_values")
        )

    def take_actions(self, batch: CudaBatch, actions: Any) -> Any:
        """Check actions that are given, and bring those of the host to the device."""
        form = self._num_steps, self._num_envs
        if hasattr(actions, "__cuda_array_interface__"):
            batch.take_device(actions, form)
            return actions
        array = batch.take_host(actions, form)
        data = import_cuda().to_device(array.reshape(-1).view(np.uint8), stream=batch.stream.of_numba)
        return DeviceArray(data, array.shape, array.dtype, batch.stream)

    def run(
        self, batch: CudaBatch, chooser: PolicySource, actions: Any, network: MLP | None, seed: int
    ) -> tuple[NDArray[Any], NDArray[np.int64], list[NDArray[Any]]]:
        """Step all rows; returns records of the ended episodes by step, then row, these steps, and their last outputs.

        Raises:
            InvalidArgument: An action that was not in the action space; all other rows were stepped.
        """
        inputs = np.zeros(1, np.float32) if network is None else network.inputs()
        sent = import_cuda().to_device(inputs, stream=batch.stream.of_numba)
        given = (cuda_target().address_of(sent), self._numbers.address, seed) if chooser.lines else ()
        address = int(actions.__cuda_array_interface__["data"][0])
        batch.roll_out(chooser, self._results, address, self._num_steps, *given)
        ended = batch.ended(self._results)
        places = ended["row"].copy()
        ended["row"] %= self._num_envs
        names, steps = [batch.output_names[0], *batch.output_names[4:]], places // self._num_envs
        if batch.is_same_step:
            return ended, steps, [self._take(f"final_{name}", places) for name in names]
        ahead = [self._num_envs, *[0] * (len(names) - 1)]
        return ended, steps, [self._take(name, places + more) for name, more in zip(names, ahead, strict=True)]

    def _take(self, name: str, places: NDArray[np.int64]) -> NDArray[Any]:
        return self._results.array(name).take(places).numpy()
