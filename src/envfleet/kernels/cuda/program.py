"""A kernel compiled for CUDA: what is launched."""

from __future__ import annotations

import functools
import types
from typing import Any

import numpy as np

from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.cuda.availability import cuda_target
from envfleet.kernels.cuda.target import CudaTarget
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.program import check_functions, fingerprint_of, load_module, loop_names
from envfleet.kernels.source import Source


class CudaProgram:
    """A kernel's entry points on the device; made by `compile_for_cuda`.

    All take plain integers, most of them addresses.

    Args:
        module: The generated code, complete.

    Attributes:
        step: `step(kept, params_at, out, counts, turn, last_out, actions_at, faults, n, room, limit, mode, now)`.
        reset: `reset(kept, params_at, out, rows, seeds, is_seeded, count, room, now)`.
        observe: `observe(kept, out, n, room)`.
    """

    def __init__(self, module: types.ModuleType) -> None:
        self.step: Any = module.step
        self.reset: Any = module.reset
        self.observe: Any = module.observe


def compile_for_cuda(spec: KernelSpec, has_own_params: bool) -> CudaProgram:
    """Prepare a kernel for the device; it is compiled, or loaded from the cache on disk, when first launched.

    Args:
        spec: The kernel.
        has_own_params: Every sub-environment has parameters of its own.

    Raises:
        KernelError: It raises if run as plain Python, or breaks a rule.
    """
    return _compile(spec, has_own_params, fingerprint_of(spec))


@functools.lru_cache(maxsize=64)
def _compile(spec: KernelSpec, has_own_params: bool, _fingerprint: str) -> CudaProgram:
    truncates = check_functions(spec)
    plan, target = BufferPlan(spec), cuda_target()
    text = CudaTarget(Source(plan, has_own_params=has_own_params, truncates=truncates)).text()
    module = load_module(spec, text, "device")
    arrays = {buffer.name: buffer.dtype for buffer in plan.all} | {
        "actions": spec.action.dtype,
        "counts": np.dtype(np.int64),
        "seeds": np.dtype(np.uint64),
        "flags": np.dtype(np.uint8),
    }
    module.__dict__.update(loop_names(plan, target, target.make_function))
    module.__dict__.update({f"array_{name}": target.array_at(dtype) for name, dtype in arrays.items()})
    module.__dict__["nan"] = float("nan")
    return CudaProgram(module)
