"""What a fleet of kernel environments asks of the batch that runs them, on whatever device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import CpuBatch, Ended
from envfleet.kernels.kernel import KernelSpec
from envfleet.options import Options

if TYPE_CHECKING:
    from envfleet.kernels.cuda.batch import CudaBatch
    from envfleet.kernels.cuda.ended import DeviceEnded

DEVICES = ("cpu", "cuda")


KernelBatch: TypeAlias = "CpuBatch | CudaBatch"
"""Kernel environments, stepped together.

Arrays that `reset`, `observe` and `step` return are observations, rewards, terminated, truncated, and infos: NumPy's on
the CPU, else `DeviceArray`s. All others are on the host.
"""
EndedInStep: TypeAlias = "Ended | DeviceEnded"
"""The episodes that ended in one step."""


def make_batch(
    spec: KernelSpec, num_envs: int, options: Options, params: Mapping[str, Any], limit: int | None
) -> KernelBatch:
    """Make the batch of a fleet.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        options: Of the fleet.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.

    Raises:
        InvalidArgument: A device that there is not, or threads or checks for CUDA.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough of it.
    """
    if options.device == "cpu" and options.stream is not None:
        raise InvalidArgument(f"stream={options.stream} with device='cpu', which has none: add device='cuda'")
    if options.device == "cpu":
        return CpuBatch(spec, num_envs, options, params, limit)
    if options.device != "cuda":
        raise InvalidArgument(f"device={options.device!r}: pass one of {', '.join(map(repr, DEVICES))}")
    if options.workers is not None:
        raise InvalidArgument(
            f"workers={options.workers} with device='cuda': leave it out, every sub-environment has a thread"
        )
    if options.debug:
        raise InvalidArgument("debug=True with device='cuda': indices are checked on the CPU only, leave device out")
    if spec.observation.parts or spec.action.parts:
        raise InvalidArgument(
            f"{spec.name} with device='cuda' has spaces of several parts, expected one array each: leave device out, "
            "or put observations and actions into one Box"
        )
    from envfleet.kernels.cuda.batch import CudaBatch

    return CudaBatch(spec, num_envs, options, params, limit)


def require_cpu(batch: KernelBatch, verb: str) -> CpuBatch:
    """Return the batch, where `verb` exists on the CPU only.

    Raises:
        InvalidArgument: It is on another device.
    """
    if not isinstance(batch, CpuBatch):
        raise InvalidArgument(f"{verb} runs on the CPU, this fleet on {batch.device!r}: call step in a loop there")
    return batch
