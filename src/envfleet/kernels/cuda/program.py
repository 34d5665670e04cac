"""A kernel compiled for CUDA: what is launched."""

from __future__ import annotations

import functools
import importlib.metadata
import types

import numpy as np

from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.cuda.availability import cuda_target
from envfleet.kernels.cuda.memory import word_of
from envfleet.kernels.cuda.target import CudaTarget, Layouts
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.program import check_functions, fingerprint_of, load_module, loop_names
from envfleet.kernels.source import Source


def compile_for_cuda(spec: KernelSpec, has_own_params: bool) -> types.ModuleType:
    """Prepare a kernel for the device; it is compiled, or loaded from the cache on disk, when first launched.

    The module has its entry points, which take plain integers, most of them addresses:

    - `step(kept, params_at, out, actions_at, faults, n, room, limit, mode, now)`
    - `reset(kept, params_at, out, rows_at, seeds_at, flags_at, count, room, now)`
    - `observe(kept, out, n, room)`

    Args:
        spec: The kernel.
        has_own_params: Every sub-environment has parameters of its own.

    Raises:
        KernelError: It raises if run as plain Python, or breaks a rule.
    """
    return _compile(spec, has_own_params, fingerprint_of(spec))


@functools.lru_cache(maxsize=64)
def _compile(spec: KernelSpec, has_own_params: bool, _fingerprint: str) -> types.ModuleType:
    truncates = check_functions(spec)
    plan, target = BufferPlan(spec), cuda_target()
    layouts = Layouts(plan, has_own_params=has_own_params)
    source = Source(plan, has_own_params=has_own_params, truncates=truncates, copied=layouts.copied)
    cuda_code = CudaTarget(source, layouts)
    text = cuda_code.text()
    module = load_module(spec, text, "device", importlib.metadata.version("numba-cuda"))
    arrays = cuda_code.elements() | {
        "actions": spec.action.dtype,
        "counts": np.dtype(np.int64),
        "seeds": np.dtype(np.uint64),
        "flags": np.dtype(np.uint8),
    }
    module.__dict__.update(loop_names(plan, target, target.make_function))
    for name in spec.kernel.info_fields:
        module.__dict__[f"info_row_{name}"] = target.interleaved_row_view(spec.state.dtype[name].shape)
    for records in (plan.state, plan.params):
        length = records.dtype.itemsize // word_of(records.dtype).itemsize
        module.__dict__[f"read_{records.variable}"] = target.read_row(length)
        module.__dict__[f"write_{records.variable}"] = target.write_row(length)
    module.__dict__["new_out"] = target.new_array(spec.observation.shape, spec.observation.dtype)
    module.__dict__["write_out"] = target.write_row(spec.observation.size)
    module.__dict__.update({f"array_{name}": target.array_at(dtype) for name, dtype in arrays.items()})
    module.__dict__["nan"] = float("nan")
    return module
