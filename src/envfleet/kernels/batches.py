"""What a fleet of kernel environments asks of the batch that runs them, on whatever device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from envfleet.errors import InvalidArgument
from envfleet.kernels.batch import CpuBatch
from envfleet.kernels.batch_base import BatchState
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.threads import count_threads

DEVICES = ("cpu", "cuda")


class EndedInStep(Protocol):
    """The episodes that ended in one step."""

    @property
    def episodes(self) -> NDArray[Any]:
        """Records of `ENDED_DTYPE` by ascending row."""

    @property
    def now(self) -> int:
        """When the step was taken, in nanoseconds."""

    @property
    def observations(self) -> NDArray[Any] | None:
        """The last ones, which a reset replaced (`SAME_STEP`); else `None`."""

    @property
    def infos(self) -> Mapping[str, NDArray[Any]]:
        """Likewise, by name."""


class KernelBatch(Protocol):
    """Kernel environments, stepped together; `CpuBatch` and `CudaBatch` are such.

    Arrays that `reset`, `observe` and `step` return are observations, rewards, terminated, truncated, and infos:
    NumPy's on the CPU, else `DeviceArray`s. All others are on the host.
    """

    device: str
    num_threads: int

    @property
    def final_observations(self) -> Any:
        """The last observation of each row's previous episode (`SAME_STEP`)."""

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Parameters by name, `(1, …)` or `(num_envs, …)`; copies."""

    def reset(self, rows: Any, seeds: Any, is_seeded: Any, /) -> tuple[Any, ...]:
        """Begin new episodes in some rows."""

    def observe(self) -> tuple[Any, ...]:
        """Observations and infos once more."""

    def step(self, actions: Any, /) -> tuple[tuple[Any, ...], EndedInStep | None]:
        """Step every row once; the episodes that ended, or `None` if it is known that none did."""

    def count_awaiting(self) -> int:
        """How many rows await a reset."""

    def kept(self, name: str, /) -> NDArray[Any]:
        """What is kept of every row besides its state, by name; to be read."""

    def field(self, name: str, /) -> NDArray[Any]:
        """A field of every row's state; to be read."""

    def write(self, name: str, values: Any, /) -> None:
        """Set a field of the state."""

    def rng_records(self) -> NDArray[Any]:
        """The generators' states."""

    def records(self, row: int, /) -> tuple[NDArray[Any], NDArray[Any]]:
        """State and parameters of one row."""

    def set_params(self, values: Mapping[str, Any], rows: Any = None, /) -> None:
        """Change parameters, in some rows or for all."""

    def save(self, rows: Any = None, /) -> BatchState:
        """Copy everything of some rows, or of all."""

    def load(self, state: BatchState, rows: Any = None, /) -> None:
        """Bring saved rows back."""

    def close(self) -> None:
        """Release what needs releasing."""


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
        )
    if device != "cuda":
        raise InvalidArgument(f"device={device!r}: pass one of {', '.join(map(repr, DEVICES))}")
    if workers is not None:
        raise InvalidArgument(f"workers={workers} with device='cuda': leave it out, every sub-environment has a thread")
    if debug:
        raise InvalidArgument("debug=True with device='cuda': indices are checked on the CPU only, leave device out")
    from envfleet.kernels.cuda.batch import CudaBatch

    return CudaBatch(spec, num_envs, params=params, limit=limit, autoreset_mode=autoreset_mode, copy=copy)


def require_cpu(batch: KernelBatch, verb: str) -> CpuBatch:
    """The batch, where `verb` exists on the CPU only.

    Raises:
        InvalidArgument: It is on another device.
    """
    if not isinstance(batch, CpuBatch):
        raise InvalidArgument(f"{verb} runs on the CPU, this fleet on {batch.device!r}: call step in a loop there")
    return batch
