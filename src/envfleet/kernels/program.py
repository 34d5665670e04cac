"""A kernel compiled for the CPU: its entry points, cached on disk."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from envfleet.errors import EnvfleetError, KernelError, MissingDependency
from envfleet.files import write_whole
from envfleet.kernels.buffers import BufferPlan
from envfleet.kernels.explaining import explain
from envfleet.kernels.kernel import KernelSpec
from envfleet.kernels.plain import rehearse
from envfleet.kernels.references import fingerprint
from envfleet.kernels.source import Source

CACHE_VARIABLE = "ENVFLEET_CACHE_DIR"
_FRAMEWORK = (
    *("numba_cpu.py", "numba_passes.py", "assignments.py", "explaining.py"),
    *("jitting.py", "references.py", "views.py", "rng.py", "ziggurat.py"),
)


class Program:
    """A kernel's entry points, compiled for the CPU; made by `compile_kernel`.

    Args:
        plan: The kernel's buffers.
        module: The generated loops, complete.
        debug: Whether the kernel's functions check their indices.

    Attributes:
        step: `step(table, actions) -> count`: check the actions and step all rows; the number of episodes that ended,
            or `-1 - row` of an action that cannot be, in which case nothing was stepped.
        step_range: `step_range(table, actions, start, stop) -> count`: the same for some rows, unchecked.
        check: `check(actions)`: 0 or `-1 - row`.
        reset: `reset(table, rows, seeds, is_seeded)`.
        observe: `observe(table, start, stop)`: write observations and infos anew.
    """

    def __init__(self, plan: BufferPlan, module: types.ModuleType, *, debug: bool) -> None:
        self.plan = plan
        self.module = module
        self.debug = debug
        self.step: Callable[..., int] = module.step
        self.step_range: Callable[..., int] = module.step_range
        self.check: Callable[..., int] = module.check
        self.reset: Callable[..., None] = module.reset
        self.observe: Callable[..., None] = module.observe


def compile_kernel(spec: KernelSpec, has_own_params: bool, *, debug: bool = False) -> Program:
    """Compile a kernel, or load what was compiled before; says so on stderr if it has to compile.

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
    functions: list[Any] = [spec.reset, spec.step, spec.observe]
    try:
        return fingerprint(functions, has_places=has_places)
    except KernelError as error:
        check_functions(spec)  # which names the line, where it knows the mistake
        raise KernelError(f"{spec.name}, {error}") from error


def check_functions(spec: KernelSpec) -> bool:
    """Look for mistakes before anything is compiled, and say whether the kernel's steps say `truncated`.

    Raises:
        KernelError: There is one; names the line.
        MissingDependency: Numba is not installed.
    """
    require_numba()
    from envfleet.kernels.rules import check_rules

    truncates = rehearse(spec)
    check_rules(spec)
    return truncates


@functools.lru_cache(maxsize=64)
def _compile(spec: KernelSpec, has_own_params: bool, debug: bool, _fingerprint: str) -> Program:
    truncates = check_functions(spec)
    from envfleet.kernels import numba_cpu

    plan = BufferPlan(spec)
    source = Source(plan, has_own_params=has_own_params, truncates=truncates)
    module = load_module(spec, source.text(), "loops", debug=debug)
    make_function = numba_cpu.make_checked_function if debug else numba_cpu.make_function
    module.__dict__.update(loop_names(plan, numba_cpu, make_function))
    return Program(plan, module, debug=debug)


def require_numba() -> None:
    """Check that numba is there, which only kernels need.

    Raises:
        MissingDependency: It is not.
    """
    if importlib.util.find_spec("numba") is None:
        raise MissingDependency("numba, which compiles kernels, is not installed: pip install 'envfleet[kernels]'")


def load_module(spec: KernelSpec, text: str, name: str, *, debug: bool = False) -> types.ModuleType:
    """Import generated source from a file in the cache, beside which numba keeps the machine code.

    The file's folder is named after all that decides the machine code, so that nothing stale is ever found.

    Args:
        spec: The kernel.
        text: The source.
        name: Of the file.
        debug: Whether functions in the machine code check their indices.
    """
    import numba

    framework = [Path(__file__).with_name(file).read_text("utf-8") for file in _FRAMEWORK]
    forms = (spec.state.dtype, spec.params.dtype, spec.observation, spec.action, action_bounds(spec))
    functions, versions = fingerprint_of(spec, has_places=debug), (numba.__version__, np.__version__, sys.version)
    key = fingerprint([], functions, str(debug), text, repr(forms), *framework, *versions)
    folder = _usable(cache_folder()) / f"{spec.name}-{key}"
    path = folder / f"{name}.py"
    if not path.exists():
        write_whole(path, text)
    module_spec = importlib.util.spec_from_file_location(f"envfleet_generated_{spec.name}_{name}_{key}", path)
    if module_spec is None or module_spec.loader is None:
        raise KernelError(f"the generated file {path} cannot be imported: delete it and try again")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # numba looks its functions up there when it loads them
    module_spec.loader.exec_module(module)
    return module


def cache_folder() -> Path:
    """Where compiled kernels are kept: `$ENVFLEET_CACHE_DIR`, else `envfleet/kernels` in the user's cache folder."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "envfleet" / "kernels"


@functools.lru_cache(maxsize=16)
def _usable(folder: Path) -> Path:
    """The folder, if it can be written; else a temporary one for this process, with a note."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        temporary = Path(tempfile.mkdtemp(prefix="envfleet-kernels-"))
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        sys.stderr.write(
            f"envfleet: compiled kernels cannot be kept, as {folder} cannot be written ({error.strerror}): every "
            f"process compiles anew; point {CACHE_VARIABLE} to another folder\n"
        )
        return temporary


def loop_names(plan: BufferPlan, target: Any, make_function: Callable[..., Any]) -> dict[str, Any]:
    """What the generated loops refer to.

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
        "observation_row": target.row_view(spec.observation.shape),
        "action_row": target.row_view(spec.action.shape),
    }
    for records in (plan.state, plan.rng, plan.params):
        names[f"new_{records.variable}"] = target.new_record(records.dtype)
    for name in spec.kernel.info_fields:
        names[f"info_row_{name}"] = target.row_view(spec.state.dtype[name].shape)
    names |= {f"dtype_{buffer.name}": buffer.dtype for buffer in plan.all}
    if isinstance(spec.action_space, spaces.MultiDiscrete):
        names["action_low"], names["action_high"] = map(np.array, action_bounds(spec))
    return names


def action_bounds(spec: KernelSpec) -> tuple[list[int], list[int]]:
    """First action and the one after the last, of each element of a `MultiDiscrete` space; else empty."""
    space: Any = spec.action_space
    if not isinstance(space, spaces.MultiDiscrete):
        return [], []
    low = np.ravel(space.start)
    return low.tolist(), (low + np.ravel(space.nvec)).tolist()


@contextlib.contextmanager
def compiling(spec: KernelSpec, target: str = "the CPU", after_s: float = 0.3) -> Iterator[None]:
    """Around the first call of an entry point: explain what cannot be compiled, and say how long compiling takes.

    Nothing is said where machine code is only loaded.

    Raises:
        KernelError: From numba's own error.
    """
    from numba.core.event import install_listener

    from envfleet.kernels.progress import Note

    note = Note(f"envfleet: compiling {spec.name} for {target} (once, then cached) ...", after_s)
    try:
        with install_listener("numba:compile", note):
            if target == "CUDA":  # whose compiler announces its work elsewhere
                note.begin()
            yield
    except (EnvfleetError, MemoryError, OSError):
        raise
    except Exception as error:  # numba's own, and what its passes stumble over
        raise KernelError(explain(spec, error)) from error
    finally:
        note.end()
