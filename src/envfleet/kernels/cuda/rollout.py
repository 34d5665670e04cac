"""Rollouts on a CUDA device: one launch takes every row through all steps; results stay there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envfleet.fleet.rollout import RolloutEpisodes
from envfleet.kernels.buffers import Buffer
from envfleet.kernels.cuda.arrays import DeviceArray
from envfleet.kernels.cuda.availability import cuda_target, import_cuda
from envfleet.kernels.cuda.batch import CudaBatch
from envfleet.kernels.cuda.memory import Layout, Piece
from envfleet.kernels.cuda.target import compile_values
from envfleet.kernels.rollouts.policies import MLP, flatten, sizes_of
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
        spec, num_envs, layout = batch.spec, batch.num_envs, batch.layouts.out
        self._num_steps, self._num_envs, num_rows = num_steps, num_envs, (num_steps + 1) * num_envs
        numbers = [Buffer(name, np.dtype(np.float32)) for name in ("log_probs", "values", "next_values")]
        chosen = Buffer("actions", spec.action.dtype, spec.action.shape), *numbers
        self._results = Piece(batch.stream, layout, num_rows)
        self._chosen = Piece(batch.stream, Layout(chosen, packed=[buffer.name for buffer in chosen]), num_rows)
        pieces = (self._results, self._chosen)
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
        self, batch: CudaBatch, chooser: PolicySource, actions: Any, inputs: NDArray[np.float32], seed: int
    ) -> tuple[NDArray[Any], NDArray[np.int64], list[NDArray[Any]]]:
        """Step all rows; returns records of the ended episodes by step, then row, these steps, and their last outputs.

        Raises:
            InvalidArgument: An action that was not in the action space; all other rows were stepped.
        """
        sent = import_cuda().to_device(inputs, stream=batch.stream.of_numba)
        given = (cuda_target().address_of(sent), self.log_probs.address, seed) if chooser.lines else ()
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

    def evaluate(self, batch: CudaBatch, policy: MLP, episodes: RolloutEpisodes) -> None:
        """Have the critic value all observations of the rollout, and those that its steps led to."""
        cuda, target, stream = import_cuda(), cuda_target(), batch.stream.of_numba
        layers = policy.critic or ()
        program = compile_values(batch.spec, sizes_of(layers), policy.activation)
        inputs = cuda.to_device(flatten(layers), stream=stream)

        def launch(name: str, values: DeviceArray, places_at: int, count: int) -> None:
            array = self._results.array(name)
            steps = (array.strides[0] // array.dtype.itemsize, array.strides[-1] // array.dtype.itemsize)
            length = self._results.room * batch.spec.observation.size
            with target.translating():
                batch.launcher(program.evaluate, count)(
                    target.address_of(inputs), array.address, length, *steps, values.address, places_at, count
                )

        launch("observations", self.values, 0, self._results.num_rows)
        first, last = self.values.strides[0], self.values.strides[0] * (self._num_steps + 1)
        values = self._chosen.bytes_of("values")[first:last]
        self._chosen.bytes_of("next_values")[: last - first].copy_to_device(values, stream=stream)
        if batch.is_same_step and len(episodes):
            places = cuda.to_device(episodes.steps * self._num_envs + episodes.env_indices, stream=stream)
            launch("final_observations", self.next_values, target.address_of(places), len(episodes))
