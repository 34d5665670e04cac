"""Devices of kernels: the batch and the rollout recorder of the CPU or of CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.batch_base import BatchBase
from envfleet.kernels.cpu_recorder import CpuRecorder
from envfleet.kernels.kernel import KernelSpec
from envfleet.options import Options


def make_batch(
    spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None
) -> BatchBase:
    """Make the batch of a fleet.

    Its `reset`, `observe` and `step` return observations, rewards, terminated, truncated and infos: NumPy's arrays on
    the CPU, `DeviceArray`s on CUDA. All other arrays are on the host.

    Args:
        spec: The kernel.
        num_envs: Number of sub-environments.
        options: Options of the fleet.
        params: Parameters by name, each for all or `(num_envs, …)`.
        limit: Number of steps after which an episode is truncated; `None` for no limit.

    Raises:
        InvalidArgument: The device does not support an option.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough memory.
    """
    if options.device == "cpu" and options.stream is not None:
        raise InvalidArgument(f"stream={options.stream} with device='cpu', without streams: add device='cuda'")
    if options.device == "cpu":
        return CpuBatch(spec, num_envs, options, params, limit)
    if options.workers is not None:
        raise InvalidArgument(
            f"workers={options.workers} requires device='cpu' (got device='cuda', with a thread per row): leave it out"
        )
    if options.debug:
        raise InvalidArgument("debug=True requires device='cpu' (got device='cuda'): leave device out to check indices")
    if spec.observation.parts or spec.action.parts:
        raise InvalidArgument(
            f"{spec.name} has spaces of several parts, and device='cuda' requires one array each: leave device out, "
            "or put observations and actions into one Box"
        )
    from envfleet.kernels.cuda.batch import CudaBatch

    return CudaBatch(spec, num_envs, options, params, limit)


def make_recorder(batch: Any, num_steps: int) -> Any:
    """Make the recorder of rollouts of `num_steps` steps, on the batch's device.

    Its `record` steps the batch and returns a `Rollout`, which the next call overwrites; `arrays` has what it fills.
    """
    if batch.device == "cpu":
        return CpuRecorder(batch, num_steps)
    from envfleet.kernels.cuda.recorder import CudaRecorder

    return CudaRecorder(batch, num_steps)
