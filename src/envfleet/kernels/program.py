"""A kernel compiled for the CPU: its entry points, cached on disk."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from envfleet.errors import EnvfleetError, KernelError, MissingDependency
from envfleet.kernels.buffers import IS_RESET, NUMBERS, BufferPlan
from envfleet.kernels.cache import alone, load_source, note, read_code, write_code
from envfleet.kernels.cpu_target import CpuTarget
from envfleet.kernels.explaining import explain
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.plain import rehearse
from envfleet.kernels.references import fingerprint
from envfleet.kernels.rules import check_returns
from envfleet.kernels.source import Source

if TYPE_CHECKING:
    from envfleet.kernels.machine_code import MachineCode

_FRAMEWORK = (
    *("machine_code.py", "numba_cpu.py", "rules.py", "explaining.py", "jitting.py"),
    *("references.py", "views.py", "sums.py", "rng.py", "ziggurat.py", "rollouts/vectors.py", "cuda/numba_cuda.py"),
)


def compile_kernel(spec: KernelSpec, has_own_params: bool, *, debug: bool = False) -> MachineCode:
    """Compile a kernel, or load what was compiled before; says so on stderr if it has to compile.

    The code has these functions, which take exactly what is said here, C-contiguous and unchecked:

    - `step(table, actions) -> count`: check the actions and step all rows; the number of episodes that ended, or
      `-1 - row` of an action that cannot be, in which case nothing was stepped
    - `step_range(table, actions, start, stop) -> count`: the same for some rows, unchecked
    - `check(actions)`: 0 or `-1 - row`
    - `reset(table, rows, seeds, is_seeded)`: begin episodes in rows (int64), with seeds (uint64) where `is_seeded`
      (bool)
    - `observe(table, start, stop)`: write observations and infos anew

    Args:
        spec: The kernel.
        has_own_params: Every sub-environment has parameters of its own.
        debug: Whether its functions check their indices and raise `KernelIndexError`.

    Raises:
        KernelError: It cannot be compiled; the message names the user's line.
    """
    return _compile(spec, has_own_params, debug, fingerprint_of(spec, has_places=debug))


def fingerprint_of(spec: KernelSpec, *, has_places: bool = False) -> str:
    """Hash a kernel's functions and all they refer to, as it is now; with their lines, if the machine code names them.

    Raises:
        KernelError: They refer to something that cannot be compiled.
    """
    try:
        return fingerprint([spec.reset, spec.step, spec.observe], has_places=has_places)
    except KernelError as error:
        raise KernelError(f"{spec.name}, {error}") from error


def check_functions(spec: KernelSpec) -> bool:
    """Look for mistakes before anything is compiled, and say whether the kernel's steps say `truncated`.

    Raises:
        KernelError: There is one; names the line.
        MissingDependency: Numba is not installed.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingDependency("numba, which compiles kernels, is not installed: pip install 'envfleet[kernels]'")
    truncates = rehearse(spec)
    check_returns(spec)
    return truncates


@functools.lru_cache(maxsize=64)
def _compile(spec: KernelSpec, has_own_params: bool, debug: bool, _fingerprint: str) -> MachineCode:
    truncates = check_functions(spec)
    from envfleet.kernels import numba_cpu

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
        spec, text, "loops", samples, lambda: loop_names(plan, numba_cpu, make_function), target, debug=debug
    )


def compile_source(
    spec: KernelSpec,
    text: str,
    name: str,
    samples: Mapping[str, tuple[Any, ...]],
    make_names: Callable[[], dict[str, Any]],
    target: str,
    *,
    debug: bool = False,
) -> MachineCode:
    """Load the machine code of generated source from the cache, or compile it.

    Several processes compile the same once: one does, and the others wait for it.

    Args:
        spec: The kernel.
        text: The source.
        name: Of its file.
        samples: Arguments such as each of its entry points takes, by its name.
        make_names: Makes what the source refers to.
        target: What is compiled for, for a note.
        debug: Whether functions in the machine code check their indices.

    Raises:
        KernelError: It cannot be compiled; the message names the user's line.
    """
    from envfleet.kernels.machine_code import MACHINE, compile_machine_code, load_machine_code

    module = load_module(spec, text, name, MACHINE, debug=debug)
    path = Path(str(module.__file__)).with_suffix(".code")
    data = read_code(path)
    if data is None:
        with alone(path, f"{spec.name} for {target}"), compiling(spec, target):
            data = read_code(path)  # which another process may have written meanwhile
            if data is None:
                vars(module).update(make_names())
                data, is_lasting = compile_machine_code(module, samples)
                if is_lasting:
                    write_code(path, data)
    return load_machine_code(module, data)


def load_module(spec: KernelSpec, text: str, name: str, *more: str, debug: bool = False) -> types.ModuleType:
    """Make a module of generated source, in a folder that is named after all that decides its machine code.

    Args:
        spec: The kernel.
        text: The source.
        name: Of the file.
        more: What else decides the machine code.
        debug: Whether functions in the machine code check their indices.
    """
    import numba

    framework = [(Path(__file__).parent / file).read_text("utf-8") for file in _FRAMEWORK]
    forms = (spec.state.dtype, spec.params.dtype, spec.observation, spec.action, spec.action.limits)
    functions, layouts = fingerprint_of(spec, has_places=debug), repr((BufferPlan(spec).all, IS_RESET, NUMBERS))
    versions = importlib.metadata.version("envfleet"), numba.__version__, np.__version__, sys.version
    key = fingerprint([], functions, str(debug), text, repr(forms), layouts, *framework, *versions, *more)
    return load_source(f"{spec.name}-{key}", name, text)


def loop_names(plan: BufferPlan, target: Any, make_function: Callable[..., Any]) -> dict[str, Any]:
    """Return what the generated loops refer to.

    Args:
        plan: The kernel's buffers.
        target: The module that makes records and views for the compiler in question.
        make_function: Makes functions for it.
    """
    from envfleet.kernels import rng

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


@contextlib.contextmanager
def compiling(spec: KernelSpec, target: str) -> Iterator[None]:
    """Wrap compilation: explain what cannot be compiled, and say how long it takes.

    Raises:
        KernelError: From numba's own error.
    """
    try:
        with note(f"envfleet: compiling {spec.name} for {target} (once, then cached) ..."):
            yield
    except (EnvfleetError, MemoryError, OSError):
        raise
    except Exception as error:  # numba's own, and what its passes stumble over
        raise KernelError(explain(spec, error)) from error
