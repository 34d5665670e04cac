"""Compilation of a kernel for the CPU: checks, generated source, entry points."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.errors import KernelError, MissingDependency
from envfleet.kernels.buffers import IS_RESET, NUMBERS, BufferPlan
from envfleet.kernels.cpu_target import CpuTarget
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.plain import PlainEnv, rehearse
from envfleet.kernels.source import Source
from envfleet.native.generated_code import compile_source
from envfleet.native.references import fingerprint
from envfleet.native.rules import check_returns

if TYPE_CHECKING:
    from envfleet.native.machine_code import MachineCode


def compile_kernel(spec: KernelSpec, has_own_params: bool, *, debug: bool = False) -> MachineCode:
    """Compile a kernel, or load it from the cache; a note on stderr reports a compilation.

    The code has these functions; their arguments are C-contiguous and not checked:

    - `step(table, actions) -> count`: check the actions and step all rows; return the number of episodes that ended, or
      `-1 - row` of an invalid action, in which case nothing was stepped
    - `step_range(table, actions, start, stop) -> count`: step some rows, without checking the actions
    - `check(actions)`: return 0 or `-1 - row` of an invalid action
    - `reset(table, rows, seeds, is_seeded)`: begin episodes in rows (int64), with seeds (uint64) where `is_seeded`
      (bool)
    - `observe(table, start, stop)`: write observations and infos

    Args:
        spec: The kernel.
        has_own_params: True if every sub-environment has its own parameters.
        debug: If True, functions check their indices and raise `KernelIndexError`.

    Raises:
        KernelError: The kernel cannot be compiled; the message names the user's line.
    """
    return _compile(spec, has_own_params, debug, fingerprint_of(spec, has_places=debug))


def fingerprint_of(spec: KernelSpec, *, has_places: bool = False) -> str:
    """Hash a kernel's functions and everything that they refer to.

    Args:
        spec: The kernel.
        has_places: If True, files and lines are included, as for machine code that names them.

    Raises:
        KernelError: A function refers to something that cannot be compiled.
    """
    try:
        return fingerprint(list(spec.functions), has_places=has_places)
    except KernelError as error:
        raise KernelError(f"{spec.name}, {error}") from error


def check_functions(spec: KernelSpec) -> bool:
    """Check a kernel's functions before anything is compiled; return whether its steps return `truncated`.

    Raises:
        KernelError: A function has a mistake; names the line.
        MissingDependency: Numba is not installed.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingDependency("numba, which compiles kernels, is not installed: pip install 'envfleet[kernels]'")
    truncates = rehearse(PlainEnv(spec))
    check_returns(spec.name, spec.step)
    return truncates


@functools.lru_cache(maxsize=64)
def _compile(spec: KernelSpec, has_own_params: bool, debug: bool, _fingerprint: str) -> MachineCode:
    truncates = check_functions(spec)
    from envfleet.native import numba_cpu

    plan = BufferPlan(spec)
    text = CpuTarget(Source(plan, has_own_params=has_own_params, truncates=truncates)).text()
    make_function = numba_cpu.make_checked_function if debug else numba_cpu.make_function
    table, rows = np.zeros(1, np.int64), np.zeros(0, np.int64)
    actions = np.zeros((0, *spec.action.shape), spec.action.dtype)
    samples = {
        "check": (actions,),
        "step_range": (table, actions, 0, 0),
        "step": (table, actions),
        "reset": (table, rows, rows.astype(np.uint64), rows.astype(np.bool_)),
        "observe": (table, 0, 0),
    }
    target = "the CPU, checking indices" if debug else "the CPU"
    return compile_source(
        spec.name,
        text,
        "loops",
        samples,
        lambda: loop_names(plan, numba_cpu, make_function),
        key=cache_key(spec, debug=debug),
        target=target,
    )


def cache_key(spec: KernelSpec, *, debug: bool = False) -> tuple[str, ...]:
    """Return everything that decides a kernel's machine code, except the generated source.

    Args:
        spec: The kernel.
        debug: If True, its functions check their indices.
    """
    forms = (spec.state.dtype, spec.params.dtype, spec.observation, spec.action, spec.action.limits)
    layouts = (BufferPlan(spec).all, IS_RESET, NUMBERS)
    return fingerprint_of(spec, has_places=debug), str(debug), repr(forms), repr(layouts)


def loop_names(plan: BufferPlan, target: Any, make_function: Callable[..., Any]) -> dict[str, Any]:
    """Return the global names of the generated loops.

    Args:
        plan: The kernel's buffers.
        target: Module with the records and views of the target.
        make_function: The target's `FunctionTree`.
    """
    from envfleet.native import rng

    spec = plan.spec
    forms = repr((spec.state.dtype, spec.params.dtype))
    names: dict[str, Any] = {
        "reset_": make_function(spec.reset, forms),
        "step_": make_function(spec.step, forms),
        "observe_": make_function(spec.observe, forms),
        "seed_": make_function(rng.seed),
        "read_only": target.read_only,
        "as_generator": target.as_generator,
        "observation_row": target.row_view(spec.observation.shape),
        "action_row": target.row_view(spec.action.shape),
    }
    for records in (plan.state, plan.life, plan.params):
        names[f"new_{records.variable}"] = target.new_record(records.dtype)
    for name in spec.info_fields:
        names[f"info_row_{name}"] = target.row_view(spec.state.dtype[name].shape)
    names |= {f"array_{buffer.name}": target.array_at(buffer.dtype) for buffer in plan.all}
    return names | dict(zip(("action_low", "action_high"), spec.action.limits or (), strict=False))
