"""What a fleet of kernel environments asks of the batch that runs them, on whatever device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gymnasium.vector import AutoresetMode

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import CpuBatch, Ended
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.threads import count_threads

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


def make_batch(  # noqa: PLR0913  # every option is keyword-only
    spec: KernelSpec,
    num_envs: int,
    *,
    device: str,
    params: Mapping[str, Any],
    limit: int | None,
    autoreset_mode: AutoresetMode,
    workers: int | None,
    copy: bool,
    debug: bool,
    gathers_ended: bool,
) -> KernelBatch:
    """Make the batch of a fleet.

    Args:
        spec: The kernel.
        num_envs: How many sub-environments.
        device: `"cpu"` or `"cuda"`.
        params: Values by name, each for all or `(num_envs, …)`.
        limit: Steps after which an episode is truncated; `None` for never.
        autoreset_mode: Gymnasium's.
        workers: Threads of the CPU; `None` for as many as pay.
        copy: Whether results are the caller's own.
        debug: Whether the kernel's functions check their indices.
        gathers_ended: Whether a step on the CPU returns the episodes that ended; one on a device returns how to get
            them.

    Raises:
        InvalidArgument: A device that there is not, or threads or checks for CUDA.
        KernelError: The kernel cannot be compiled.
        OutOfMemory: There is not enough of it.
    """
    if device == "cpu":
        return CpuBatch(
            spec,
            num_envs,
            params=params,
            limit=limit,
            autoreset_mode=autoreset_mode,
            num_threads=count_threads(num_envs, workers),
            copy=copy,
            debug=debug,
            gathers_ended=gathers_ended,
        )
    if device != "cuda":
        raise InvalidArgument(f"device={device!r}: pass one of {', '.join(map(repr, DEVICES))}")
    if workers is not None:
        raise InvalidArgument(f"workers={workers} with device='cuda': leave it out, every sub-environment has a thread")
    if debug:
        raise InvalidArgument("debug=True with device='cuda': indices are checked on the CPU only, leave device out")
    if spec.observation.parts or spec.action.parts:
        raise InvalidArgument(
            f"{spec.name} with device='cuda' has spaces of several parts, expected one array each: leave device out, "
            "or put observations and actions into one Box"
        )
    from envfleet.kernels.cuda.batch import CudaBatch

    return CudaBatch(spec, num_envs, params=params, limit=limit, autoreset_mode=autoreset_mode, copy=copy)


def require_cpu(batch: KernelBatch, verb: str) -> CpuBatch:
    """Return the batch, where `verb` exists on the CPU only.

    Raises:
        InvalidArgument: It is on another device.
    """
    if not isinstance(batch, CpuBatch):
        raise InvalidArgument(f"{verb} runs on the CPU, this fleet on {batch.device!r}: call step in a loop there")
    return batch
